// One tensor's state, which lives in TensorFlow variables, as the kernels take it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../hgc.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace hgc_tensorflow {

namespace tf = tensorflow;

template <class T>
constexpr int32_t dtype_of();
template <>
constexpr int32_t dtype_of<float>() {
  return HGC_FLOAT32;
}
template <>
constexpr int32_t dtype_of<Eigen::half>() {
  return HGC_FLOAT16;
}
template <>
constexpr int32_t dtype_of<tf::bfloat16>() {
  return HGC_BFLOAT16;
}

// The attributes that both operations have: whose gradient it is, and what happens to it.
struct Rule {
  explicit Rule(tf::OpKernelConstruction* context);

  // As many threads as TensorFlow gives one operation, and no more than are worth their start.
  static int32_t threads(tf::OpKernelContext* context, int64_t n);

  absl::Status check(int status) const;

  std::string name;
  float momentum, clip;
  bool nesterov, masking, keep;
};

// The variables of one tensor, locked as long as this lives.
//
// residual and velocity: float32 (n,), empty where nothing of that kind is kept.
// step: int64 (3,), how many gradients were sent, by which rank, of how many.
// last: uint8 (bytes,), what it takes to undo the last of them, or nothing: a byte that tells the kind, and
// for an encoded step its payload, what the gradient was multiplied by and the velocities that masking
// cleared; else what was kept before.
class Slot {
 public:
  // The variables are inputs of these names.
  Slot(tf::OpKernelContext* context, const Rule& rule, int64_t n);

  bool ok() const { return context_->status().ok(); }
  int64_t& step() { return *vars_[kStep]->tensor()->flat<int64_t>().data(); }
  float* velocity() { return entries(kVelocity); }

  // Whether what is kept is this rank's; where it is nobody's, it is from now on.
  bool belongs_to(int64_t rank, int64_t world);

  // What an encoded step needs of the state and the rule.
  hgc_step prepare(const tf::Tensor& gradient, int32_t dtype);

  // Write down how to take an encoded step back.
  void remember(const tf::Tensor& payload, const hgc_step& step, const std::vector<float>& masked);
  // Write down what was kept before a step.
  void remember(const std::vector<float>& kept);
  // There is no step to take back.
  void forget();

  // Bring back what was before the last step, if there is one, which sent this gradient.
  void undo(const tf::Tensor& gradient, int32_t dtype);

  // All that is kept.
  std::vector<float> copy() const;
  void restore(const float* kept);

 private:
  enum Which { kResidual, kVelocity, kStep, kLast };

  // Null where the variable is empty.
  float* entries(Which which) const;
  uint8_t* make_last(size_t bytes);

  tf::OpKernelContext* context_;
  const Rule& rule_;
  const int64_t n_;
  std::vector<tf::core::RefCountPtr<tf::Var>> vars_;
  std::vector<std::unique_ptr<tf::mutex_lock>> locks_;
};

// What operations on a slot have in common in their registration.
#define HGC_STATE(op)              \
  op.Input("residual: resource")   \
      .Input("velocity: resource") \
      .Input("step: resource")     \
      .Input("last: resource")     \
      .Attr("tensor_name: string") \
      .Attr("momentum: float")     \
      .Attr("nesterov: bool")      \
      .Attr("masking: bool")       \
      .Attr("keep: bool")          \
      .Attr("clip: float")         \
      .SetIsStateful()

#define HGC_KERNEL(name, Kernel)                                                                        \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU).TypeConstraint<float>("T"), Kernel<float>); \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU).TypeConstraint<Eigen::half>("T"),           \
                          Kernel<Eigen::half>);                                                         \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU).TypeConstraint<tf::bfloat16>("T"),          \
                          Kernel<tf::bfloat16>)

}  // namespace hgc_tensorflow

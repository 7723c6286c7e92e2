// HgcDense: what remains to be done to a gradient that Horovod has reduced as it is.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "slot.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hgc_tensorflow {

HGC_STATE(REGISTER_OP("HgcDense").Input("reduced: T").Input("scale: float").Input("loss_scale: float"))
    .Output("update: T")
    .Attr("T: {float, half, bfloat16, double}")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Count a step, and apply the momentum that the optimizer does not have, as it would.

A gradient that is not finite passes, and leaves the velocity as it is.
scale: what the mean of the ranks' gradients was multiplied by.
loss_scale: what the gradients were multiplied by.
)doc");

template <class T>
class DenseOp : public tf::OpKernel {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

 public:
  explicit DenseOp(tf::OpKernelConstruction* context) : OpKernel(context), rule_(context) {}

  void Compute(tf::OpKernelContext* context) override {
    const tf::TensorShape shape = context->input(0).shape();
    const int64_t n = shape.num_elements();
    Slot slot(context, rule_, n);
    if (!slot.ok()) return;
    tf::Tensor* update;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, shape, &update));
    const T* from = context->input(0).flat<T>().data();
    T* to = update->flat<T>().data();
    float* const velocity = slot.velocity();
    const bool finite = std::all_of(from, from + n, [](T x) { return std::isfinite(Wide(x)); });
    finite ? slot.remember(slot.copy()) : slot.forget();
    if (finite) slot.step()++;
    if (!finite || !velocity) {
      if (to != from) std::copy_n(from, n, to);
      return;
    }
    const Wide unit = context->input(1).scalar<float>()() * context->input(2).scalar<float>()();
    for (int64_t i = 0; i < n; i++) {
      const Wide x = Wide(from[i]) / unit, momentum = Wide(rule_.momentum);
      const Wide next = momentum * Wide(velocity[i]) + x;
      velocity[i] = float(next);
      to[i] = T(unit * (rule_.nesterov ? x + momentum * next : next));
    }
  }

 private:
  const Rule rule_;
};

HGC_KERNEL("HgcDense", DenseOp);
REGISTER_KERNEL_BUILDER(Name("HgcDense").Device(tf::DEVICE_CPU).TypeConstraint<double>("T"), DenseOp<double>);

}  // namespace hgc_tensorflow

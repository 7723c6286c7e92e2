// HgcDecode: all ranks' payloads of one tensor into its reduced gradient.
#include <cmath>
#include <limits>

#include "control.h"
#include "slot.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hgc_tensorflow {

HGC_STATE(REGISTER_OP("HgcDecode")
              .Input("gathered: uint8")
              .Input("gradient: T")
              .Input("world: int32")
              .Input("loss_scale: float")
              .Input("control: float"))
    .Output("reduced: T")
    .Attr("T: {float, half, bfloat16}")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The reduced gradient, in the gradient's shape and, where possible, its memory.

gathered: the payloads of `world` ranks, one behind the other.
gradient, loss_scale: what HgcEncode was given in this step.
control: HgcEncode's, reduced by Horovod. Where it tells that a rank's gradient was not finite, `reduced` is of
  NaN, and what is kept is brought back.
)doc");

template <class T>
class DecodeOp : public tf::OpKernel {
 public:
  explicit DecodeOp(tf::OpKernelConstruction* context) : OpKernel(context), rule_(context) {}

  void Compute(tf::OpKernelContext* context) override {
    const tf::TensorShape shape = context->input(1).shape();
    const int64_t n = shape.num_elements();
    const int32_t world = context->input(2).scalar<int32_t>()();
    const tf::Tensor& control = context->input(4);
    OP_REQUIRES_OK(context, check(control, world));
    const float* const entry = control.flat<float>().data();
    const bool broken = entry[kBroken] > 0 || entry[kFailed] > 0;
    if (broken) {  // before anything is written over the gradient
      Slot slot(context, rule_, n);
      if (slot.ok()) slot.undo(context->input(1), dtype_of<T>());
      if (!slot.ok()) return;
    }
    OP_REQUIRES(context, entry[kFailed] <= 0,
                absl::AbortedError("hgc_horovod: a rank could not encode the gradient of " + rule_.name +
                                   "; its log says why"));
    tf::Tensor* reduced;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({1}, 0, shape, &reduced));
    if (broken) {
      std::fill_n(reduced->flat<T>().data(), n, std::numeric_limits<T>::quiet_NaN());
      return;
    }
    const tf::Tensor& gathered = context->input(0);
    const float factor = scale(entry[kScale], world) / float(world) * context->input(3).scalar<float>()();
    const int code = hgc_decode_sum(gathered.flat<uint8_t>().data(), gathered.NumElements(), world, n, factor,
                                    reduced->data(), dtype_of<T>(), 0, Rule::threads(context, n));
    OP_REQUIRES_OK(context, rule_.check(code));
  }

 private:
  absl::Status check(const tf::Tensor& control, int32_t world) const {
    const auto entry = control.flat<float>();
    if (entry.size() < kControl ||
        !(std::abs(entry(kFirst) * float(world) - entry(kScale)) <= 0.01f * entry(kScale)))
      return absl::InvalidArgumentError(
          "hgc_horovod: process_set must be the one that Horovod was given: the compressor's has " +
          std::to_string(world) + " ranks, and Horovod reduced " + rule_.name + " over others");
    for (int64_t i = kControl; i < entry.size(); i++)
      if (std::abs(entry(i)) < 0.99f * entry(kScale))
        return absl::InvalidArgumentError(
            "hgc_horovod: all ranks need the same settings: method, policy, "
            "names and shapes of variables, process_set and seed differ");
    return absl::OkStatus();
  }

  // The scale of Horovod's op, without the rounding of its sums.
  static float scale(float reduced, int32_t world) {
    for (const float wanted : {1.0f, float(world)})
      if (std::abs(reduced - wanted) < 0.01f * wanted) return wanted;
    return reduced;
  }

  const Rule rule_;
};

HGC_KERNEL("HgcDecode", DecodeOp);

}  // namespace hgc_tensorflow

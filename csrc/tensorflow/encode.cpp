// HgcEncode: one step of one tensor into its payload.
#include <algorithm>
#include <cmath>

#include "control.h"
#include "slot.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hgc_tensorflow {

HGC_STATE(REGISTER_OP("HgcEncode")
              .Input("gradient: T")
              .Input("rank: int32")
              .Input("world: int32")
              .Input("loss_scale: float"))
    .Output("payload: uint8")
    .Output("control: float")
    .Attr("T: {float, half, bfloat16}")
    .Attr("digest: list(float)")
    .Attr("elastic: bool")
    .Attr("method: int")
    .Attr("value_kind: int")
    .Attr("bits: int")
    .Attr("stages: list(int)")
    .Attr("slots: list(int) >= 1")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      std::vector<float> digest;
      TF_RETURN_IF_ERROR(c->GetAttr("digest", &digest));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Vector(kControl + int64_t(digest.size())));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Add a gradient to what is kept of its tensor, and take its largest entries out of it.

loss_scale: what the gradient was multiplied by.
elastic: ranks and their number may change from step to step.
payload: what the other ranks are to get.
control: what Horovod is to reduce; see control.h.
digest: -1 and 1, the same on all ranks.
stages: the steps at which the warm-up's stages end.
slots: how many entries are sent in each stage, and after the last.
)doc");

template <class T>
class EncodeOp : public tf::OpKernel {
 public:
  explicit EncodeOp(tf::OpKernelConstruction* context) : OpKernel(context), rule_(context) {
    for (auto& [key, number] :
         {std::pair{"method", &format_.method}, {"value_kind", &format_.value_kind}, {"bits", &format_.bits}})
      OP_REQUIRES_OK(context, context->GetAttr(key, number));
    for (auto& [key, list] : {std::pair{"stages", &stages_}, {"slots", &slots_}})
      OP_REQUIRES_OK(context, context->GetAttr(key, list));
    OP_REQUIRES_OK(context, context->GetAttr("digest", &digest_));
    OP_REQUIRES_OK(context, context->GetAttr("elastic", &elastic_));
    OP_REQUIRES(context, slots_.size() == stages_.size() + 1,
                absl::InvalidArgumentError("slots must be one more than stages"));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& gradient = context->input(0);
    Slot slot(context, rule_, gradient.NumElements());
    if (!slot.ok()) return;
    hgc_format format = format_;
    format.n = gradient.NumElements();
    format.k = slots_at(slot.step());
    tf::Tensor *payload, *control;
    OP_REQUIRES_OK(context, context->allocate_output(0, {hgc_payload_bytes(&format)}, &payload));
    OP_REQUIRES_OK(context, context->allocate_output(1, {kControl + int64_t(digest_.size())}, &control));

    const int32_t rank = context->input(1).scalar<int32_t>()(), world = context->input(2).scalar<int32_t>()();
    hgc_step step = slot.prepare(gradient, dtype_of<T>());
    step.sqrt_world = std::sqrt(double(world));
    step.factor = 1.0 / double(context->input(3).scalar<float>()());
    int code = HGC_DAMAGED;
    if (elastic_ || slot.belongs_to(rank, world)) {
      code = encode(slot, format, step, payload);
    } else {
      LOG(ERROR) << "hgc_horovod: what is kept of " << rule_.name
                 << " is another rank's, or of another number of "
                 << "ranks: every rank restores the checkpoint that it has written, or calls reset()";
      hgc_encode_nothing(&format, payload->flat<uint8_t>().data());
    }
    if (code == HGC_NO_MEMORY) LOG(ERROR) << "hgc_horovod: no memory to encode " << rule_.name;
    float* const entry = control->flat<float>().data();
    entry[kScale] = 1;
    entry[kFirst] = rank == 0;
    entry[kBroken] = code == HGC_NON_FINITE;
    entry[kFailed] = code != HGC_OK && code != HGC_NON_FINITE;
    std::copy(digest_.begin(), digest_.end(), entry + kControl);
  }

 private:
  int64_t slots_at(int64_t step) const {
    return slots_[size_t(std::upper_bound(stages_.begin(), stages_.end(), step) - stages_.begin())];
  }

  int encode(Slot& slot, const hgc_format& format, hgc_step& step, tf::Tensor* payload) {
    uint8_t* const to = payload->flat<uint8_t>().data();
    std::vector<float> masked(step.masking ? size_t(format.k) : 0), before;
    step.masked = masked.data();
    step.hint = hint_;
    step.caution = caution_;
    step.turn = turn_;
    step.guard = 1;
    int code = hgc_encode(&format, &step, to);
    if (code == HGC_DWARFED) {  // subtracting the gradient again would not bring back what is kept
      before = slot.copy();
      step.guard = 0;
      code = hgc_encode(&format, &step, to);
      if (code != HGC_OK) slot.restore(before.data());
    }
    if (code == HGC_OK) {
      before.empty() ? slot.remember(*payload, step, masked) : slot.remember(before);
      slot.step()++;
      hint_ = step.hint;
      caution_ = step.caution;
      turn_ = step.turn;
    } else {  // the other ranks hear of it by what Horovod reduces
      slot.forget();
      hgc_encode_nothing(&format, to);
    }
    return code;
  }

  const Rule rule_;
  hgc_format format_{};
  std::vector<int64_t> stages_, slots_;
  std::vector<float> digest_;
  bool elastic_;
  float hint_ = 0, caution_ = 0;  // guarded by the slot's locks
  uint32_t turn_ = 0;
};

HGC_KERNEL("HgcEncode", EncodeOp);

}  // namespace hgc_tensorflow

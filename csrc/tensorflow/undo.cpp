// HgcUndo: a step that is dropped.
#include "slot.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hgc_tensorflow {

HGC_STATE(REGISTER_OP("HgcUndo").Input("gradient: T"))
    .Attr("T: {float, half, bfloat16}")
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Bring back what was kept of a tensor before its last step, if that was not undone yet.

gradient: what was encoded in that step, if it was encoded.
)doc");

template <class T>
class UndoOp : public tf::OpKernel {
 public:
  explicit UndoOp(tf::OpKernelConstruction* context) : OpKernel(context), rule_(context) {}

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& gradient = context->input(0);
    Slot slot(context, rule_, gradient.NumElements());
    if (slot.ok()) slot.undo(gradient, dtype_of<T>());
  }

 private:
  const Rule rule_;
};

HGC_KERNEL("HgcUndo", UndoOp);

}  // namespace hgc_tensorflow

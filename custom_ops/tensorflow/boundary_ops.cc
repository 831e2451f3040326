// SPDX-License-Identifier: Apache-2.0
// GradientBoundary: registration and kernel of an identity that carries a
// gradient of its own.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("Comet>GradientBoundary")
    .Input("outputs: Tout")
    .Input("inputs: Tin")
    .Output("identity: Tout")
    .Attr("Tout: list(type) >= 1")
    .Attr("Tin: list(type) >= 0")
    .Attr("key: int")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < c->num_outputs(); ++i) {
        c->set_output(i, c->input(i));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns its first inputs unchanged and marks where a layer's gradient is ours.

The buffers are passed on, nothing is copied. The gradient, registered in
Python, receives the gradients of `identity` and answers for `outputs` and
`inputs` both; so the computation that made `outputs` need not be differentiated.

outputs: What the layer computed.
inputs: What its gradient goes to; not read.
identity: `outputs`.
key: Names the gradient function to call.
)doc");

namespace comet {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

class GradientBoundaryOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      ctx->set_output(i, ctx->input(i));
    }
  }

  // Cheap: run where the producer ran instead of going through a queue.
  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(
    Name("Comet>GradientBoundary").Device(tensorflow::DEVICE_CPU),
    GradientBoundaryOp);
REGISTER_KERNEL_BUILDER(
    Name("Comet>GradientBoundary").Device(tensorflow::DEVICE_GPU),
    GradientBoundaryOp);

}  // namespace
}  // namespace comet

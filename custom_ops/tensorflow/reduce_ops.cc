// SPDX-License-Identifier: Apache-2.0
// Registration of the reductions.

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("Comet>SumOfSquares")
    .Input("x: T")
    .Input("enabled: bool")
    .Output("sum: float")
    .Attr("T: {float, half, bfloat16}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle scalar;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &scalar));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sums the squares of all elements, if asked to.

The order of additions is fixed: the result does not depend on the number of threads.

x: Tensor of any shape.
enabled: Scalar. If false, `x` is not read.
sum: Scalar; the sum, or zero if not enabled.
)doc");

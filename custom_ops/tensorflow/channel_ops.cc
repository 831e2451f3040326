// SPDX-License-Identifier: Apache-2.0
// Registration of the ops on channels.

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("Comet>ChannelSums")
    .Input("dy: float")
    .Input("x: float")
    .Output("sums: float")
    .Output("products: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle shape;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &shape));
      TF_RETURN_IF_ERROR(c->Merge(shape, c->input(1), &shape));
      const ShapeHandle channels = c->Vector(c->Dim(shape, -1));
      c->set_output(0, channels);
      c->set_output(1, channels);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sums over everything but the last dimension, reading both tensors once.

The order of additions is fixed: the result does not depend on the number of threads.

dy: Tensor of at least one dimension, channels last.
x: Tensor of the same shape.
sums: For each channel, the sum of `dy`.
products: For each channel, the sum of `dy * x`.
)doc");

REGISTER_OP("Comet>ChannelLine")
    .Input("xs: N * float")
    .Input("slopes: N * float")
    .Input("offset: float")
    .Output("y: float")
    .Attr("N: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle shape = c->input(0);
      if (c->num_inputs() > 5) {
        return absl::InvalidArgumentError("ChannelLine takes one or two terms");
      }
      if (c->num_inputs() == 5) {
        TF_RETURN_IF_ERROR(c->Merge(shape, c->input(1), &shape));
      }
      c->set_output(0, shape);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Adds up one or two tensors, each times a slope a channel, and an offset a channel.

xs: One or two tensors of one shape, channels last. One of them becomes the output where nobody else needs it.
slopes: A vector for each.
offset: A vector.
y: `xs[0] * slopes[0] + (xs[1] * slopes[1] + offset)`.
)doc");

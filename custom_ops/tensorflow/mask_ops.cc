// SPDX-License-Identifier: Apache-2.0
// Registration of the one-bit mask ops.

#include <cstdint>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("Comet>PackMask")
    .Input("x: T")
    .Output("mask: uint8")
    .Attr("T: {float, half, bfloat16}")
    .Attr("lower: float = 0.0")
    .Attr("upper: float = inf")
    .SetShapeFn([](InferenceContext* c) {
      const DimensionHandle n = c->NumElements(c->input(0));
      c->set_output(
          0, c->Vector(c->ValueKnown(n) ? c->MakeDim((c->Value(n) + 7) / 8)
                                        : c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Marks, in one bit each, the elements that lie in an open range.

x: Tensor of any shape.
mask: Bit k of byte i is set iff lower < x[8 i + k] < upper, x taken flat. The bits
  after the last element are zero.
lower: Lower end of the range.
upper: Upper end of the range; infinity stands for no upper end at all.
)doc");

REGISTER_OP("Comet>MaskGradient")
    .Input("mask: uint8")
    .Input("dy: T")
    .Output("dx: T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("negative_slope: float = 0.0")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle mask;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &mask));
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Lets a gradient through where a bit is set, and scales it elsewhere.

Works in the buffer of `dy` where nothing else needs it.

mask: What PackMask made of a tensor with as many elements as `dy`.
dy: Incoming gradient.
dx: dy where the bit is set, negative_slope * dy elsewhere. With a slope of zero that
  is zero even where dy is not finite.
negative_slope: Factor where the bit is not set.
)doc");

// SPDX-License-Identifier: Apache-2.0
// Registration of the ops behind max-pooling's gradient.

#include <string>
#include <vector>

#include "custom_ops/tensorflow/pooling_geometry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace comet {
namespace {

absl::Status ReadPoolAttributes(InferenceContext* c, PoolAttributes* pool) {
  std::vector<int64_t> window, strides;
  std::string padding;
  TF_RETURN_IF_ERROR(c->GetAttr("window", &window));
  TF_RETURN_IF_ERROR(c->GetAttr("strides", &strides));
  TF_RETURN_IF_ERROR(c->GetAttr("padding", &padding));
  return PoolAttributes::Make(window, strides, padding, pool);
}

absl::Status PackShape(InferenceContext* c) {
  PoolAttributes pool;
  TF_RETURN_IF_ERROR(ReadPoolAttributes(c, &pool));
  ShapeHandle x;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), pool.rank + 2, &x));
  DimensionHandle bytes = c->UnknownDim();
  if (c->FullyDefined(x)) {
    std::vector<int64_t> shape(pool.rank + 2);
    for (int d = 0; d < pool.rank + 2; ++d) shape[d] = c->Value(c->Dim(x, d));
    PoolGeometry geometry;
    TF_RETURN_IF_ERROR(pool.Geometry(shape, &geometry));
    bytes = c->MakeDim(geometry.PositionBytes());
  }
  c->set_output(0, c->Vector(bytes));
  return absl::OkStatus();
}

absl::Status GradientShape(InferenceContext* c) {
  PoolAttributes pool;
  TF_RETURN_IF_ERROR(ReadPoolAttributes(c, &pool));
  ShapeHandle positions, dy, dx;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &positions));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), pool.rank + 2, &dy));
  TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(2, &dx));
  TF_RETURN_IF_ERROR(c->WithRank(dx, pool.rank + 2, &dx));
  c->set_output(0, dx);
  return absl::OkStatus();
}

}  // namespace
}  // namespace comet

REGISTER_OP("Comet>PackPoolPositions")
    .Input("x: T")
    .Output("positions: uint8")
    .Attr("T: {float, half, bfloat16}")
    .Attr("window: list(int) >= 1")
    .Attr("strides: list(int) >= 1")
    .Attr("padding: {'SAME', 'VALID'}")
    .SetShapeFn(comet::PackShape)
    .Doc(R"doc(
Finds where in its window each output of a max-pooling takes its value from.

Of several equal maxima the first in row-major order counts, as in TensorFlow's own
gradient of 1-D and 2-D pooling.

x: Input of the pooling, channels last, with one to three spatial dimensions.
positions: ceil(log2(window size)) bits for each output, packed; for PoolGradient.
window: Size of the window, for each spatial dimension.
strides: Its step, for each spatial dimension.
padding: As for TensorFlow's poolings.
)doc");

REGISTER_OP("Comet>PoolGradient")
    .Input("positions: uint8")
    .Input("dy: T")
    .Input("input_shape: int64")
    .Output("dx: T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("window: list(int) >= 1")
    .Attr("strides: list(int) >= 1")
    .Attr("padding: {'SAME', 'VALID'}")
    .SetShapeFn(comet::GradientShape)
    .Doc(R"doc(
Computes max-pooling's input gradient from the positions of the maxima.

positions: What PackPoolPositions returned, with the same attributes.
dy: Gradient of the pooling's output.
input_shape: Shape of the pooling's input.
dx: Gradient of the pooling's input.
window: Size of the window, for each spatial dimension.
strides: Its step, for each spatial dimension.
padding: As for TensorFlow's poolings.
)doc");

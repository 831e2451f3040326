// SPDX-License-Identifier: Apache-2.0
// Registration of the error-bounded codec's ops.

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("Comet>Compress")
    .Input("x: T")
    .Input("error_bound: float")
    .Input("relative: bool")
    .Input("seed: int64")
    .Output("stream: uint8")
    .Output("info: double")
    .Attr("T: {float, half, bfloat16}")
    .Attr("rounding: {'nearest', 'dither'} = 'nearest'")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle scalar;
      for (int i = 1; i < 4; ++i) {
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &scalar));
      }
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Vector(4));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Compresses a tensor so that every element comes back within an error bound.

For all finite elements |x - Decompress(stream)| <= bound, strictly. Zeros come
back as zeros (float32 denormals count as zero) and, rounded to nearest, non-zeros
as non-zeros of their sign. NaN and infinities come back bit for bit. The bytes
depend on the inputs alone, not on device, threads or instruction set.

x: Tensor of any shape.
error_bound: Scalar, positive and finite; absolute bounds at least 2^-126.
relative: Scalar. If true, the bound is `error_bound` times the range of the finite
  values of x (times their magnitude where they are all equal).
seed: Scalar. Chooses the dither; unused otherwise.
stream: The compressed tensor, for Decompress and SignGradient.
info: [bytes of x, bytes of stream, fraction of non-zero elements, absolute bound].
rounding: "nearest", or "dither": subtractive dither, which makes the error
  independent of the data, at the price of size and of exact signs.
)doc");

REGISTER_OP("Comet>Decompress")
    .Input("stream: uint8")
    .Input("shape: int64")
    .Output("x: T")
    .Attr("T: {float, half, bfloat16}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle stream, x;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &stream));
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(1, &x));
      c->set_output(0, x);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Restores a tensor from a stream of Compress.

A damaged stream is an error; nothing is read outside of it.

stream: What Compress returned.
shape: Shape of the tensor; it must have as many elements as the compressed one.
x: The tensor, within the bound it was compressed with.
T: Type of the tensor that was compressed.
)doc");

REGISTER_OP("Comet>SignGradient")
    .Input("stream: uint8")
    .Input("dy: T")
    .Output("dx: T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("negative_slope: float = 0.0")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle stream;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &stream));
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Computes the gradient of a (leaky) ReLU from its compressed output.

Only the signs are read; they are exact. Works in the buffer of `dy` where nothing
else needs it.

stream: What Compress made of the activation's output, of the type and size of `dy`.
dy: Gradient of the output.
dx: dy where the output is positive, negative_slope * dy elsewhere. With a slope of
  zero that is zero even where dy is not finite.
negative_slope: The activation's slope for negative inputs. Other than zero it needs
  a stream rounded to nearest.
)doc");

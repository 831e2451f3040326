// SPDX-License-Identifier: Apache-2.0
// The part of the codec's ops that all devices share: checking the inputs and
// allocating the outputs. A device adds Run().
#ifndef COMET_TENSORFLOW_CODEC_KERNELS_H_
#define COMET_TENSORFLOW_CODEC_KERNELS_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/cpu/codec.h"
#include "custom_ops/tensorflow/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comet {

class CompressOp : public tensorflow::OpKernel {
 public:
  explicit CompressOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string rounding;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rounding", &rounding));
    rounding_ = rounding == "dither" ? Rounding::kDither : Rounding::kNearest;
  }

  void Compute(tensorflow::OpKernelContext* ctx) final {
    for (int i = 1; i < 4; ++i) {
      OP_REQUIRES(ctx, ctx->input(i).dims() == 0,
                  absl::InvalidArgumentError(absl::StrCat(
                      "Compress: `error_bound`, `relative` and `seed` must be "
                      "scalars. Received shapes: error_bound ",
                      ctx->input(1).shape().DebugString(), ", relative ",
                      ctx->input(2).shape().DebugString(), ", seed ",
                      ctx->input(3).shape().DebugString())));
    }
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

 protected:
  // Allocates the outputs too: the stream's size is known only when it is made.
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx) = 0;

  static int64_t RowLengthOf(const tensorflow::TensorShape& shape) {
    const auto sizes = shape.dim_sizes();
    const std::vector<int64_t> dims(sizes.begin(), sizes.end());
    return RowLength(dims.data(), static_cast<int>(dims.size()));
  }

  static absl::Status CheckBound(float bound, bool relative) {
    if (std::isfinite(bound) && bound >= (relative ? 0.0f : 0x1p-126f) &&
        bound != 0) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "Compress: `error_bound` must be a finite number ",
        relative ? "above zero" : "of at least 2^-126",
        ". Received: error_bound=", bound, ", relative=", relative));
  }

  Rounding rounding_ = Rounding::kNearest;
};

// `shape` is in host memory on every device.
class DecompressOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) final {
    const tensorflow::Tensor& stream = ctx->input(0);
    const tensorflow::Tensor& shape = ctx->input(1);
    OP_REQUIRES(ctx, stream.dims() == 1 && shape.dims() == 1,
                absl::InvalidArgumentError(absl::StrCat(
                    "Decompress: `stream` and `shape` must be vectors. "
                    "Received: stream.shape=",
                    stream.shape().DebugString(),
                    ", shape.shape=", shape.shape().DebugString())));
    const auto sizes = shape.flat<int64_t>();
    tensorflow::TensorShape x_shape;
    OP_REQUIRES_OK(
        ctx, tensorflow::TensorShape::BuildTensorShape(
                 absl::MakeConstSpan(sizes.data(), sizes.size()), &x_shape));
    // Before memory is taken for what a damaged stream cannot fill.
    OP_REQUIRES_OK(ctx, Check(stream, x_shape));
    tensorflow::Tensor* x = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, x_shape, &x));
    OP_REQUIRES_OK(ctx, Run(ctx, stream, x));
  }

 protected:
  // Whether the stream can be of such a tensor; where that is cheap to know.
  virtual absl::Status Check(const tensorflow::Tensor& stream,
                             const tensorflow::TensorShape& shape) {
    return absl::OkStatus();
  }
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx,
                           const tensorflow::Tensor& stream,
                           tensorflow::Tensor* x) = 0;
};

class SignGradientOp : public tensorflow::OpKernel {
 public:
  explicit SignGradientOp(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("negative_slope", &negative_slope_));
    negative_slope_ = RoundToType(negative_slope_, ctx->input_type(1));
  }

  void Compute(tensorflow::OpKernelContext* ctx) final {
    const tensorflow::Tensor& stream = ctx->input(0);
    const tensorflow::Tensor& dy = ctx->input(1);
    OP_REQUIRES(ctx, stream.dims() == 1,
                absl::InvalidArgumentError(absl::StrCat(
                    "SignGradient: `stream` must be a vector. Received: "
                    "stream.shape=",
                    stream.shape().DebugString())));
    // Before `dy` is overwritten with what a damaged stream says.
    OP_REQUIRES_OK(ctx, Check(stream, dy.shape()));
    tensorflow::Tensor* dx = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({1}, 0, dy.shape(), &dx));
    OP_REQUIRES_OK(ctx, Run(ctx, stream, dy, dx));
  }

 protected:
  virtual absl::Status Check(const tensorflow::Tensor& stream,
                             const tensorflow::TensorShape& shape) {
    return absl::OkStatus();
  }
  // dx may be the same buffer as dy.
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx,
                           const tensorflow::Tensor& stream,
                           const tensorflow::Tensor& dy,
                           tensorflow::Tensor* dx) = 0;

  float negative_slope_ = 0;
};

}  // namespace comet

#endif  // COMET_TENSORFLOW_CODEC_KERNELS_H_

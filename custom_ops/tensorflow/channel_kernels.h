// SPDX-License-Identifier: Apache-2.0
// The part of the ops on channels that all devices share.
#ifndef COMET_TENSORFLOW_CHANNEL_KERNELS_H_
#define COMET_TENSORFLOW_CHANNEL_KERNELS_H_

#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comet {

class ChannelSumsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) final {
    const tensorflow::Tensor& dy = ctx->input(0);
    const tensorflow::Tensor& x = ctx->input(1);
    OP_REQUIRES(
        ctx, dy.dims() > 0 && dy.shape() == x.shape(),
        absl::InvalidArgumentError(absl::StrCat(
            "ChannelSums: `dy` and `x` must have the same shape, of at least "
            "one dimension. Received: dy.shape=",
            dy.shape().DebugString(), ", x.shape=", x.shape().DebugString())));
    const int64_t channels = dy.dim_size(dy.dims() - 1);
    const tensorflow::TensorShape shape({channels});
    tensorflow::Tensor* sums = nullptr;
    tensorflow::Tensor* products = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &sums));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, shape, &products));
    const int64_t rows = channels == 0 ? 0 : dy.NumElements() / channels;
    OP_REQUIRES_OK(ctx, Run(ctx, dy, x, rows, channels, sums, products));
  }

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx,
                           const tensorflow::Tensor& dy,
                           const tensorflow::Tensor& x, int64_t rows,
                           int64_t channels, tensorflow::Tensor* sums,
                           tensorflow::Tensor* products) = 0;
};

class ChannelLineOp : public tensorflow::OpKernel {
 public:
  explicit ChannelLineOp(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &terms_));
  }

  void Compute(tensorflow::OpKernelContext* ctx) final {
    const tensorflow::Tensor& x = ctx->input(0);
    OP_REQUIRES(ctx, x.dims() > 0,
                absl::InvalidArgumentError(
                    "ChannelLine: `xs` must have at least one dimension. "
                    "Received a scalar."));
    const int64_t channels = x.dim_size(x.dims() - 1);
    for (int k = 0; k <= 2 * terms_; ++k) {
      const tensorflow::Tensor& input = ctx->input(k);
      const bool fits =
          k < terms_ ? input.shape() == x.shape()
                     : input.dims() == 1 && input.dim_size(0) == channels;
      OP_REQUIRES(ctx, fits,
                  absl::InvalidArgumentError(absl::StrCat(
                      "ChannelLine: `xs` must have equal shapes, `slopes` and "
                      "`offset` one element for each of their ",
                      channels, " channels. Received: input ", k, " of shape ",
                      input.shape().DebugString())));
    }
    std::vector<int> forwardable(terms_);
    std::iota(forwardable.begin(), forwardable.end(), 0);
    tensorflow::Tensor* y = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output(forwardable, 0,
                                                              x.shape(), &y));
    const int64_t rows = channels == 0 ? 0 : x.NumElements() / channels;
    OP_REQUIRES_OK(ctx, Run(ctx, x, terms_ > 1 ? &ctx->input(1) : nullptr,
                            ctx->input(terms_), ctx->input(2 * terms_ - 1),
                            ctx->input(2 * terms_), rows, channels, y));
  }

 protected:
  // `z` is null where there is one term; `other` is its slope.
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx,
                           const tensorflow::Tensor& x,
                           const tensorflow::Tensor* z,
                           const tensorflow::Tensor& slope,
                           const tensorflow::Tensor& other,
                           const tensorflow::Tensor& offset, int64_t rows,
                           int64_t channels, tensorflow::Tensor* y) = 0;

 private:
  int terms_ = 1;
};

}  // namespace comet

#endif  // COMET_TENSORFLOW_CHANNEL_KERNELS_H_

// SPDX-License-Identifier: Apache-2.0
// The part of the mask ops that all devices share: checking the inputs and
// allocating the outputs. A device adds Run().
#ifndef COMET_TENSORFLOW_MASK_KERNELS_H_
#define COMET_TENSORFLOW_MASK_KERNELS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/cpu/mask.h"
#include "custom_ops/tensorflow/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comet {

class PackMaskOp : public tensorflow::OpKernel {
 public:
  explicit PackMaskOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("lower", &lower_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("upper", &upper_));
    OP_REQUIRES(ctx, lower_ < upper_,
                absl::InvalidArgumentError(
                    absl::StrCat("PackMask: `lower` must be less than `upper`. "
                                 "Received: lower=",
                                 lower_, ", upper=", upper_)));
  }

  void Compute(tensorflow::OpKernelContext* ctx) final {
    const tensorflow::Tensor& x = ctx->input(0);
    tensorflow::Tensor* mask = nullptr;
    OP_REQUIRES_OK(
        ctx,
        ctx->allocate_output(
            0, tensorflow::TensorShape({MaskBytes(x.NumElements())}), &mask));
    if (x.NumElements() != 0) OP_REQUIRES_OK(ctx, Run(ctx, x, mask));
  }

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx,
                           const tensorflow::Tensor& x,
                           tensorflow::Tensor* mask) = 0;

  float lower_ = 0;
  float upper_ = 0;
};

class MaskGradientOp : public tensorflow::OpKernel {
 public:
  explicit MaskGradientOp(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("negative_slope", &negative_slope_));
    negative_slope_ = RoundToType(negative_slope_, ctx->input_type(1));
  }

  void Compute(tensorflow::OpKernelContext* ctx) final {
    const tensorflow::Tensor& mask = ctx->input(0);
    const tensorflow::Tensor& dy = ctx->input(1);
    OP_REQUIRES(
        ctx,
        mask.dims() == 1 && mask.NumElements() == MaskBytes(dy.NumElements()),
        absl::InvalidArgumentError(absl::StrCat(
            "MaskGradient: `mask` must be a vector of one bit for each "
            "element of `dy`, that is of ",
            MaskBytes(dy.NumElements()),
            " bytes. Received: mask.shape=", mask.shape().DebugString(),
            ", dy.shape=", dy.shape().DebugString())));
    tensorflow::Tensor* dx = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({1}, 0, dy.shape(), &dx));
    if (dy.NumElements() != 0) OP_REQUIRES_OK(ctx, Run(ctx, mask, dy, dx));
  }

 protected:
  // dx may be the same buffer as dy.
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx,
                           const tensorflow::Tensor& mask,
                           const tensorflow::Tensor& dy,
                           tensorflow::Tensor* dx) = 0;

  float negative_slope_ = 0;
};

}  // namespace comet

#endif  // COMET_TENSORFLOW_MASK_KERNELS_H_

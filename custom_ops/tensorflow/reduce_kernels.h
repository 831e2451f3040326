// SPDX-License-Identifier: Apache-2.0
// The part of the reductions that all devices share.
#ifndef COMET_TENSORFLOW_REDUCE_KERNELS_H_
#define COMET_TENSORFLOW_REDUCE_KERNELS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comet {

// `enabled` is in host memory on every device.
class SumOfSquaresOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) final {
    const tensorflow::Tensor& x = ctx->input(0);
    const tensorflow::Tensor& enabled = ctx->input(1);
    OP_REQUIRES(ctx, enabled.dims() == 0,
                absl::InvalidArgumentError(
                    absl::StrCat("SumOfSquares: `enabled` must be a scalar. "
                                 "Received: enabled.shape=",
                                 enabled.shape().DebugString())));
    tensorflow::Tensor* sum = nullptr;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(0, tensorflow::TensorShape({}), &sum));
    const bool read = enabled.scalar<bool>()() && x.NumElements() != 0;
    OP_REQUIRES_OK(ctx, read ? Run(ctx, x, sum) : SetZero(ctx, sum));
  }

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx,
                           const tensorflow::Tensor& x,
                           tensorflow::Tensor* sum) = 0;
  virtual absl::Status SetZero(tensorflow::OpKernelContext* ctx,
                               tensorflow::Tensor* sum) = 0;
};

}  // namespace comet

#endif  // COMET_TENSORFLOW_REDUCE_KERNELS_H_

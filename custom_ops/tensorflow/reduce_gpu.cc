// SPDX-License-Identifier: Apache-2.0
// GPU kernels of the reductions.

#include "custom_ops/cuda/launchers.h"
#include "custom_ops/tensorflow/gpu_util.h"

namespace comet {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// `enabled` stays in device memory, where its variable is: fetching it would
// make every step wait for the device.
class SumOfSquaresGpuOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& enabled = ctx->input(1);
    OP_REQUIRES(ctx, enabled.dims() == 0,
                absl::InvalidArgumentError(
                    absl::StrCat("SumOfSquares: `enabled` must be a scalar. "
                                 "Received: enabled.shape=",
                                 enabled.shape().DebugString())));
    Tensor* sum = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &sum));
    Tensor workspace;
    OP_REQUIRES_OK(
        ctx,
        AllocateWorkspace(ctx, cuda::SumOfSquaresWorkspaceBytes(), &workspace));
    const int error = cuda::LaunchSumOfSquares(
        StreamOf(ctx), DTypeOf(x), Data(x), x.NumElements(),
        static_cast<const bool*>(Data(enabled)), MutableData(&workspace),
        static_cast<float*>(MutableData(sum)));
    OP_REQUIRES_OK(ctx, LaunchStatus("SumOfSquares", error));
  }
};

COMET_REGISTER_GPU(Name("Comet>SumOfSquares"), SumOfSquaresGpuOp);

}  // namespace
}  // namespace comet

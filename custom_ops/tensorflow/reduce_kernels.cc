// SPDX-License-Identifier: Apache-2.0
// CPU kernels of the reductions.

#include "custom_ops/tensorflow/reduce_kernels.h"

#include "custom_ops/cpu/reduce.h"
#include "custom_ops/tensorflow/kernel_util.h"

namespace comet {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename T>
class SumOfSquaresCpuOp : public SumOfSquaresOp {
  using SumOfSquaresOp::SumOfSquaresOp;

  absl::Status Run(OpKernelContext* ctx, const Tensor& x,
                   Tensor* sum) override {
    sum->scalar<float>()() = static_cast<float>(
        SumOfSquares(Elements<T>(x), x.NumElements(), ThreadsOf(ctx)));
    return absl::OkStatus();
  }

  absl::Status SetZero(OpKernelContext* ctx, Tensor* sum) override {
    sum->scalar<float>()() = 0;
    return absl::OkStatus();
  }
};

COMET_REGISTER_CPU("Comet>SumOfSquares", SumOfSquaresCpuOp);

}  // namespace
}  // namespace comet

// SPDX-License-Identifier: Apache-2.0
// CPU kernels of the pooling ops.

#include "custom_ops/tensorflow/pooling_kernels.h"

#include "custom_ops/cpu/pooling.h"
#include "custom_ops/tensorflow/kernel_util.h"

namespace comet {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename T>
class PackPoolPositionsCpuOp : public PackPoolPositionsOp {
  using PackPoolPositionsOp::PackPoolPositionsOp;

  absl::Status Run(OpKernelContext* ctx, const PoolGeometry& geometry,
                   const Tensor& x, Tensor* positions) override {
    PackPoolPositions(geometry, Elements<T>(x), ThreadsOf(ctx),
                      positions->flat<uint8_t>().data());
    return absl::OkStatus();
  }
};

template <typename T>
class PoolGradientCpuOp : public PoolGradientOp {
  using PoolGradientOp::PoolGradientOp;

  absl::Status Run(OpKernelContext* ctx, const PoolGeometry& geometry,
                   const Tensor& positions, const Tensor& dy,
                   Tensor* dx) override {
    PoolGradient(geometry, positions.flat<uint8_t>().data(), Elements<T>(dy),
                 ThreadsOf(ctx), MutableElements<T>(dx));
    return absl::OkStatus();
  }
};

COMET_REGISTER_CPU("Comet>PackPoolPositions", PackPoolPositionsCpuOp);
COMET_REGISTER_CPU("Comet>PoolGradient", PoolGradientCpuOp);

}  // namespace
}  // namespace comet

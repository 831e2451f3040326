// SPDX-License-Identifier: Apache-2.0
// GPU kernels of the pooling ops.

#include "custom_ops/cuda/launchers.h"
#include "custom_ops/tensorflow/gpu_util.h"
#include "custom_ops/tensorflow/pooling_kernels.h"

namespace comet {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

cuda::PoolShape ShapeOf(const PoolGeometry& geometry) {
  cuda::PoolShape shape = {};
  shape.batch = geometry.batch;
  shape.channels = geometry.channels;
  for (size_t d = 0; d < 3; ++d) {
    shape.input[d] = geometry.input[d];
    shape.output[d] = geometry.output[d];
    shape.window[d] = geometry.window[d];
    shape.strides[d] = geometry.strides[d];
    shape.padding[d] = geometry.padding[d];
  }
  return shape;
}

class PackPoolPositionsGpuOp : public PackPoolPositionsOp {
  using PackPoolPositionsOp::PackPoolPositionsOp;

  absl::Status Run(OpKernelContext* ctx, const PoolGeometry& geometry,
                   const Tensor& x, Tensor* positions) override {
    return LaunchStatus(
        "PackPoolPositions",
        cuda::LaunchPackPoolPositions(
            StreamOf(ctx), DTypeOf(x), ShapeOf(geometry), Data(x),
            static_cast<uint8_t*>(MutableData(positions))));
  }
};

class PoolGradientGpuOp : public PoolGradientOp {
  using PoolGradientOp::PoolGradientOp;

  absl::Status Run(OpKernelContext* ctx, const PoolGeometry& geometry,
                   const Tensor& positions, const Tensor& dy,
                   Tensor* dx) override {
    return LaunchStatus(
        "PoolGradient",
        cuda::LaunchPoolGradient(StreamOf(ctx), DTypeOf(dy), ShapeOf(geometry),
                                 static_cast<const uint8_t*>(Data(positions)),
                                 Data(dy), MutableData(dx)));
  }
};

COMET_REGISTER_GPU(Name("Comet>PackPoolPositions"), PackPoolPositionsGpuOp);
COMET_REGISTER_GPU(Name("Comet>PoolGradient").HostMemory("input_shape"),
                   PoolGradientGpuOp);

}  // namespace
}  // namespace comet

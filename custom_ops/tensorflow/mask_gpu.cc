// SPDX-License-Identifier: Apache-2.0
// GPU kernels of the mask ops.

#include "custom_ops/cuda/launchers.h"
#include "custom_ops/tensorflow/gpu_util.h"
#include "custom_ops/tensorflow/mask_kernels.h"

namespace comet {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class PackMaskGpuOp : public PackMaskOp {
  using PackMaskOp::PackMaskOp;

  absl::Status Run(OpKernelContext* ctx, const Tensor& x,
                   Tensor* mask) override {
    return LaunchStatus(
        "PackMask",
        cuda::LaunchPackMask(StreamOf(ctx), DTypeOf(x), Data(x),
                             x.NumElements(), lower_, upper_,
                             static_cast<uint8_t*>(MutableData(mask))));
  }
};

class MaskGradientGpuOp : public MaskGradientOp {
  using MaskGradientOp::MaskGradientOp;

  absl::Status Run(OpKernelContext* ctx, const Tensor& mask, const Tensor& dy,
                   Tensor* dx) override {
    return LaunchStatus(
        "MaskGradient",
        cuda::LaunchMaskGradient(
            StreamOf(ctx), DTypeOf(dy), static_cast<const uint8_t*>(Data(mask)),
            Data(dy), dy.NumElements(), negative_slope_, MutableData(dx)));
  }
};

COMET_REGISTER_GPU(Name("Comet>PackMask"), PackMaskGpuOp);
COMET_REGISTER_GPU(Name("Comet>MaskGradient"), MaskGradientGpuOp);

}  // namespace
}  // namespace comet

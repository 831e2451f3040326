// SPDX-License-Identifier: Apache-2.0
// CPU kernels of the mask ops.

#include "custom_ops/tensorflow/mask_kernels.h"

#include "custom_ops/tensorflow/kernel_util.h"

namespace comet {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename T>
class PackMaskCpuOp : public PackMaskOp {
  using PackMaskOp::PackMaskOp;

  absl::Status Run(OpKernelContext* ctx, const Tensor& x,
                   Tensor* mask) override {
    PackMask(Elements<T>(x), x.NumElements(), lower_, upper_, ThreadsOf(ctx),
             mask->flat<uint8_t>().data());
    return absl::OkStatus();
  }
};

template <typename T>
class MaskGradientCpuOp : public MaskGradientOp {
  using MaskGradientOp::MaskGradientOp;

  absl::Status Run(OpKernelContext* ctx, const Tensor& mask, const Tensor& dy,
                   Tensor* dx) override {
    MaskGradient(mask.flat<uint8_t>().data(), Elements<T>(dy), dy.NumElements(),
                 negative_slope_, ThreadsOf(ctx), MutableElements<T>(dx));
    return absl::OkStatus();
  }
};

COMET_REGISTER_CPU("Comet>PackMask", PackMaskCpuOp);
COMET_REGISTER_CPU("Comet>MaskGradient", MaskGradientCpuOp);

}  // namespace
}  // namespace comet

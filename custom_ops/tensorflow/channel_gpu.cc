// SPDX-License-Identifier: Apache-2.0
// GPU kernels of the ops on channels.

#include "custom_ops/cuda/launchers.h"
#include "custom_ops/tensorflow/channel_kernels.h"
#include "custom_ops/tensorflow/gpu_util.h"

namespace comet {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

const float* Floats(const Tensor& tensor) {
  return static_cast<const float*>(Data(tensor));
}

class ChannelSumsGpuOp : public ChannelSumsOp {
  using ChannelSumsOp::ChannelSumsOp;

  absl::Status Run(OpKernelContext* ctx, const Tensor& dy, const Tensor& x,
                   int64_t rows, int64_t channels, Tensor* sums,
                   Tensor* products) override {
    Tensor workspace;
    const absl::Status allocated = AllocateWorkspace(
        ctx, cuda::ChannelSumsWorkspaceBytes(rows, channels), &workspace);
    if (!allocated.ok()) return allocated;
    return LaunchStatus(
        "ChannelSums",
        cuda::LaunchChannelSums(StreamOf(ctx), Floats(dy), Floats(x), rows,
                                channels, MutableData(&workspace),
                                static_cast<float*>(MutableData(sums)),
                                static_cast<float*>(MutableData(products))));
  }
};

class ChannelLineGpuOp : public ChannelLineOp {
  using ChannelLineOp::ChannelLineOp;

  absl::Status Run(OpKernelContext* ctx, const Tensor& x, const Tensor* z,
                   const Tensor& slope, const Tensor& other,
                   const Tensor& offset, int64_t rows, int64_t channels,
                   Tensor* y) override {
    return LaunchStatus(
        "ChannelLine",
        cuda::LaunchChannelLine(StreamOf(ctx), Floats(x), Floats(slope),
                                z == nullptr ? nullptr : Floats(*z),
                                Floats(other), Floats(offset), rows, channels,
                                static_cast<float*>(MutableData(y))));
  }
};

REGISTER_KERNEL_BUILDER(
    Name("Comet>ChannelSums").Device(tensorflow::DEVICE_GPU), ChannelSumsGpuOp);
REGISTER_KERNEL_BUILDER(
    Name("Comet>ChannelLine").Device(tensorflow::DEVICE_GPU), ChannelLineGpuOp);

}  // namespace
}  // namespace comet

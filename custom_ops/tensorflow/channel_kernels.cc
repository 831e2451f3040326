// SPDX-License-Identifier: Apache-2.0
// CPU kernels of the ops on channels.

#include "custom_ops/tensorflow/channel_kernels.h"

#include "custom_ops/cpu/channels.h"
#include "custom_ops/tensorflow/kernel_util.h"

namespace comet {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class ChannelSumsCpuOp : public ChannelSumsOp {
  using ChannelSumsOp::ChannelSumsOp;

  absl::Status Run(OpKernelContext* ctx, const Tensor& dy, const Tensor& x,
                   int64_t rows, int64_t channels, Tensor* sums,
                   Tensor* products) override {
    ChannelSums(Elements<float>(dy), Elements<float>(x), rows, channels,
                ThreadsOf(ctx), MutableElements<float>(sums),
                MutableElements<float>(products));
    return absl::OkStatus();
  }
};

class ChannelLineCpuOp : public ChannelLineOp {
  using ChannelLineOp::ChannelLineOp;

  absl::Status Run(OpKernelContext* ctx, const Tensor& x, const Tensor* z,
                   const Tensor& slope, const Tensor& other,
                   const Tensor& offset, int64_t rows, int64_t channels,
                   Tensor* y) override {
    ChannelLine(
        {Elements<float>(x), Elements<float>(slope)},
        {z == nullptr ? nullptr : Elements<float>(*z), Elements<float>(other)},
        Elements<float>(offset), rows, channels, ThreadsOf(ctx),
        MutableElements<float>(y));
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(
    Name("Comet>ChannelSums").Device(tensorflow::DEVICE_CPU), ChannelSumsCpuOp);
REGISTER_KERNEL_BUILDER(
    Name("Comet>ChannelLine").Device(tensorflow::DEVICE_CPU), ChannelLineCpuOp);

}  // namespace
}  // namespace comet

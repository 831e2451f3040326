// SPDX-License-Identifier: Apache-2.0
// Kernels of the memory statistics, for every device: they only ask the
// device's allocator.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace comet {
namespace {

using tensorflow::Allocator;
using tensorflow::AllocatorAttributes;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// TensorFlow counts CPU memory only when asked to, and only what is allocated
// from then on; so ask as soon as the library is loaded.
const bool kCpuStatisticsEnabled = [] {
  tensorflow::EnableCPUAllocatorStats();
  return true;
}();

Allocator* DeviceAllocator(OpKernelContext* ctx) {
  return ctx->device()->GetAllocator(AllocatorAttributes());
}

absl::Status NoStatistics(Allocator* allocator) {
  return absl::UnimplementedError(absl::StrCat(
      "The allocator '", allocator->Name(),
      "' of this device keeps no memory statistics. On a CPU unset "
      "TF_CPU_ALLOCATOR_USE_BFC; on a GPU use TensorFlow's default allocator "
      "(unset TF_GPU_ALLOCATOR)."));
}

class MemoryStatsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Allocator* allocator = DeviceAllocator(ctx);
    const auto stats = allocator->GetStats();
    OP_REQUIRES(ctx, stats.has_value(), NoStatistics(allocator));
    Tensor* statistics = nullptr;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(0, TensorShape({2}), &statistics));
    statistics->flat<int64_t>()(0) = stats->bytes_in_use;
    statistics->flat<int64_t>()(1) = stats->peak_bytes_in_use;
  }
};

class ResetPeakMemoryOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Allocator* allocator = DeviceAllocator(ctx);
    OP_REQUIRES(ctx, allocator->ClearStats(), NoStatistics(allocator));
  }
};

REGISTER_KERNEL_BUILDER(
    Name("Comet>MemoryStats").Device(tensorflow::DEVICE_CPU), MemoryStatsOp);
REGISTER_KERNEL_BUILDER(
    Name("Comet>ResetPeakMemory").Device(tensorflow::DEVICE_CPU),
    ResetPeakMemoryOp);
REGISTER_KERNEL_BUILDER(Name("Comet>MemoryStats")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("statistics"),
                        MemoryStatsOp);
REGISTER_KERNEL_BUILDER(
    Name("Comet>ResetPeakMemory").Device(tensorflow::DEVICE_GPU),
    ResetPeakMemoryOp);

}  // namespace
}  // namespace comet

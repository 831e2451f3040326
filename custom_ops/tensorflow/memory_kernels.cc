// SPDX-License-Identifier: Apache-2.0
// Kernels of the memory statistics, for every device: they only ask the
// device's allocator.

#include <atomic>
#include <cstddef>
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

// TensorFlow's plain CPU allocator (in use when oneDNN is off) counts
// allocations but takes every one for zero bytes, so its statistics read as
// zeros. Only a block that we hold ourselves tells the two kinds apart; a large
// one, since oneDNN's allocator counts none under 256 KiB. Done once an
// allocator; the next calls find it known.
absl::Status CheckCountsBytes(Allocator* allocator) {
  static std::atomic<Allocator*> known_to_count{nullptr};
  if (known_to_count.load(std::memory_order_relaxed) == allocator) {
    return absl::OkStatus();
  }
  constexpr size_t kProbeBytes = 1 << 20;
  void* probe =
      allocator->AllocateRaw(Allocator::kAllocatorAlignment, kProbeBytes);
  const auto stats = allocator->GetStats();
  if (probe != nullptr) allocator->DeallocateRaw(probe);
  if (!stats.has_value() ||
      stats->bytes_in_use < static_cast<int64_t>(kProbeBytes)) {
    return absl::UnimplementedError(absl::StrCat(
        "The allocator '", allocator->Name(),
        "' of this device does not count the bytes it hands out. On a CPU "
        "that is so with TF_ENABLE_ONEDNN_OPTS=0: start the process with "
        "TF_CPU_ALLOCATOR_USE_BFC=1 as well, or leave oneDNN on. On a GPU use "
        "TensorFlow's default allocator (unset TF_GPU_ALLOCATOR)."));
  }
  known_to_count.store(allocator, std::memory_order_relaxed);
  return absl::OkStatus();
}

class MemoryStatsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Allocator* allocator = DeviceAllocator(ctx);
    OP_REQUIRES_OK(ctx, CheckCountsBytes(allocator));
    const auto stats = allocator->GetStats();
    OP_REQUIRES(ctx, stats.has_value(),
                absl::UnimplementedError("The allocator lost its statistics."));
    Tensor* statistics = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({2}), &statistics));
    statistics->flat<int64_t>()(0) = stats->bytes_in_use;
    statistics->flat<int64_t>()(1) = stats->peak_bytes_in_use;
  }
};

class ResetPeakMemoryOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Allocator* allocator = DeviceAllocator(ctx);
    OP_REQUIRES_OK(ctx, CheckCountsBytes(allocator));
    OP_REQUIRES(ctx, allocator->ClearStats(),
                absl::UnimplementedError(
                    absl::StrCat("The allocator '", allocator->Name(),
                                 "' of this device cannot reset its peak.")));
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

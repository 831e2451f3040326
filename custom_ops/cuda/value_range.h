// SPDX-License-Identifier: Apache-2.0
// The range of a tensor's finite values, by blocks of threads.
#ifndef COMET_CUDA_VALUE_RANGE_H_
#define COMET_CUDA_VALUE_RANGE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cuda/launch.h"
#include "custom_ops/cuda/tile.h"
#include "custom_ops/cuda/warp.h"

namespace comet {
namespace cuda {

constexpr int kRangeBlocks = 1024;

struct FloatRange {
  float low;
  float high;
};

__device__ inline void Include(float x, FloatRange* range) {
  if ((FloatBits(x) & 0x7FFFFFFFu) >= 0x7F800000u) return;
  if (x < range->low) range->low = x;
  if (x > range->high) range->high = x;
}

// The union of all threads' ranges, in thread 0.
__device__ inline FloatRange BlockRange(FloatRange range) {
  struct Warps {
    FloatRange ranges[kLanes];
  };
  COMET_SHARED(Warps, shared);
  for (int step = kLanes / 2; step > 0; step /= 2) {
    const float low = __shfl_xor_sync(kAllLanes, range.low, step);
    const float high = __shfl_xor_sync(kAllLanes, range.high, step);
    if (low < range.low) range.low = low;
    if (high > range.high) range.high = high;
  }
  if (LaneIndex() == 0) shared.ranges[threadIdx.x / kLanes] = range;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned w = 1; w < blockDim.x / kLanes; ++w) {
      const FloatRange other = shared.ranges[w];
      if (other.low < range.low) range.low = other.low;
      if (other.high > range.high) range.high = other.high;
    }
  }
  return range;
}

__device__ inline FloatRange EmptyRange() {
  return {FloatFromBits(0x7F800000u), FloatFromBits(0xFF800000u)};
}

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    RangeKernel(const Storage<kType>* x, int64_t n, const bool* relative,
                FloatRange* ranges) {
  if (!*relative) return;
  FloatRange range = EmptyRange();
  const int64_t stride = int64_t{gridDim.x} * kThreads;
#pragma unroll 8
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n;
       i += stride) {
    Include(ToFloat<kType>(x[i]), &range);
  }
  range = BlockRange(range);
  if (threadIdx.x == 0) ranges[blockIdx.x] = range;
}

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_VALUE_RANGE_H_

// SPDX-License-Identifier: Apache-2.0
// The sum of squares of a tensor, in double precision. A fixed number of
// partial sums, so that one device gives one result.

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/cuda/launch.h"
#include "custom_ops/cuda/launchers.h"
#include "custom_ops/cuda/tile.h"
#include "custom_ops/cuda/warp.h"

namespace comet {
namespace cuda {
namespace {

constexpr int kMostPartials = 2048;

// Of all threads, in thread 0. The order of additions is fixed.
__device__ inline double BlockSum(double sum) {
  struct Warps {
    double sums[kWarpsPerBlock];
  };
  COMET_SHARED(Warps, shared);
  for (int step = kLanes / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, step);
  }
  if (LaneIndex() == 0) shared.sums[threadIdx.x / kLanes] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    sum = 0;
    for (int w = 0; w < kWarpsPerBlock; ++w) sum += shared.sums[w];
  }
  return sum;
}

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    PartialSumsKernel(const Storage<kType>* x, int64_t n, const bool* enabled,
                      double* partials) {
  if (!*enabled) return;
  double sum = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
#pragma unroll 8
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n;
       i += stride) {
    const double value = ToFloat<kType>(x[i]);
    sum += value * value;
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    TotalKernel(const double* partials, int count, const bool* enabled,
                float* total) {
  double sum = 0;
  if (*enabled) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      sum += partials[i];
    }
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) *total = static_cast<float>(sum);
}

template <DType kType>
int PartialSums(void* stream, const void* x, int64_t n, const bool* enabled,
                int64_t blocks, double* partials) {
  return Launch(stream, blocks, kThreads, &PartialSumsKernel<kType>,
                static_cast<const Storage<kType>*>(x), n, enabled, partials);
}

int PartialSumsOfType(void* stream, DType dtype, const void* x, int64_t n,
                      const bool* enabled, int64_t blocks, double* partials) {
  switch (dtype) {
    case DType::kFloat32:
      return PartialSums<DType::kFloat32>(stream, x, n, enabled, blocks,
                                          partials);
    case DType::kFloat16:
      return PartialSums<DType::kFloat16>(stream, x, n, enabled, blocks,
                                          partials);
    default:
      return PartialSums<DType::kBFloat16>(stream, x, n, enabled, blocks,
                                           partials);
  }
}

}  // namespace

size_t SumOfSquaresWorkspaceBytes() { return kMostPartials * sizeof(double); }

int LaunchSumOfSquares(void* stream, DType dtype, const void* x, int64_t n,
                       const bool* enabled, void* workspace, float* sum) {
  int64_t blocks = LoopBlocks(n, 8 * kThreads);
  if (blocks > kMostPartials) blocks = kMostPartials;
  auto* partials = static_cast<double*>(workspace);
  const int error =
      PartialSumsOfType(stream, dtype, x, n, enabled, blocks, partials);
  if (error != 0) return error;
  return Launch(stream, 1, kThreads, &TotalKernel, partials,
                static_cast<int>(blocks), enabled, sum);
}

}  // namespace cuda
}  // namespace comet

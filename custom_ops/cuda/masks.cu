// SPDX-License-Identifier: Apache-2.0
// Packed masks: one bit an element, made by ballots and read 32 at a time.

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cuda/element.h"
#include "custom_ops/cuda/launch.h"
#include "custom_ops/cuda/launchers.h"
#include "custom_ops/cuda/tile.h"
#include "custom_ops/cuda/warp.h"

namespace comet {
namespace cuda {
namespace {

// Elements of a warp's turn: a word of the mask for each lane.
constexpr int kTurn = kLanes * kLanes;
constexpr uint32_t kInfinityBits = 0x7F800000u;

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    PackMaskKernel(const Storage<kType>* x, int64_t n, float lower, float upper,
                   bool limited, uint8_t* mask) {
  const int lane = LaneIndex();
  const int64_t warps = int64_t{gridDim.x} * kWarpsPerBlock;
  for (int64_t first =
           (int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kLanes) *
           kTurn;
       first < n; first += warps * kTurn) {
    uint32_t own = 0;
#pragma unroll 8
    for (int k = 0; k < kLanes; ++k) {
      const int64_t i = first + k * kLanes + lane;
      const float value = i < n ? ToFloat<kType>(x[i]) : lower;
      const uint32_t word = __ballot_sync(
          kAllLanes, value > lower && (!limited || value < upper));
      if (lane == k) own = word;
    }
    const int64_t at = first / 8 + 4 * lane;
    const int64_t bytes = (n + 7) / 8;
    if (at + 4 <= bytes) {
      *reinterpret_cast<uint32_t*>(mask + at) = own;
    } else {
      for (int k = 0; at + k < bytes; ++k) {
        mask[at + k] = static_cast<uint8_t>(own >> (8 * k));
      }
    }
  }
}

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    MaskGradientKernel(const uint8_t* mask, const Storage<kType>* dy, int64_t n,
                       float slope, Storage<kType>* dx) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n;
       i += stride) {
    // 8 lanes read the same byte, which costs the memory system one access.
    const bool pass = (mask[i / 8] >> (i % 8) & 1) != 0;
    const Storage<kType> value = dy[i];
    dx[i] = pass ? value : ScaleElement<kType>(value, slope);
  }
}

template <DType kType>
int PackMask(void* stream, const void* x, int64_t n, float lower, float upper,
             uint8_t* mask) {
  const bool limited = FloatBits(upper) != kInfinityBits;
  return Launch(stream, LoopBlocks(n, kWarpsPerBlock * kTurn), kThreads,
                &PackMaskKernel<kType>, static_cast<const Storage<kType>*>(x),
                n, lower, upper, limited, mask);
}

template <DType kType>
int MaskGradient(void* stream, const uint8_t* mask, const void* dy, int64_t n,
                 float slope, void* dx) {
  return Launch(stream, LoopBlocks(n, 4 * kThreads), kThreads,
                &MaskGradientKernel<kType>, mask,
                static_cast<const Storage<kType>*>(dy), n, slope,
                static_cast<Storage<kType>*>(dx));
}

}  // namespace

int LaunchPackMask(void* stream, DType dtype, const void* x, int64_t n,
                   float lower, float upper, uint8_t* mask) {
  if (reinterpret_cast<uintptr_t>(mask) % 4 != 0) {
    return cudaErrorMisalignedAddress;
  }
  switch (dtype) {
    case DType::kFloat32:
      return PackMask<DType::kFloat32>(stream, x, n, lower, upper, mask);
    case DType::kFloat16:
      return PackMask<DType::kFloat16>(stream, x, n, lower, upper, mask);
    default:
      return PackMask<DType::kBFloat16>(stream, x, n, lower, upper, mask);
  }
}

int LaunchMaskGradient(void* stream, DType dtype, const uint8_t* mask,
                       const void* dy, int64_t n, float slope, void* dx) {
  switch (dtype) {
    case DType::kFloat32:
      return MaskGradient<DType::kFloat32>(stream, mask, dy, n, slope, dx);
    case DType::kFloat16:
      return MaskGradient<DType::kFloat16>(stream, mask, dy, n, slope, dx);
    default:
      return MaskGradient<DType::kBFloat16>(stream, mask, dy, n, slope, dx);
  }
}

}  // namespace cuda
}  // namespace comet

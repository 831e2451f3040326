// SPDX-License-Identifier: Apache-2.0
// What a warp does with a block of 8 rows by 32 lanes: scans over the lanes,
// and bit planes of the 8 values that each lane holds.
#ifndef COMET_CUDA_WARP_H_
#define COMET_CUDA_WARP_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/format.h"

namespace comet {
namespace cuda {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ inline int LaneIndex() {
  return static_cast<int>(threadIdx.x % kLanes);
}

// Bits of the lanes below this one.
__device__ inline uint32_t LanesBelow(int lane) { return (1u << lane) - 1u; }

// Sums over the lanes before this one, right in the first `count` lanes.
__device__ inline uint32_t ExclusiveSum(uint32_t value, int lane, int count) {
  uint32_t sum = value;
  for (int step = 1; step < count; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  return sum - value;
}

// Sum over this lane and the lanes above it, which from `count` on are zero.
__device__ inline uint32_t SuffixSum(uint32_t value, int lane, int count) {
  uint32_t sum = value;
  for (int step = 1; step < count; step *= 2) {
    const uint32_t other = __shfl_down_sync(kAllLanes, sum, step);
    if (lane + step < kLanes) sum += other;
  }
  return sum;
}

__device__ inline uint64_t WarpSum(uint64_t value) {
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, step);
  }
  return value;
}

__device__ inline int BitLengthOf(uint32_t v) {
  return 32 - __clz(static_cast<int>(v));
}

// One bit for each of the four bytes of `v` that is not zero.
__device__ inline uint32_t NonzeroBytes(uint32_t v) {
  v |= v >> 4;
  v |= v >> 2;
  v |= v >> 1;
  v &= 0x01010101u;
  // Gathers bits 0, 8, 16, 24 in bits 24..27.
  return (v * 0x01020408u) >> 24 & 15u;
}

// A lane's byte of each of 8 planes: bit r of byte p is bit p of row r's value.
// Before the transposition: byte r is row r's value.
struct Bytes8 {
  uint32_t low;
  uint32_t high;
};

__device__ inline uint32_t ByteOf(const Bytes8& b, int index) {
  return ((index & 4) != 0 ? b.high : b.low) >> (8 * (index & 3)) & 255u;
}

__device__ inline void SetByte(Bytes8* b, int index, uint32_t value) {
  const uint32_t shifted = value << (8 * (index & 3));
  if ((index & 4) != 0) {
    b->high |= shifted;
  } else {
    b->low |= shifted;
  }
}

// Transposes the 8 x 8 bits by swapping ever larger squares (H. S. Warren,
// Hacker's Delight, section 7-3). Its own inverse.
__device__ inline Bytes8 Transpose(Bytes8 b) {
  uint32_t t = (b.low ^ (b.low >> 7)) & 0x00AA00AAu;
  b.low ^= t ^ (t << 7);
  t = (b.high ^ (b.high >> 7)) & 0x00AA00AAu;
  b.high ^= t ^ (t << 7);
  t = (b.low ^ (b.low >> 14)) & 0x0000CCCCu;
  b.low ^= t ^ (t << 14);
  t = (b.high ^ (b.high >> 14)) & 0x0000CCCCu;
  b.high ^= t ^ (t << 14);
  t = (b.low ^ (b.high << 4)) & 0xF0F0F0F0u;
  b.low ^= t;
  b.high ^= t >> 4;
  return b;
}

// Planes 8 * group and up of the lane's 8 values.
__device__ inline Bytes8 PlanesOf(const uint32_t values[kBlockRows],
                                  int group) {
  const unsigned pick = static_cast<unsigned>(group | (group + 4) << 4);
  const uint32_t v01 = __byte_perm(values[0], values[1], pick);
  const uint32_t v23 = __byte_perm(values[2], values[3], pick);
  const uint32_t v45 = __byte_perm(values[4], values[5], pick);
  const uint32_t v67 = __byte_perm(values[6], values[7], pick);
  return Transpose(
      {__byte_perm(v01, v23, 0x5410), __byte_perm(v45, v67, 0x5410)});
}

// Adds planes 8 * group and up to the lane's 8 values.
__device__ inline void AddPlanes(Bytes8 planes, int group,
                                 uint32_t values[kBlockRows]) {
  const Bytes8 rows = Transpose(planes);
  for (int r = 0; r < kBlockRows; ++r) {
    values[r] |= ByteOf(rows, r) << (8 * group);
  }
}

// Moves the bits that `mask` selects to the bottom of a byte, or back; all
// bytes of a word at once (Hacker's Delight, section 7-4, for 8 bits).
class ByteCompressor {
 public:
  __device__ explicit ByteCompressor(uint32_t mask) : mask_(Spread(mask)) {
    uint32_t left = mask;
    uint32_t zeros = ~mask << 1 & 255u;
    for (int i = 0; i < 3; ++i) {
      uint32_t parity = zeros ^ zeros << 1;
      parity ^= parity << 2;
      parity = (parity ^ parity << 4) & 255u;
      const uint32_t move = parity & left;
      moves_[i] = Spread(move);
      left = (left ^ move) | move >> (1 << i);
      zeros &= ~parity;
    }
  }

  __device__ uint32_t Compress(uint32_t word) const {
    word &= mask_;
    for (int i = 0; i < 3; ++i) {
      const uint32_t t = word & moves_[i];
      word = (word ^ t) | t >> (1 << i);
    }
    return word;
  }

  __device__ uint32_t Expand(uint32_t word) const {
    for (int i = 2; i >= 0; --i) {
      word = (word & ~moves_[i]) | (word << (1 << i) & moves_[i]);
    }
    return word & mask_;
  }

 private:
  __device__ static uint32_t Spread(uint32_t byte) {
    return byte * 0x01010101u;
  }

  uint32_t mask_;
  uint32_t moves_[3];
};

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_WARP_H_

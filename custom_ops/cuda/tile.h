// SPDX-License-Identifier: Apache-2.0
// Where a lane's elements of a tile lie, and how they are read and written.
#ifndef COMET_CUDA_TILE_H_
#define COMET_CUDA_TILE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cuda/warp.h"

namespace comet {
namespace cuda {

constexpr int kWarpsPerBlock = 8;
constexpr int kThreads = kWarpsPerBlock * kLanes;

// The type that holds an element's bits.
template <DType kType>
struct StorageOf {
  using Type = uint16_t;
};
template <>
struct StorageOf<DType::kFloat32> {
  using Type = uint32_t;
};
template <DType kType>
using Storage = typename StorageOf<kType>::Type;

template <DType kType>
__device__ inline float ToFloat(Storage<kType> bits) {
  if constexpr (kType == DType::kFloat32) {
    return FloatFromBits(bits);
  } else {
    return WidenElement<kType>(bits);
  }
}

template <DType kType>
__device__ inline Storage<kType> FromFloat(float y, Rounding rounding) {
  if constexpr (kType == DType::kFloat32) {
    return FloatBits(y);
  } else {
    return NarrowElement<kType>(y, rounding);
  }
}

// One lane's column of a tile.
struct Column {
  int64_t first;  // flat index of the element in the tile's first row
  int64_t row_length;
  int rows;    // that are present, 0..128; absent ones follow present ones
  int blocks;  // of the tile, the same for all lanes
  bool whole;  // nothing of the tile is absent in any lane

  // Bit r is set if row r of the block is present.
  __device__ uint32_t Present(int block) const {
    const int left = rows - block * kBlockRows;
    return left >= kBlockRows ? 255u : (left <= 0 ? 0u : (1u << left) - 1u);
  }
};

__device__ inline Column ColumnOf(const Geometry& g, int64_t tile, int lane) {
  const int64_t band = tile / g.strips;
  const int64_t column = (tile - band * g.strips) * kLanes + lane;
  const int64_t first_row = band * kTileRows;
  Column c;
  c.row_length = g.row_length;
  c.first = first_row * g.row_length + column;
  c.blocks = BandBlocks(g, band);
  const int64_t whole_rows = g.n / g.row_length;
  const int64_t rest = g.n - whole_rows * g.row_length;
  const int64_t rows = column < g.row_length
                           ? whole_rows + (column < rest ? 1 : 0) - first_row
                           : 0;
  c.rows =
      rows < 0 ? 0 : (rows < kTileRows ? static_cast<int>(rows) : kTileRows);
  c.whole = __all_sync(kAllLanes, c.rows == kBlockRows * c.blocks) != 0;
  return c;
}

// Reads the lane's 8 elements of a block; absent ones read as zero.
template <typename T>
__device__ inline void LoadBlock(const T* x, const Column& column, int block,
                                 T values[kBlockRows]) {
  const int row = block * kBlockRows;
  const T* p = x + column.first + row * column.row_length;
  if (column.whole) {
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) values[r] = p[r * column.row_length];
    return;
  }
#pragma unroll
  for (int r = 0; r < kBlockRows; ++r) {
    values[r] = row + r < column.rows ? p[r * column.row_length] : T{0};
  }
}

template <typename T>
__device__ inline void StoreBlock(T* out, const Column& column, int block,
                                  const T values[kBlockRows]) {
  const int row = block * kBlockRows;
  T* p = out + column.first + row * column.row_length;
  if (column.whole) {
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) p[r * column.row_length] = values[r];
    return;
  }
#pragma unroll
  for (int r = 0; r < kBlockRows; ++r) {
    if (row + r < column.rows) p[r * column.row_length] = values[r];
  }
}

// The dither of a tile. Each lane keeps its own key and those of four rows.
class DitherKeys {
 public:
  __device__ DitherKeys(uint64_t mixed_seed, int64_t tile, int lane)
      : own_(DitherLane(
            static_cast<uint32_t>(DitherLaneKeys(mixed_seed, tile, lane / 4) >>
                                  (lane % 4 * 16)),
            lane)),
        low_(DitherRowKeys(mixed_seed, tile, lane)),
        high_(DitherRowKeys(mixed_seed, tile, lane + kLanes)) {}

  // The lane's offsets of the 8 rows of a block. All lanes call it together.
  __device__ void Offsets(int block, int32_t offsets[kBlockRows]) const {
#pragma unroll
    for (int half = 0; half < kBlockRows / 2; ++half) {
      const int pair = block * (kBlockRows / 2) + half;
      const uint64_t keys = pair < kLanes ? low_ : high_;
      const uint32_t even =
          __shfl_sync(kAllLanes, static_cast<uint32_t>(keys), pair % kLanes);
      const uint32_t odd = __shfl_sync(
          kAllLanes, static_cast<uint32_t>(keys >> 32), pair % kLanes);
      offsets[2 * half] = DitherOffset(even, own_);
      offsets[2 * half + 1] = DitherOffset(odd, own_);
    }
  }

 private:
  uint32_t own_;
  uint64_t low_;
  uint64_t high_;
};

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_TILE_H_

// SPDX-License-Identifier: Apache-2.0
// The bytes of a tile on their way in: a part of it in shared memory, loaded
// 16 bytes a lane, that slides along. Every byte is summed for the checksum.
#ifndef COMET_CUDA_WINDOW_H_
#define COMET_CUDA_WINDOW_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/checksum.h"
#include "custom_ops/codec/format.h"
#include "custom_ops/cuda/warp.h"

namespace comet {
namespace cuda {

constexpr int kWindowBytes = 2048;
// No block's payload is longer; with room for the alignment of the checksum.
constexpr int kWindowAhead = 4 * kBlockElements + 64;

struct WindowMemory {
  uint4 chunks[kWindowBytes / 16 + 1];
};

// Positions are bytes from the 16-byte boundary at or before the tile. All
// lanes of a warp call every function together, but for Byte() and Bits().
class Window {
 public:
  // The tile is data[offset, offset + size); `data` lies at a multiple of 16
  // and has at least 16 bytes after the tile.
  __device__ Window(WindowMemory* memory, const uint8_t* data, int64_t offset,
                    int size, int lane)
      : chunks_(memory->chunks),
        words_(reinterpret_cast<const uint32_t*>(memory->chunks)),
        bytes_(reinterpret_cast<const uint8_t*>(memory->chunks)),
        source_(reinterpret_cast<const uint4*>(data + (offset & ~int64_t{15}))),
        tile_start_(static_cast<int>(offset & 15)),
        tile_end_(tile_start_ + size),
        position_(tile_start_) {
    Load(lane);
  }

  // Makes the next kWindowAhead bytes readable, or what the tile has of them.
  __device__ void Ahead(int lane) {
    if (end_ < tile_end_ && position_ + kWindowAhead > end_) Load(lane);
  }

  // Whether the tile has `count` more bytes.
  __device__ bool Has(int count) const {
    return count <= tile_end_ - position_;
  }
  __device__ void Skip(int count) { position_ += count; }
  __device__ bool AtEnd() const { return position_ == tile_end_; }

  // A byte counted from the position.
  __device__ uint32_t Byte(int at) const {
    return bytes_[position_ + at - start_];
  }

  // 32 bits counted from the position.
  __device__ uint32_t Bits(int at) const {
    return BitsAt(8 * (position_ - start_) + at);
  }

  // The tile's checksum in every lane, when all of it has been loaded.
  __device__ uint64_t Checksum(int64_t tile) const {
    const auto size = static_cast<uint32_t>(tile_end_ - tile_start_);
    return TileChecksum(WarpSum(sum_) + size * kGolden64, tile);
  }

 private:
  __device__ uint32_t BitsAt(int bit) const {
    return __funnelshift_r(words_[bit / 32], words_[bit / 32 + 1], bit % 32);
  }

  __device__ void Load(int lane) {
    __syncwarp();
    start_ = position_ & ~15;
    const int end = (tile_end_ + 15) & ~15;
    end_ = start_ + kWindowBytes < end ? start_ + kWindowBytes : end;
    for (int i = lane; 16 * i < end_ - start_; i += kLanes) {
      chunks_[i] = source_[start_ / 16 + i];
    }
    __syncwarp();
    // Whole words of what is loaded; at the tile's end also the partial one.
    const int bytes = (end_ < tile_end_ ? end_ : tile_end_) - tile_start_;
    const int words = end_ < tile_end_ ? bytes / 4 : (bytes + 3) / 4;
    for (int i = summed_ + lane; i < words; i += kLanes) {
      uint32_t word = BitsAt(8 * (tile_start_ + 4 * i - start_));
      const int missing = 4 * (i + 1) - bytes;
      if (missing > 0) word &= 0xFFFFFFFFu >> (8 * missing);
      sum_ += ChecksumTerm(static_cast<uint32_t>(i), word);
    }
    summed_ = words;
  }

  uint4* chunks_;
  const uint32_t* words_;
  const uint8_t* bytes_;
  const uint4* source_;
  int tile_start_;
  int tile_end_;
  int position_;
  int start_ = 0;  // of the window, as end_
  int end_ = 0;
  int summed_ = 0;    // words of the tile, in all lanes
  uint64_t sum_ = 0;  // of this lane's words
};

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_WINDOW_H_

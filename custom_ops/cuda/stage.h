// SPDX-License-Identifier: Apache-2.0
// The bytes of a tile on their way out: gathered in shared memory, summed for
// the checksum, and copied to the stream in whole words.
#ifndef COMET_CUDA_STAGE_H_
#define COMET_CUDA_STAGE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/checksum.h"
#include "custom_ops/codec/format.h"
#include "custom_ops/cuda/warp.h"

namespace comet {
namespace cuda {

// Room for what is kept over, block headers and the largest payload.
constexpr int kStageBytes = 2048;
constexpr int kMaxPayloadBytes = 4 * kBlockElements;
constexpr int kStageSlackWords = 4;

struct StageMemory {
  uint32_t words[kStageBytes / 4 + kStageSlackWords];
};

// All lanes of a warp call every function together, but for SetByte().
class Stage {
 public:
  __device__ Stage(StageMemory* memory, uint8_t* out)
      : words_(memory->words),
        bytes_(reinterpret_cast<uint8_t*>(memory->words)),
        out_(out) {}

  // Sets a byte, counted from the end of what was written before. Between two
  // Advance() no byte is set twice.
  __device__ void SetByte(int at, uint8_t value) { bytes_[fill_ + at] = value; }

  // Zeroes the next bytes, for OrBits().
  __device__ void ClearBytes(int count, int lane) {
    for (int i = lane; i < count; i += kLanes) SetByte(i, 0);
    __syncwarp();
  }

  // Sets up to 8 bits, counted from the end of what was written before.
  __device__ void OrBits(int at, uint32_t bits) {
    const int bit = 8 * fill_ + at;
    const int shift = bit % 32;
    const uint64_t shifted = static_cast<uint64_t>(bits) << shift;
    const uint32_t low = static_cast<uint32_t>(shifted);
    const uint32_t high = static_cast<uint32_t>(shifted >> 32);
    if (low != 0) atomicOr(&words_[bit / 32], low);
    if (high != 0) atomicOr(&words_[bit / 32 + 1], high);
  }

  // Ends a piece of `count` bytes.
  __device__ void Advance(int count) {
    fill_ += count;
    __syncwarp();
  }

  // Makes room for a block's payload.
  __device__ void Reserve(int lane) {
    if (fill_ + kMaxPayloadBytes <= kStageBytes) return;
    const int count = fill_ & ~(4 * kLanes - 1);
    Copy(count, lane);
    const int left = (fill_ - count + 3) / 4;
    const uint32_t kept = lane < left ? words_[count / 4 + lane] : 0;
    __syncwarp();
    if (lane < left) words_[lane] = kept;
    copied_ += count;
    fill_ -= count;
    __syncwarp();
  }

  // Copies the rest. Returns the tile's checksum in every lane.
  __device__ uint64_t Finish(int64_t tile, int lane) {
    if (lane < 3) SetByte(lane, 0);  // the last word's missing bytes
    __syncwarp();
    Copy(fill_, lane);
    const uint32_t total = static_cast<uint32_t>(copied_ + fill_);
    return TileChecksum(WarpSum(sum_) + total * kGolden64, tile);
  }

 private:
  // Copies the first `count` bytes out and adds their words to the sum.
  __device__ void Copy(int count, int lane) {
    const uint32_t first_word = static_cast<uint32_t>(copied_) / 4;
    for (int i = lane; 4 * i < count; i += kLanes) {
      sum_ += ChecksumTerm(first_word + static_cast<uint32_t>(i), words_[i]);
    }
    uint8_t* to = out_ + copied_;
    const int misaligned =
        static_cast<int>((4 - (reinterpret_cast<uintptr_t>(to) & 3)) & 3);
    const int head = misaligned < count ? misaligned : count;
    if (lane < head) to[lane] = bytes_[lane];
    const int words = (count - head) / 4;
    auto* to_words = reinterpret_cast<uint32_t*>(to + head);
    for (int i = lane; i < words; i += kLanes) {
      to_words[i] = __funnelshift_r(words_[i], words_[i + 1], 8 * head);
    }
    const int tail = head + 4 * words;
    if (tail + lane < count) to[tail + lane] = bytes_[tail + lane];
  }

  uint32_t* words_;
  uint8_t* bytes_;
  uint8_t* out_;      // where the tile begins in the stream
  int fill_ = 0;      // bytes in the stage
  int copied_ = 0;    // bytes that have left it
  uint64_t sum_ = 0;  // of this lane's words
};

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_STAGE_H_

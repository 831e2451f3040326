// SPDX-License-Identifier: Apache-2.0
// Where encoded units wait until the size of the stream is known.
#ifndef COMET_CPU_CODEC_CHUNKS_H_
#define COMET_CPU_CODEC_CHUNKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "custom_ops/cpu/codec.h"

namespace comet {

// Blocks this small come from malloc in TensorFlow's CPU allocator. Larger ones
// would leave holes of their size in its pool, which a later stream then fills
// badly (measured: a third more bytes in use at the end of a forward pass).
// A unit of incompressible tiles takes a little more, and gets it.
constexpr size_t kMaxChunkBytes = size_t{1} << 17;
constexpr size_t kMinChunkBytes = size_t{1} << 12;

// Bytes of encoded units in chunks that grow to 128 KiB. Threads take a chunk
// with room, fill it, and put it back.
class ChunkPool {
 public:
  struct Chunk {
    uint8_t* data = nullptr;
    size_t used = 0;
    size_t capacity = 0;
  };

  void Reset(const AllocateScratch* allocate) {
    allocate_ = allocate;
    idle_.clear();
    next_bytes_ = kMinChunkBytes;
  }

  // A chunk with room for `bytes`, or one without data when out of memory.
  Chunk Take(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Chunk& chunk : idle_) {
      if (chunk.capacity - chunk.used >= bytes) {
        std::swap(chunk, idle_.back());
        const Chunk taken = idle_.back();
        idle_.pop_back();
        return taken;
      }
    }
    Chunk chunk;
    chunk.capacity = std::max(next_bytes_, bytes);
    next_bytes_ = std::min(2 * next_bytes_, kMaxChunkBytes);
    chunk.data = (*allocate_)(chunk.capacity);
    return chunk;
  }

  void Return(const Chunk& chunk) {
    std::lock_guard<std::mutex> lock(mutex_);
    // A chunk with little room left would only slow the search down.
    if (chunk.capacity - chunk.used >= kMinChunkBytes) idle_.push_back(chunk);
  }

 private:
  const AllocateScratch* allocate_ = nullptr;
  std::mutex mutex_;
  std::vector<Chunk> idle_;
  size_t next_bytes_ = kMinChunkBytes;
};

}  // namespace comet

#endif  // COMET_CPU_CODEC_CHUNKS_H_

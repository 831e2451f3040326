// SPDX-License-Identifier: Apache-2.0
// What the kernels of one compression hand on to the later ones, and where it
// lies in the workspace.
#ifndef COMET_CUDA_COMPRESS_STATE_H_
#define COMET_CUDA_COMPRESS_STATE_H_

#include <cstddef>
#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cuda/launchers.h"
#include "custom_ops/cuda/value_range.h"

namespace comet {
namespace cuda {

// What the kernels of one compression leave for the later ones.
struct CompressState {
  CompressSummary summary;
  Quantiser quantiser;
  uint64_t seed;
  uint64_t mixed_seed;
  unsigned long long checksum;  // of the tiles packed so far
};

// What the size pass keeps of a tile.
struct TileInfo {
  uint16_t bytes;
  uint16_t nonzeros;
};

// The parts of the workspace.
struct Workspace {
  CompressState* state;
  FloatRange* ranges;
  int64_t* offsets;  // of every 64th tile
  TileInfo* tiles;
  uint8_t* headers;  // of the blocks, 16 a tile
  size_t bytes;

  Workspace(void* memory, int64_t tiles_count) {
    auto* start = static_cast<uint8_t*>(memory);
    size_t at = 0;
    auto take = [&](int64_t count, size_t size) {
      uint8_t* part = start == nullptr ? nullptr : start + at;
      at = (at + static_cast<size_t>(count) * size + 15) & ~size_t{15};
      return part;
    };
    state = reinterpret_cast<CompressState*>(take(1, sizeof(CompressState)));
    ranges =
        reinterpret_cast<FloatRange*>(take(kRangeBlocks, sizeof(FloatRange)));
    offsets = reinterpret_cast<int64_t*>(
        take(OffsetCount(tiles_count), sizeof(int64_t)));
    tiles = reinterpret_cast<TileInfo*>(take(tiles_count, sizeof(TileInfo)));
    headers = take(tiles_count, kTileBlocks);
    bytes = at;
  }
};

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_COMPRESS_STATE_H_

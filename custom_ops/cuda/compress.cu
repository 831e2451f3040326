// SPDX-License-Identifier: Apache-2.0
// Compression: range of the values, parameters, sizes of the tiles, their
// offsets, and then the stream. Only the first, second and last read the
// tensor.

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/checksum.h"
#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cuda/bound.h"
#include "custom_ops/cuda/compress_state.h"
#include "custom_ops/cuda/encode.h"
#include "custom_ops/cuda/launch.h"
#include "custom_ops/cuda/launchers.h"
#include "custom_ops/cuda/stage.h"
#include "custom_ops/cuda/tile.h"
#include "custom_ops/cuda/value_range.h"
#include "custom_ops/cuda/warp.h"
#include "custom_ops/cuda/write.h"

namespace comet {
namespace cuda {
namespace {

// --- Parameters ---

__global__ void __launch_bounds__(kThreads)
    PrepareKernel(DType dtype, Rounding rounding, const float* error_bound,
                  const bool* relative, const int64_t* seed,
                  const FloatRange* ranges, int range_count,
                  CompressState* state) {
  FloatRange range = EmptyRange();
  if (*relative) {
    for (int i = static_cast<int>(threadIdx.x); i < range_count;
         i += kThreads) {
      const FloatRange other = ranges[i];
      if (other.low < range.low) range.low = other.low;
      if (other.high > range.high) range.high = other.high;
    }
  }
  range = BlockRange(range);
  if (threadIdx.x != 0) return;
  float bound = *error_bound;
  CompressState s = {};
  s.summary.valid =
      *relative ? bound > 0.0f && bound <= kLargestFinite : ValidBound(bound);
  if (*relative && s.summary.valid) {
    bound = RelativeBound(bound, ReferenceRange(range.low, range.high));
  }
  s.summary.error_bound = bound;
  s.quantiser = MakeQuantiser(dtype, rounding, s.summary.valid ? bound : 1.0f);
  s.seed = rounding == Rounding::kDither ? static_cast<uint64_t>(*seed) : 0;
  s.mixed_seed = Mix(s.seed);
  *state = s;
}

// --- Sizes ---

template <DType kType, Rounding kRounding>
__global__ void __launch_bounds__(kThreads)
    SizeKernel(const Storage<kType>* x, Geometry geometry,
               const CompressState* state, TileInfo* tiles, uint8_t* headers) {
  const int lane = LaneIndex();
  const int64_t tile =
      int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kLanes;
  if (tile >= geometry.tiles) return;
  const Quantiser quantiser = state->quantiser;
  const bool quick = QuickQuantiser<kType, kRounding>::Suits(quantiser);
  const Column column = ColumnOf(geometry, tile, lane);
  const DitherKeys keys(kRounding == Rounding::kDither ? state->mixed_seed : 0,
                        tile, lane);
  Storage<kType> next[kBlockRows];
  LoadBlock(x, column, 0, next);
  int bytes = column.blocks;
  int nonzeros = 0;
  int32_t above = 0;
  uint8_t own_header = 0;
  for (int block = 0; block < column.blocks; ++block) {
    Storage<kType> elements[kBlockRows];
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) elements[r] = next[r];
    // In flight while this block is measured.
    if (block + 1 < column.blocks) LoadBlock(x, column, block + 1, next);
    int32_t offsets[kBlockRows] = {};
    if (kRounding == Rounding::kDither) keys.Offsets(block, offsets);
    const LaneCodes codes = QuantiseBlock<kType, kRounding, true>(
        elements, column.Present(block), offsets, quantiser, quick);
    const BlockChoice choice =
        ChooseKind<kType>(codes, above, column.whole, lane);
    bytes += choice.bytes;
    nonzeros += choice.nonzeros;
    if (lane == block) own_header = choice.header;
    above = CodeBelow(codes, choice.header);
  }
  if (lane < column.blocks) headers[tile * kTileBlocks + lane] = own_header;
  if (lane == 0) {
    tiles[tile] = {static_cast<uint16_t>(bytes),
                   static_cast<uint16_t>(nonzeros)};
  }
}

// --- Offsets ---

constexpr int kOffsetThreads = 1024;

struct Totals {
  int64_t bytes;
  int64_t nonzeros;
};

__device__ inline Totals GroupTotals(const TileInfo* tiles, int64_t count,
                                     int64_t group) {
  Totals sum = {0, 0};
  const int64_t first = group * kTilesPerOffset;
  const int64_t left = count - first;
  const int64_t end = first + (left < kTilesPerOffset ? left : kTilesPerOffset);
  for (int64_t t = first; t < end; ++t) {
    const TileInfo info = tiles[t];
    sum.bytes += info.bytes;
    sum.nonzeros += info.nonzeros;
  }
  return sum;
}

// One block: a thread sums up a group of 64 tiles, then all scan.
__global__ void __launch_bounds__(kOffsetThreads)
    OffsetsKernel(const TileInfo* tiles, int64_t tile_count, int64_t* offsets,
                  CompressState* state) {
  struct Warps {
    int64_t bytes[kLanes];
    int64_t nonzeros[kLanes];
  };
  COMET_SHARED(Warps, warps);
  const int lane = LaneIndex();
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t groups = OffsetCount(tile_count);
  int64_t start = TilesStart(tile_count);
  int64_t nonzeros = 0;
  for (int64_t first = 0; first < groups; first += kOffsetThreads) {
    const int64_t group = first + threadIdx.x;
    Totals own = {0, 0};
    if (group < groups) own = GroupTotals(tiles, tile_count, group);
    int64_t sum = own.bytes;
    for (int step = 1; step < kLanes; step *= 2) {
      const int64_t other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += other;
    }
    const uint64_t warp_nonzeros = WarpSum(static_cast<uint64_t>(own.nonzeros));
    if (lane == kLanes - 1) {
      warps.bytes[warp] = sum;
      warps.nonzeros[warp] = static_cast<int64_t>(warp_nonzeros);
    }
    __syncthreads();
    int64_t before = 0;
    int64_t all = 0;
    for (int w = 0; w < kLanes; ++w) {
      if (w < warp) before += warps.bytes[w];
      all += warps.bytes[w];
      nonzeros += warps.nonzeros[w];
    }
    if (group < groups) offsets[group] = start + before + sum - own.bytes;
    start += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    state->summary.stream_bytes = start + kPaddingBytes;
    state->summary.nonzeros = nonzeros;
  }
}

// --- Stream ---

// Where the tile begins in the stream.
__device__ inline int64_t TileOffset(const TileInfo* tiles,
                                     const int64_t* offsets, int64_t tile,
                                     int lane) {
  const int64_t group = tile / kTilesPerOffset;
  const int64_t first = group * kTilesPerOffset;
  unsigned before = 0;
  for (int64_t t = first + lane; t < tile; t += kLanes) {
    before += tiles[t].bytes;
  }
  return offsets[group] + __reduce_add_sync(kAllLanes, before);
}

struct PackMemory {
  StageMemory stages[kWarpsPerBlock];
};

template <DType kType, Rounding kRounding>
__global__ void __launch_bounds__(kThreads)
    PackKernel(const Storage<kType>* x, Geometry geometry, CompressState* state,
               const TileInfo* tiles, const int64_t* offsets,
               const uint8_t* headers, uint8_t* out) {
  COMET_SHARED(PackMemory, shared);
  const int lane = LaneIndex();
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t tile = int64_t{blockIdx.x} * kWarpsPerBlock + warp;
  if (tile >= geometry.tiles) return;
  const Quantiser quantiser = state->quantiser;
  const bool quick = QuickQuantiser<kType, kRounding>::Suits(quantiser);
  const Column column = ColumnOf(geometry, tile, lane);
  const DitherKeys keys(kRounding == Rounding::kDither ? state->mixed_seed : 0,
                        tile, lane);
  Storage<kType> next[kBlockRows];
  LoadBlock(x, column, 0, next);
  const int64_t offset = TileOffset(tiles, offsets, tile, lane);
  const uint32_t own_header =
      lane < column.blocks ? headers[tile * kTileBlocks + lane] : 0u;
  Stage stage(&shared.stages[warp], out + offset);
  if (lane < column.blocks) {
    stage.SetByte(lane, static_cast<uint8_t>(own_header));
  }
  stage.Advance(column.blocks);

  int32_t above = 0;
  for (int block = 0; block < column.blocks; ++block) {
    Storage<kType> elements[kBlockRows];
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) elements[r] = next[r];
    if (block + 1 < column.blocks) LoadBlock(x, column, block + 1, next);
    const auto header =
        static_cast<uint8_t>(__shfl_sync(kAllLanes, own_header, block));
    stage.Reserve(lane);
    if (header == kZeroHeader) {
      above = 0;
    } else if (header == kRawHeader) {
      WriteRaw<kType>(elements, column.Present(block), lane, &stage);
      above = 0;
    } else {
      int32_t dither[kBlockRows] = {};
      if (kRounding == Rounding::kDither) keys.Offsets(block, dither);
      const LaneCodes codes = QuantiseBlock<kType, kRounding, false>(
          elements, column.Present(block), dither, quantiser, quick);
      WriteCodes(codes, header, above, column.whole, lane, &stage);
      above = CodeBelow(codes, header);
    }
  }
  const uint64_t checksum = stage.Finish(tile, lane);
  if (lane == 0) {
    atomicAdd(&state->checksum, static_cast<unsigned long long>(checksum));
    const int64_t sizes_at = kHeaderBytes + 8 * OffsetCount(geometry.tiles);
    reinterpret_cast<uint16_t*>(out + sizes_at)[tile] = tiles[tile].bytes;
    if (tile % kTilesPerOffset == 0) {
      reinterpret_cast<int64_t*>(out + kHeaderBytes)[tile / kTilesPerOffset] =
          offset;
    }
  }
}

// Header, padding and info. One block of kPaddingBytes threads.
__global__ void __launch_bounds__(kPaddingBytes)
    FinishKernel(DType dtype, Rounding rounding, Geometry geometry,
                 const CompressState* state, uint8_t* out, double* info) {
  const CompressSummary summary = state->summary;
  out[summary.stream_bytes - kPaddingBytes + threadIdx.x] = 0;
  if (threadIdx.x != 0) return;
  constexpr uint64_t kMagic = 'C' | 'M' << 8 | 'E' << 16 | 'T' << 24;
  uint64_t header[kHeaderBytes / 8];
  header[0] = kMagic | uint64_t{kFormatVersion} << 32 |
              static_cast<uint64_t>(dtype) << 40 |
              static_cast<uint64_t>(rounding) << 48;
  header[1] = static_cast<uint64_t>(geometry.n);
  header[2] = static_cast<uint64_t>(geometry.row_length);
  header[3] = FloatBits(summary.error_bound) |
              uint64_t{FloatBits(state->quantiser.step)} << 32;
  header[4] = state->seed;
  header[5] = static_cast<uint64_t>(summary.nonzeros);
  header[6] = static_cast<uint64_t>(summary.stream_bytes);
  header[7] = HeaderChecksum(reinterpret_cast<const uint8_t*>(header)) +
              state->checksum;
  for (int i = 0; i < kHeaderBytes / 8; ++i) {
    reinterpret_cast<uint64_t*>(out)[i] = header[i];
  }
  info[0] = static_cast<double>(geometry.n) * ElementBytes(dtype);
  info[1] = static_cast<double>(summary.stream_bytes);
  info[2] = geometry.n == 0 ? 0.0
                            : static_cast<double>(summary.nonzeros) /
                                  static_cast<double>(geometry.n);
  info[3] = static_cast<double>(summary.error_bound);
}

// --- Launches for each type ---

template <DType kType>
int LaunchRange(void* stream, const CompressInput& input, int64_t blocks,
                FloatRange* ranges) {
  return Launch(stream, blocks, kThreads, &RangeKernel<kType>,
                static_cast<const Storage<kType>*>(input.x), input.n,
                input.relative, ranges);
}

template <DType kType, Rounding kRounding>
int LaunchSize(void* stream, const CompressInput& input,
               const Geometry& geometry, const Workspace& workspace) {
  return Launch(stream, CeilDivide(geometry.tiles, kWarpsPerBlock), kThreads,
                &SizeKernel<kType, kRounding>,
                static_cast<const Storage<kType>*>(input.x), geometry,
                workspace.state, workspace.tiles, workspace.headers);
}

template <DType kType, Rounding kRounding>
int LaunchPack(void* stream, const CompressInput& input,
               const Geometry& geometry, const Workspace& workspace,
               uint8_t* out) {
  return Launch(stream, CeilDivide(geometry.tiles, kWarpsPerBlock), kThreads,
                &PackKernel<kType, kRounding>,
                static_cast<const Storage<kType>*>(input.x), geometry,
                workspace.state, workspace.tiles, workspace.offsets,
                workspace.headers, out);
}

// Calls function.operator()<kType, kRounding>(...).
#define COMET_DISPATCH(function, dtype, rounding, ...)                        \
  ((rounding) == Rounding::kDither                                            \
       ? COMET_DISPATCH_TYPE(function, dtype, Rounding::kDither, __VA_ARGS__) \
       : COMET_DISPATCH_TYPE(function, dtype, Rounding::kNearest,             \
                             __VA_ARGS__))
#define COMET_DISPATCH_TYPE(function, dtype, rounding, ...)      \
  ((dtype) == DType::kFloat32                                    \
       ? function<DType::kFloat32, rounding>(__VA_ARGS__)        \
       : ((dtype) == DType::kFloat16                             \
              ? function<DType::kFloat16, rounding>(__VA_ARGS__) \
              : function<DType::kBFloat16, rounding>(__VA_ARGS__)))

int LaunchRangeOfType(void* stream, const CompressInput& input, int64_t blocks,
                      FloatRange* ranges) {
  switch (input.dtype) {
    case DType::kFloat32:
      return LaunchRange<DType::kFloat32>(stream, input, blocks, ranges);
    case DType::kFloat16:
      return LaunchRange<DType::kFloat16>(stream, input, blocks, ranges);
    default:
      return LaunchRange<DType::kBFloat16>(stream, input, blocks, ranges);
  }
}

}  // namespace

size_t CompressWorkspaceBytes(int64_t n, int64_t row_length) {
  return Workspace(nullptr, MakeGeometry(n, row_length).tiles).bytes;
}

int LaunchCompressSize(void* stream, const CompressInput& input,
                       void* workspace_memory, CompressSummary* summary) {
  const Geometry geometry = MakeGeometry(input.n, input.row_length);
  const Workspace workspace(workspace_memory, geometry.tiles);
  int64_t blocks = LoopBlocks(input.n, 8 * kThreads);
  if (blocks > kRangeBlocks) blocks = kRangeBlocks;
  int error = LaunchRangeOfType(stream, input, blocks, workspace.ranges);
  if (error != 0) return error;
  error = Launch(stream, 1, kThreads, &PrepareKernel, input.dtype,
                 input.rounding, input.error_bound, input.relative, input.seed,
                 workspace.ranges, static_cast<int>(blocks), workspace.state);
  if (error == 0 && geometry.tiles > 0) {
    error = COMET_DISPATCH(LaunchSize, input.dtype, input.rounding, stream,
                           input, geometry, workspace);
  }
  if (error != 0) return error;
  error = Launch(stream, 1, kOffsetThreads, &OffsetsKernel, workspace.tiles,
                 geometry.tiles, workspace.offsets, workspace.state);
  if (error != 0) return error;
  return cudaMemcpyAsync(summary, &workspace.state->summary, sizeof(*summary),
                         cudaMemcpyDeviceToHost,
                         static_cast<cudaStream_t>(stream));
}

int LaunchCompressPack(void* stream, const CompressInput& input,
                       void* workspace_memory, uint8_t* out, double* info) {
  const Geometry geometry = MakeGeometry(input.n, input.row_length);
  const Workspace workspace(workspace_memory, geometry.tiles);
  int error = 0;
  if (geometry.tiles > 0) {
    error = COMET_DISPATCH(LaunchPack, input.dtype, input.rounding, stream,
                           input, geometry, workspace, out);
  }
  if (error != 0) return error;
  return Launch(stream, 1, kPaddingBytes, &FinishKernel, input.dtype,
                input.rounding, geometry, workspace.state, out, info);
}

}  // namespace cuda
}  // namespace comet

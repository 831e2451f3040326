// SPDX-License-Identifier: Apache-2.0
// Decompression, and the gradient of the ReLU family from a stream's signs. One
// kernel reads tiles; what it makes of the codes is a policy.

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/checksum.h"
#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cuda/decode.h"
#include "custom_ops/cuda/launch.h"
#include "custom_ops/cuda/launchers.h"
#include "custom_ops/cuda/read_policies.h"
#include "custom_ops/cuda/stream_header.h"
#include "custom_ops/cuda/tile.h"
#include "custom_ops/cuda/warp.h"
#include "custom_ops/cuda/window.h"

namespace comet {
namespace cuda {
namespace {

struct DecodeState {
  unsigned long long checksum;  // of the tiles read so far
  unsigned error;               // bits of DecodeError
};

// --- Tiles ---

struct TilePlace {
  int64_t offset;
  int size;
  bool valid;
};

// Finds a tile by the tables and checks that they agree.
__device__ inline TilePlace PlaceOf(const uint8_t* data, int64_t bytes,
                                    const StreamHeader& header, int64_t tile,
                                    int lane) {
  const int64_t tiles = header.geometry.tiles;
  const auto* offsets = reinterpret_cast<const int64_t*>(data + kHeaderBytes);
  const auto* sizes = reinterpret_cast<const uint16_t*>(data + kHeaderBytes +
                                                        8 * OffsetCount(tiles));
  const int64_t group = tile / kTilesPerOffset;
  const int64_t first = group * kTilesPerOffset;
  unsigned before = 0;
  unsigned all = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t t = first + half * kLanes + lane;
    const unsigned size = t < tiles ? sizes[t] : 0;
    all += size;
    if (t < tile) before += size;
  }
  const int64_t start = offsets[group];
  const int64_t end = bytes - kPaddingBytes;
  TilePlace place;
  place.offset = start + __reduce_add_sync(kAllLanes, before);
  place.size = sizes[tile];
  const int64_t next =
      first + kTilesPerOffset < tiles ? offsets[group + 1] : end;
  // `start` may be anything: compare before adding.
  place.valid = start >= header.tiles_start && start <= end &&
                (group > 0 || start == header.tiles_start) &&
                start + __reduce_add_sync(kAllLanes, all) == next &&
                next <= end;
  return place;
}

// Decodes one tile. False if its bytes mean nothing.
template <DType kType, typename Policy>
__device__ inline bool DecodeTile(Window* window, const Column& column,
                                  int lane, Policy policy) {
  if (!window->Has(column.blocks)) return false;
  const uint32_t own_header = lane < column.blocks ? window->Byte(lane) : 0;
  window->Skip(column.blocks);
  int32_t above = 0;
  for (int block = 0; block < column.blocks; ++block) {
    window->Ahead(lane);
    const auto header =
        static_cast<uint8_t>(__shfl_sync(kAllLanes, own_header, block));
    if (header == kRawHeader) {
      Storage<kType> elements[kBlockRows];
      if (!ReadRaw<kType>(window, column.Present(block), lane, elements)) {
        return false;
      }
      policy.Raw(column, block, elements);
      above = 0;
      continue;
    }
    LaneValues values = {};
    if (header != kZeroHeader &&
        !ReadCodes(window, header, above, lane, &values)) {
      return false;
    }
    policy.Codes(column, block, values);
    above = values.Last();
  }
  return window->AtEnd();
}

struct DecodeMemory {
  WindowMemory windows[kWarpsPerBlock];
};

// `make_policy(header, tile, lane)` says what becomes of the codes.
template <DType kType, typename MakePolicy>
__device__ inline void DecodeTiles(const uint8_t* data, int64_t bytes,
                                   const StreamHeader& header,
                                   DecodeMemory* memory, DecodeState* state,
                                   MakePolicy make_policy) {
  const int lane = LaneIndex();
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t stride = int64_t{gridDim.x} * kWarpsPerBlock;
  uint64_t checksum = 0;
  unsigned error = 0;
  for (int64_t tile = int64_t{blockIdx.x} * kWarpsPerBlock + warp;
       tile < header.geometry.tiles; tile += stride) {
    const TilePlace place = PlaceOf(data, bytes, header, tile, lane);
    if (!place.valid) {
      error |= kBadTables;
      continue;
    }
    const Column column = ColumnOf(header.geometry, tile, lane);
    Window window(&memory->windows[warp], data, place.offset, place.size, lane);
    if (!DecodeTile<kType>(&window, column, lane,
                           make_policy(header, tile, lane))) {
      error |= kBadTile;
      continue;
    }
    checksum += window.Checksum(tile);
  }
  if (lane == 0) {
    if (checksum != 0) {
      atomicAdd(&state->checksum, static_cast<unsigned long long>(checksum));
    }
    if (error != 0) atomicOr(&state->error, error);
  }
}

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    DecompressKernel(const uint8_t* data, int64_t bytes, int64_t n,
                     DecodeState* state, Storage<kType>* out) {
  COMET_SHARED(DecodeMemory, shared);
  const StreamHeader header = ReadHeader(data, bytes, kType, n);
  if (!header.valid) return;
  DecodeTiles<kType>(data, bytes, header, &shared, state,
                     [out](const StreamHeader& h, int64_t tile, int lane) {
                       return RestoreValues<kType>(h, tile, lane, out);
                     });
}

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    SignGradientKernel(const uint8_t* data, int64_t bytes, int64_t n,
                       float slope, DecodeState* state,
                       const Storage<kType>* dy, Storage<kType>* dx) {
  COMET_SHARED(DecodeMemory, shared);
  const StreamHeader header = ReadHeader(data, bytes, kType, n);
  if (!header.valid) return;
  const bool dither = header.rounding == Rounding::kDither;
  if (dither && slope != 0.0f) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      atomicOr(&state->error, unsigned{kSignsUnknown});
    }
    return;
  }
  DecodeTiles<kType>(data, bytes, header, &shared, state,
                     [=](const StreamHeader&, int64_t, int) {
                       return GateGradient<kType>(dither, slope, dy, dx);
                     });
}

// The last word on a stream: the whole checksum. After any error the output
// becomes NaN, so that no damaged value is ever taken for a good one.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    FinishKernel(const uint8_t* data, int64_t bytes, int64_t n,
                 const DecodeState* state, Storage<kType>* out,
                 int32_t* error) {
  struct Verdict {
    unsigned error;
  };
  COMET_SHARED(Verdict, verdict);
  if (threadIdx.x == 0) {
    unsigned bits = state->error;
    const StreamHeader header = ReadHeader(data, bytes, kType, n);
    if (!header.valid) {
      bits |= kBadHeader;
    } else if (header.geometry.tiles == 0 &&
               header.tiles_start != bytes - kPaddingBytes) {
      bits |= kBadTables;
    } else if (bits == 0 &&
               HeaderChecksum(data) + state->checksum != header.checksum) {
      bits |= kBadChecksum;
    }
    verdict.error = bits;
  }
  __syncthreads();
  if (threadIdx.x < kPaddingBytes && bytes >= kPaddingBytes &&
      data[bytes - kPaddingBytes + threadIdx.x] != 0) {
    atomicOr(&verdict.error, unsigned{kBadTables});
  }
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *error = static_cast<int32_t>(verdict.error);
  }
  if (verdict.error == 0) return;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n;
       i += stride) {
    out[i] = static_cast<Storage<kType>>(~Storage<kType>{0});
  }
}

// --- Launches for each type ---

struct DecodeWorkspace {
  DecodeState state;
  int32_t error;
};

struct DecodeCall {
  void* stream;
  const uint8_t* data;
  int64_t bytes;
  int64_t n;
  DecodeWorkspace* workspace;
  int32_t* error;  // on the host
};

// Runs `decode(blocks)` between what comes before and after it.
template <DType kType, typename Decode>
int RunDecode(const DecodeCall& call, Storage<kType>* out, Decode decode) {
  if (reinterpret_cast<uintptr_t>(call.data) % 16 != 0) {
    return cudaErrorMisalignedAddress;
  }
  const auto stream = static_cast<cudaStream_t>(call.stream);
  int error =
      cudaMemsetAsync(call.workspace, 0, sizeof(*call.workspace), stream);
  if (error != 0) return error;
  const int64_t tiles = CeilDivide(call.n, kTileRows * kLanes);
  error = decode(LoopBlocks(tiles, kWarpsPerBlock));
  if (error != 0) return error;
  error = Launch(call.stream, LoopBlocks(call.n, 64 * kThreads), kThreads,
                 &FinishKernel<kType>, call.data, call.bytes, call.n,
                 &call.workspace->state, out, &call.workspace->error);
  if (error != 0) return error;
  return cudaMemcpyAsync(call.error, &call.workspace->error,
                         sizeof(*call.error), cudaMemcpyDeviceToHost, stream);
}

template <DType kType>
int Decompress(const DecodeCall& call, void* out) {
  auto* elements = static_cast<Storage<kType>*>(out);
  return RunDecode<kType>(call, elements, [&](int64_t blocks) {
    return Launch(call.stream, blocks, kThreads, &DecompressKernel<kType>,
                  call.data, call.bytes, call.n, &call.workspace->state,
                  elements);
  });
}

template <DType kType>
int SignGradient(const DecodeCall& call, float slope, const void* dy,
                 void* dx) {
  auto* elements = static_cast<Storage<kType>*>(dx);
  return RunDecode<kType>(call, elements, [&](int64_t blocks) {
    return Launch(call.stream, blocks, kThreads, &SignGradientKernel<kType>,
                  call.data, call.bytes, call.n, slope, &call.workspace->state,
                  static_cast<const Storage<kType>*>(dy), elements);
  });
}

}  // namespace

size_t DecodeWorkspaceBytes() { return sizeof(DecodeWorkspace); }

int LaunchDecompress(void* stream, DType dtype, const uint8_t* data,
                     int64_t bytes, int64_t n, void* workspace, void* out,
                     int32_t* error) {
  const DecodeCall call = {
      stream, data, bytes, n, static_cast<DecodeWorkspace*>(workspace), error};
  switch (dtype) {
    case DType::kFloat32:
      return Decompress<DType::kFloat32>(call, out);
    case DType::kFloat16:
      return Decompress<DType::kFloat16>(call, out);
    default:
      return Decompress<DType::kBFloat16>(call, out);
  }
}

int LaunchSignGradient(void* stream, DType dtype, const uint8_t* data,
                       int64_t bytes, int64_t n, float slope, void* workspace,
                       const void* dy, void* dx, int32_t* error) {
  const DecodeCall call = {
      stream, data, bytes, n, static_cast<DecodeWorkspace*>(workspace), error};
  switch (dtype) {
    case DType::kFloat32:
      return SignGradient<DType::kFloat32>(call, slope, dy, dx);
    case DType::kFloat16:
      return SignGradient<DType::kFloat16>(call, slope, dy, dx);
    default:
      return SignGradient<DType::kBFloat16>(call, slope, dy, dx);
  }
}

}  // namespace cuda
}  // namespace comet

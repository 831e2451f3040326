// SPDX-License-Identifier: Apache-2.0
// Splits a tensor into units, runs the kernels over them in parallel, and lays
// the tiles out as a stream.
#include "custom_ops/cpu/codec.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "custom_ops/cpu/codec_chunks.h"
#include "custom_ops/cpu/codec_ieee.h"
#include "custom_ops/cpu/codec_kernels.h"
#include "custom_ops/cpu/codec_units.h"

namespace comet {
namespace {

constexpr int64_t kRangePart = 1 << 16;  // elements
constexpr int64_t kCopyPart = 1 << 18;   // bytes
// Rough costs for the scheduler, in cycles.
constexpr int64_t kCyclesPerTile = 8000;

const CodecKernels& ChooseKernels() {
  const char* name = std::getenv("COMET_ISA");
  const std::string wanted = name == nullptr ? "" : name;
  if (wanted == "portable") return PortableKernels();
  const CodecKernels* avx512 = Avx512Kernels();
  if (avx512 != nullptr && wanted != "avx2") return *avx512;
  const CodecKernels* avx2 = Avx2Kernels();
  return avx2 != nullptr ? *avx2 : PortableKernels();
}

const CodecKernels& Kernels() {
  static const CodecKernels& kernels = ChooseKernels();
  return kernels;
}

Status CheckInput(DType dtype, int64_t n) {
  if (static_cast<int>(dtype) > 2) {
    return Status::Error("unknown element type " +
                         std::to_string(static_cast<int>(dtype)));
  }
  if (n < 0 || n > kMaxElements) {
    return Status::Error("number of elements must be in [0, 2^56], got " +
                         std::to_string(n));
  }
  return Status();
}

Status CheckOptions(const CompressOptions& options) {
  const Status input = CheckInput(options.dtype, options.n);
  if (!input.ok) return input;
  if (options.row_length < 1 || options.row_length > kMaxElements) {
    return Status::Error("row length must be in [1, 2^56], got " +
                         std::to_string(options.row_length));
  }
  if (!(options.error_bound >= kSmallestNormal &&
        options.error_bound <= std::numeric_limits<float>::max())) {
    return Status::Error(
        "error bound must be a finite number of at least 2^-126, got " +
        std::to_string(options.error_bound));
  }
  return Status();
}

// What decoding needs, once the stream's header and tables are valid.
struct OpenStream {
  StreamHeader header;
  Geometry geometry;
};

Status Open(const uint8_t* stream, int64_t bytes, OpenStream* open) {
  Status status = ReadHeader(stream, bytes, &open->header);
  if (!status.ok) return status;
  open->geometry = MakeGeometry(open->header.n, open->header.row_length);
  return CheckTables(stream, open->header);
}

Status OpenExpected(const uint8_t* stream, int64_t bytes, DType dtype,
                    int64_t n, OpenStream* open) {
  const Status status = Open(stream, bytes, open);
  if (!status.ok) return status;
  if (open->header.dtype != dtype) {
    return Status::Error("compressed stream holds elements of type " +
                         std::to_string(static_cast<int>(open->header.dtype)) +
                         ", expected type " +
                         std::to_string(static_cast<int>(dtype)) +
                         " (0 float32, 1 float16, 2 bfloat16)");
  }
  if (open->header.n != n) {
    return Status::Error("compressed stream holds " +
                         std::to_string(open->header.n) +
                         " elements, expected " + std::to_string(n));
  }
  return status;
}

using DecodeKernel = bool (*)(const DecodeJob&, const TileUnit&,
                              const TileBytes*, uint64_t*);

Status DecodeAll(const uint8_t* stream, const OpenStream& open,
                 DecodeKernel kernel, const DecodeJob& job,
                 const ParallelFor& parallel_for) {
  const Geometry& g = open.geometry;
  const int64_t sizes = kHeaderBytes + 8 * OffsetCount(g.tiles);
  std::atomic<uint64_t> checksum{0};
  std::atomic<bool> valid{true};
  parallel_for(
      UnitCount(g), kCyclesPerTile * std::min<int64_t>(kUnitStrips, g.strips),
      [&](int64_t begin, int64_t end) {
        const ScopedIeee ieee;
        uint64_t sum = 0;
        for (int64_t u = begin; u < end && valid; ++u) {
          const TileUnit unit = UnitAt(g, u);
          int64_t tile = FirstTile(g, unit);
          const int64_t group = tile / kTilesPerOffset;
          int64_t position = LoadAt<int64_t>(stream, kHeaderBytes + 8 * group);
          for (int64_t t = group * kTilesPerOffset; t < tile; ++t) {
            position += LoadAt<uint16_t>(stream, sizes + 2 * t);
          }
          TileBytes tiles[kUnitStrips];
          for (int k = 0; k < unit.strips; ++k, ++tile) {
            tiles[k].data = stream + position;
            tiles[k].size = LoadAt<uint16_t>(stream, sizes + 2 * tile);
            position += tiles[k].size;
          }
          if (!kernel(job, unit, tiles, &sum)) valid = false;
        }
        checksum += sum;
      });
  if (!valid) {
    return Status::Error("compressed stream is damaged: a tile is malformed");
  }
  if (checksum != open.header.checksum) {
    return Status::Error("compressed stream is damaged: wrong checksum");
  }
  return Status();
}

DecodeJob MakeDecodeJob(const OpenStream& open, void* out) {
  const StreamHeader& header = open.header;
  DecodeJob job;
  job.geometry = open.geometry;
  job.dtype = header.dtype;
  job.rounding = header.rounding;
  job.quantiser =
      MakeQuantiser(header.dtype, header.rounding, header.error_bound);
  job.mixed_seed = Mix(header.seed);
  job.out = static_cast<uint8_t*>(out);
  job.dy = nullptr;
  job.slope = 0.0f;
  return job;
}

}  // namespace

const char* CodecIsa() { return Kernels().name; }

Status ValueRange(DType dtype, const void* x, int64_t n,
                  const ParallelFor& parallel_for, float* range) {
  const Status status = CheckInput(dtype, n);
  if (!status.ok) return status;
  FiniteRange all{std::numeric_limits<float>::infinity(),
                  -std::numeric_limits<float>::infinity()};
  std::mutex mutex;
  parallel_for(
      (n + kRangePart - 1) / kRangePart, kRangePart / 4,
      [&](int64_t begin, int64_t end) {
        const ScopedIeee ieee;
        const int64_t first = begin * kRangePart;
        const int64_t last = std::min(n, end * kRangePart);
        const FiniteRange part = Kernels().range(
            dtype, static_cast<const uint8_t*>(x) + first * ElementBytes(dtype),
            last - first);
        std::lock_guard<std::mutex> lock(mutex);
        all.low = std::min(all.low, part.low);
        all.high = std::max(all.high, part.high);
      });
  double width = 0.0;
  if (all.low <= all.high) {
    width = static_cast<double>(all.high) - static_cast<double>(all.low);
    if (width == 0.0) width = std::abs(static_cast<double>(all.high));
  }
  width = std::min<double>(width, std::numeric_limits<float>::max());
  *range = std::max(static_cast<float>(width), kSmallestNormal);
  return Status();
}

struct Compressor::State {
  EncodeJob job;
  StreamHeader header;
  ChunkPool chunks;
  std::vector<uint16_t> sizes;         // of each tile
  std::vector<const uint8_t*> places;  // of each unit
};

Compressor::Compressor() : state_(new State) {}
Compressor::~Compressor() = default;

Status Compressor::Encode(const CompressOptions& options, const void* x,
                          const ParallelFor& parallel_for,
                          const AllocateScratch& allocate) {
  const Status status = CheckOptions(options);
  if (!status.ok) return status;
  State& state = *state_;
  EncodeJob& job = state.job;
  job.geometry = MakeGeometry(options.n, options.row_length);
  job.dtype = options.dtype;
  job.rounding = options.rounding;
  job.quantiser =
      MakeQuantiser(options.dtype, options.rounding, options.error_bound);
  StreamHeader& header = state.header;
  header.dtype = options.dtype;
  header.rounding = options.rounding;
  header.n = options.n;
  header.row_length = options.row_length;
  header.error_bound = options.error_bound;
  header.step = job.quantiser.step;
  header.seed = options.rounding == Rounding::kDither ? options.seed : 0;
  job.mixed_seed = Mix(header.seed);
  job.x = static_cast<const uint8_t*>(x);

  const Geometry& g = job.geometry;
  state.sizes.assign(static_cast<size_t>(g.tiles), 0);
  state.places.assign(static_cast<size_t>(UnitCount(g)), nullptr);
  state.chunks.Reset(&allocate);
  std::atomic<int64_t> nonzeros{0};
  std::atomic<int64_t> tile_bytes{0};
  std::atomic<uint64_t> checksum{0};
  std::atomic<bool> out_of_memory{false};
  parallel_for(
      UnitCount(g), kCyclesPerTile * std::min<int64_t>(kUnitStrips, g.strips),
      [&](int64_t begin, int64_t end) {
        const ScopedIeee ieee;
        const size_t workspace_bytes = static_cast<size_t>(
            std::min<int64_t>(kUnitStrips, g.strips) * kTileCapacity);
        const std::unique_ptr<uint8_t[]> workspace(
            new (std::nothrow) uint8_t[workspace_bytes]);
        if (workspace == nullptr) out_of_memory = true;
        ChunkPool::Chunk chunk;
        int64_t part_nonzeros = 0;
        int64_t part_bytes = 0;
        uint64_t part_checksum = 0;
        for (int64_t u = begin; u < end && !out_of_memory; ++u) {
          const TileUnit unit = UnitAt(g, u);
          EncodedUnit encoded;
          Kernels().encode(job, unit, workspace.get(), &encoded);
          size_t bytes = 0;
          for (int k = 0; k < unit.strips; ++k) bytes += encoded.sizes[k];
          if (chunk.capacity - chunk.used < bytes) {
            if (chunk.data != nullptr) state.chunks.Return(chunk);
            chunk = state.chunks.Take(bytes);
            if (chunk.data == nullptr) {
              out_of_memory = true;
              return;
            }
          }
          const int64_t tile = FirstTile(g, unit);
          state.places[static_cast<size_t>(u)] = chunk.data + chunk.used;
          for (int k = 0; k < unit.strips; ++k) {
            state.sizes[static_cast<size_t>(tile + k)] = encoded.sizes[k];
            std::memcpy(chunk.data + chunk.used,
                        workspace.get() + k * kTileCapacity, encoded.sizes[k]);
            chunk.used += encoded.sizes[k];
          }
          part_nonzeros += encoded.nonzeros;
          part_bytes += static_cast<int64_t>(bytes);
          part_checksum += encoded.checksum;
        }
        nonzeros += part_nonzeros;
        tile_bytes += part_bytes;
        checksum += part_checksum;
        if (chunk.data != nullptr) state.chunks.Return(chunk);
      });
  if (out_of_memory) {
    return Status::Error("out of memory while compressing " +
                         std::to_string(options.n) + " elements");
  }
  header.nonzeros = nonzeros;
  header.checksum = checksum;
  header.bytes = TilesStart(g.tiles) + tile_bytes + kPaddingBytes;
  return Status();
}

int64_t Compressor::stream_bytes() const { return state_->header.bytes; }
int64_t Compressor::nonzeros() const { return state_->header.nonzeros; }

void Compressor::Write(uint8_t* stream, const ParallelFor& parallel_for) {
  const State& state = *state_;
  const Geometry& g = state.job.geometry;
  WriteHeader(state.header, stream);
  uint8_t* offsets = stream + kHeaderBytes;
  uint8_t* sizes = offsets + 8 * OffsetCount(g.tiles);
  int64_t position = TilesStart(g.tiles);
  for (int64_t t = 0; t < g.tiles; ++t) {
    if (t % kTilesPerOffset == 0) {
      StoreAt(offsets, 8 * (t / kTilesPerOffset), position);
    }
    position += state.sizes[static_cast<size_t>(t)];
  }
  if (g.tiles != 0) {
    std::memcpy(sizes, state.sizes.data(), static_cast<size_t>(2 * g.tiles));
  }
  std::memset(stream + position, 0, kPaddingBytes);
  const int64_t units = UnitCount(g);
  const int64_t unit_bytes =
      units == 0 ? 1 : std::max<int64_t>(1, state.header.bytes / units);
  // Copies in parts large enough to be worth a task.
  const int64_t per_part = std::max<int64_t>(1, kCopyPart / unit_bytes);
  parallel_for((units + per_part - 1) / per_part, per_part * unit_bytes / 4,
               [&](int64_t begin, int64_t end) {
                 const int64_t last = std::min(units, end * per_part);
                 for (int64_t u = begin * per_part; u < last; ++u) {
                   const TileUnit unit = UnitAt(g, u);
                   const int64_t tile = FirstTile(g, unit);
                   const int64_t group = tile / kTilesPerOffset;
                   int64_t to = LoadAt<int64_t>(offsets, 8 * group);
                   for (int64_t t = group * kTilesPerOffset; t < tile; ++t) {
                     to += state.sizes[static_cast<size_t>(t)];
                   }
                   size_t bytes = 0;
                   for (int k = 0; k < unit.strips; ++k) {
                     bytes += state.sizes[static_cast<size_t>(tile + k)];
                   }
                   std::memcpy(stream + to,
                               state.places[static_cast<size_t>(u)], bytes);
                 }
               });
}

Status ReadStreamInfo(const uint8_t* stream, int64_t bytes, StreamInfo* info) {
  OpenStream open;
  const Status status = Open(stream, bytes, &open);
  if (!status.ok) return status;
  *info = open.header;
  return status;
}

Status Decompress(const uint8_t* stream, int64_t bytes, DType expect_dtype,
                  int64_t expect_n, const ParallelFor& parallel_for,
                  void* out) {
  OpenStream open;
  const Status status =
      OpenExpected(stream, bytes, expect_dtype, expect_n, &open);
  if (!status.ok) return status;
  return DecodeAll(stream, open, Kernels().decode, MakeDecodeJob(open, out),
                   parallel_for);
}

Status SignGradient(const uint8_t* stream, int64_t bytes, DType dtype,
                    int64_t n, float slope, const void* dy,
                    const ParallelFor& parallel_for, void* dx) {
  OpenStream open;
  const Status status = OpenExpected(stream, bytes, dtype, n, &open);
  if (!status.ok) return status;
  if (slope != 0.0f && open.header.rounding == Rounding::kDither) {
    return Status::Error(
        "a negative slope needs exact signs, which a dithered stream does not "
        "keep; compress with rounding to nearest");
  }
  DecodeJob job = MakeDecodeJob(open, dx);
  job.dy = static_cast<const uint8_t*>(dy);
  job.slope = slope;
  return DecodeAll(stream, open, Kernels().sign_gradient, job, parallel_for);
}

}  // namespace comet

// SPDX-License-Identifier: Apache-2.0
// Encodes the tiles of a unit (README.md of custom_ops/codec, section "Tile"),
// from the block primitives of an instruction set.
#ifndef COMET_CPU_CODEC_ENCODE_TILE_H_
#define COMET_CPU_CODEC_ENCODE_TILE_H_

#include <type_traits>

#include "custom_ops/cpu/codec_isa_portable.h"
#include "custom_ops/cpu/codec_kernels.h"
#include "custom_ops/cpu/codec_units.h"

namespace comet {
namespace {

constexpr uint32_t kAllPresent[kBlockRows] = {~0u, ~0u, ~0u, ~0u,
                                              ~0u, ~0u, ~0u, ~0u};

// A tile being written.
template <class Isa>
struct TileEncoder {
  typename Isa::Above above;
  typename Isa::TileDither dither;
  uint8_t* header;
  uint8_t* payload;
};

// Appends bit fields from bit 0 up; writes up to 8 bytes past the last one.
struct BitWriter {
  uint8_t* out;
  uint64_t bits = 0;
  int used = 0;

  void Append(uint64_t value, int count) {
    bits |= value << used;
    if (used + count >= 64) {
      std::memcpy(out, &bits, 8);
      out += 8;
      const int taken = 64 - used;
      bits = taken == 64 ? 0 : value >> taken;
      used = used + count - 64;
    } else {
      used += count;
    }
  }

  uint8_t* Finish() {
    std::memcpy(out, &bits, 8);
    return out + (used + 7) / 8;
  }
};

template <class Isa>
int MaskBytes(uint32_t mask) {
  return ((mask & 0xFFu) != 0) + ((mask & 0xFF00u) != 0) +
         ((mask & 0xFF0000u) != 0) + ((mask >> 24) != 0);
}

// How a set of planes is stored.
struct PlanesPlan {
  int full;
  int bytes;
};

// The usual number of planes at most: for these no branch depends on how many
// there are, which is hard to predict. The masks of absent planes are 0.
constexpr int kFewPlanes = 4;

template <class Isa>
PlanesPlan PlanPlanes(const PlaneSet& set) {
  const int count = set.count;
  if (count <= kFewPlanes) {
    // More planes in full than there are is never shorter.
    int suppressed = 0;
    int best = INT32_MAX;
    for (int full = kFewPlanes; full >= 0; --full) {
      const uint32_t mask = set.mask[full];
      suppressed += Isa::PopCount(mask) + MaskBytes<Isa>(mask);
      const int bytes = kLanes * full + ((count - full + 1) >> 1) + suppressed;
      const int ranked = bytes << 3 | full;
      best = ranked < best ? ranked : best;
    }
    return {best & 7, best >> 3};
  }
  PlanesPlan plan{count, kLanes * count};
  int suppressed = 0;  // bytes of the suppressed planes, flags aside
  for (int full = count - 1; full >= 0; --full) {
    const uint32_t mask = set.mask[full];
    suppressed += Isa::PopCount(mask) + MaskBytes<Isa>(mask);
    const int bytes = kLanes * full + (count - full + 1) / 2 + suppressed;
    if (bytes <= plan.bytes) plan = {full, bytes};
  }
  plan.bytes += count >= 8;
  return plan;
}

// Planes first..count-1 with their zero bytes left out.
template <class Isa>
uint8_t* WriteSuppressed(const uint8_t (*plane)[kLanes], const uint32_t* mask,
                         int first, int count, uint8_t* out) {
  out = Isa::WriteMasks(mask + first, count - first, out);
  for (int p = first; p < count; ++p) {
    out = Isa::CompressBytes(plane[p], mask[p], out);
  }
  return out;
}

template <class Isa>
uint8_t* WritePlanes(const PlaneSet& set, const PlanesPlan& plan,
                     uint8_t* out) {
  if (set.count <= kFewPlanes) {
    std::memcpy(out, set.plane, kLanes * kFewPlanes);
    out += kLanes * plan.full;
    out = Isa::WriteMasks(set.mask + plan.full, set.count - plan.full, out);
    for (int k = 0; k < kFewPlanes; ++k) {
      const int p = plan.full + k;
      out = Isa::CompressBytes(set.plane[p], set.mask[p], out);
    }
    return out;
  }
  if (set.count >= 8) *out++ = static_cast<uint8_t>(plan.full);
  std::memcpy(out, set.plane, static_cast<size_t>(kLanes) * plan.full);
  out += kLanes * plan.full;
  return WriteSuppressed<Isa>(set.plane, set.mask, plan.full, set.count, out);
}

template <class Isa>
uint8_t* WriteSparse(const PlaneSet& values, const uint8_t (*bitmap)[kLanes],
                     uint32_t mask, bool full, int planes, uint8_t* out) {
  if (full) {
    std::memcpy(out, bitmap, kLanes);
    out += kLanes;
  } else {
    out = WriteSuppressed<Isa>(bitmap, &mask, 0, 1, out);
  }
  uint64_t words[4];
  std::memcpy(words, bitmap, sizeof words);
  BitWriter writer{out};
  for (int p = 0; p < planes; ++p) {
    uint64_t bits[4] = {};
    // A plane above all values is missing from the set: all bits are 0.
    if (p < values.count) std::memcpy(bits, values.plane[p], sizeof bits);
    for (int j = 0; j < 4; ++j) {
      writer.Append(Isa::Extract(bits[j], words[j]), Isa::PopCount(words[j]));
    }
  }
  return writer.Finish();
}

template <class Isa>
void WriteRaw(const uint8_t* x, int64_t stride, int row_bytes_full,
              int element_bytes, const uint32_t* present,
              TileEncoder<Isa>* tile) {
  *tile->header++ = kRawHeader;
  for (int r = 0; r < kBlockRows; ++r) {
    const int bytes = present[r] == ~0u
                          ? row_bytes_full
                          : element_bytes * Isa::PopCount(present[r]);
    std::memcpy(tile->payload, x + r * stride, static_cast<size_t>(bytes));
    tile->payload += bytes;
  }
  Isa::Reset(&tile->above);
}

// Encodes one block whose 8 x 32 elements can all be read (absent ones are
// zeros). Returns the number of nonzero elements.
template <class Isa, DType kType, Rounding kRounding>
int EncodeBlock(const uint8_t* x, int64_t stride, const Quantiser& q,
                const uint32_t* present, bool uniform, TileEncoder<Isa>* tile) {
  constexpr int kBytes = kType == DType::kFloat32 ? 4 : 2;
  typename Isa::Codes block;
  Isa::template Quantise<kType, kRounding>(x, stride, q, tile->dither, uniform,
                                           &block);
  const int nonzeros = block.nonzeros;
  int elements = 0;
  for (int r = 0; r < kBlockRows; ++r) elements += Isa::PopCount(present[r]);
  if (nonzeros == 0) {
    *tile->header++ = kZeroHeader;
    Isa::Reset(&tile->above);
    return 0;
  }
  if (block.rejected) {
    WriteRaw<Isa>(x, stride, kBytes * kLanes, kBytes, present, tile);
    return nonzeros;
  }
  const bool dense = nonzeros == elements;
  PlaneSet delta;
  if (dense) {
    Isa::template BuildPlanes<Residual::kDeltaSteps>(block, tile->above,
                                                     present, 0, &delta);
  } else {
    Isa::template BuildPlanes<Residual::kDeltaCodes>(block, tile->above,
                                                     present, 0, &delta);
  }
  const PlanesPlan delta_plan = PlanPlanes<Isa>(delta);
  int kind = dense ? kDeltaSteps : kDeltaCodes;
  int best = delta_plan.bytes;

  const int width = Isa::Length(block.magnitudes);
  const int sparse_planes = width + block.negative;
  alignas(64) uint8_t bitmap[1][kLanes];
  uint32_t bitmap_mask = 0;
  bool bitmap_full = false;
  if (!dense && width <= kMaxSparsePlanes) {
    Isa::BitmapPlane(block, bitmap[0]);
    bitmap_mask = Isa::NonzeroBytes(bitmap[0]);
    const int suppressed =
        1 + MaskBytes<Isa>(bitmap_mask) + Isa::PopCount(bitmap_mask);
    bitmap_full = kLanes <= suppressed;
    const int bytes = (bitmap_full ? kLanes : suppressed) +
                      (nonzeros * sparse_planes + 7) / 8;
    if (bytes < best) {
      best = bytes;
      kind = kSparse;
    }
  }
  PlaneSet direct;
  PlanesPlan direct_plan{0, 0};
  if (width + 2 <= delta.count) {
    Isa::template BuildPlanes<Residual::kDirectCodes>(block, tile->above,
                                                      present, 0, &direct);
    direct_plan = PlanPlanes<Isa>(direct);
    if (direct_plan.bytes < best) {
      best = direct_plan.bytes;
      kind = kDirectCodes;
    }
  }
  if (elements * kBytes < best) {
    WriteRaw<Isa>(x, stride, kBytes * kLanes, kBytes, present, tile);
    return nonzeros;
  }
  if (kind == kSparse) {
    PlaneSet values;
    Isa::template BuildPlanes<Residual::kSparseValues>(block, tile->above,
                                                       present, width, &values);
    *tile->header++ = static_cast<uint8_t>(
        kSparse | width << 2 | (block.negative ? kSparseSigns : 0) |
        (bitmap_full ? kSparseFullBitmap : 0));
    tile->payload = WriteSparse<Isa>(values, bitmap, bitmap_mask, bitmap_full,
                                     sparse_planes, tile->payload);
  } else {
    const bool is_direct = kind == kDirectCodes;
    const PlaneSet& set = is_direct ? direct : delta;
    const PlanesPlan& plan = is_direct ? direct_plan : delta_plan;
    *tile->header++ =
        static_cast<uint8_t>(kind | PlanesIndex(set.count, plan.full));
    tile->payload = WritePlanes<Isa>(set, plan, tile->payload);
  }
  Isa::KeepLastRow(block, &tile->above);
  return nonzeros;
}

// The present lanes of a block's rows; returns whether all rows have the same.
template <class Isa>
bool PresentMasks(const Geometry& g, int64_t row, int64_t strip,
                  uint32_t* present) {
  for (int r = 0; r < kBlockRows; ++r) {
    const int lanes = PresentLanes(g, row + r, strip);
    present[r] = lanes == kLanes ? ~0u : (1u << lanes) - 1;
  }
  // Rows never grow downwards.
  return present[0] == present[kBlockRows - 1];
}

// Calls fn with the element type and the rounding as compile-time constants.
template <class Fn>
bool DispatchTypes(DType dtype, Rounding rounding, Fn fn) {
  constexpr std::integral_constant<Rounding, Rounding::kNearest> kNearest;
  constexpr std::integral_constant<Rounding, Rounding::kDither> kDither;
  const bool nearest = rounding == Rounding::kNearest;
  if (dtype == DType::kFloat32) {
    constexpr std::integral_constant<DType, DType::kFloat32> kType;
    return nearest ? fn(kType, kNearest) : fn(kType, kDither);
  }
  if (dtype == DType::kFloat16) {
    constexpr std::integral_constant<DType, DType::kFloat16> kType;
    return nearest ? fn(kType, kNearest) : fn(kType, kDither);
  }
  constexpr std::integral_constant<DType, DType::kBFloat16> kType;
  return nearest ? fn(kType, kNearest) : fn(kType, kDither);
}

// Asks for the rows of a block ahead of its turn; the hardware does not follow
// 8 interleaved rows. Addresses past the tensor do no harm.
template <class Isa, bool kWrite>
void PrefetchBlock(const uint8_t* x, int64_t stride, int row_bytes) {
  for (int r = 0; r < kBlockRows; ++r) {
    for (int k = 0; k < row_bytes; k += 64) {
      Isa::template Prefetch<kWrite>(x + r * stride + k);
    }
  }
}

template <class Isa, DType kType, Rounding kRounding>
void EncodeTiles(const EncodeJob& job, const TileUnit& unit, uint8_t* workspace,
                 EncodedUnit* result) {
  constexpr int kBytes = kType == DType::kFloat32 ? 4 : 2;
  constexpr bool kDither = kRounding == Rounding::kDither;
  const Geometry& g = job.geometry;
  const int blocks = BandBlocks(g, unit.band);
  const int64_t stride = g.row_length * kBytes;
  TileEncoder<Isa> tiles[kUnitStrips];
  for (int k = 0; k < unit.strips; ++k) {
    Isa::Reset(&tiles[k].above);
    if constexpr (kDither) {
      Isa::template StartDither<true>(job.mixed_seed, FirstTile(g, unit) + k,
                                      blocks, &tiles[k].dither);
    }
    tiles[k].header = workspace + k * kTileCapacity;
    tiles[k].payload = tiles[k].header + blocks;
  }
  result->nonzeros = 0;
  for (int b = 0; b < blocks; ++b) {
    const int64_t row = unit.band * kTileRows + b * kBlockRows;
    // Whether these rows are complete.
    const bool inner = (row + kBlockRows) * g.row_length <= g.n;
    for (int k = 0; k < unit.strips; ++k) {
      const int64_t strip = unit.first_strip + k;
      tiles[k].dither.first = b * kBlockRows;
      const uint8_t* x = job.x + (row * g.row_length + strip * kLanes) * kBytes;
      if (inner && (strip + 1) * kLanes <= g.row_length) {
        PrefetchBlock<Isa, false>(x + kBlockRows * stride, stride,
                                  kLanes * kBytes);
        result->nonzeros += EncodeBlock<Isa, kType, kRounding>(
            x, stride, job.quantiser, kAllPresent, true, &tiles[k]);
        continue;
      }
      uint32_t present[kBlockRows];
      const bool uniform = PresentMasks<Isa>(g, row, strip, present);
      alignas(64) uint8_t padded[kBlockElements * kBytes] = {};
      for (int r = 0; r < kBlockRows; ++r) {
        if (present[r] == 0) continue;
        std::memcpy(padded + r * kLanes * kBytes, x + r * stride,
                    static_cast<size_t>(kBytes) * Isa::PopCount(present[r]));
      }
      result->nonzeros += EncodeBlock<Isa, kType, kRounding>(
          padded, kLanes * kBytes, job.quantiser, present, uniform, &tiles[k]);
    }
  }
  result->checksum = 0;
  for (int k = 0; k < unit.strips; ++k) {
    const uint8_t* bytes = workspace + k * kTileCapacity;
    const int size = static_cast<int>(tiles[k].payload - bytes);
    result->sizes[k] = static_cast<uint16_t>(size);
    result->checksum +=
        TileChecksum(Isa::Checksum(bytes, size), FirstTile(g, unit) + k);
  }
}

template <class Isa>
void EncodeUnit(const EncodeJob& job, const TileUnit& unit, uint8_t* workspace,
                EncodedUnit* result) {
  DispatchTypes(job.dtype, job.rounding, [&](auto type, auto rounding) {
    EncodeTiles<Isa, decltype(type)::value, decltype(rounding)::value>(
        job, unit, workspace, result);
    return true;
  });
}

}  // namespace
}  // namespace comet

#endif  // COMET_CPU_CODEC_ENCODE_TILE_H_

// SPDX-License-Identifier: Apache-2.0
// Decodes the tiles of a unit, to values or to the signs that a ReLU's gradient
// needs. Every read is checked against the tile's size first.
#ifndef COMET_CPU_CODEC_DECODE_TILE_H_
#define COMET_CPU_CODEC_DECODE_TILE_H_

#include <type_traits>

#include "custom_ops/cpu/codec_encode_tile.h"
#include "custom_ops/cpu/codec_isa_portable.h"
#include "custom_ops/cpu/codec_kernels.h"

namespace comet {
namespace {

// A tile being read.
template <class Isa>
struct TileDecoder {
  typename Isa::DecodedAbove above;
  typename Isa::TileDither dither;
  const uint8_t* header;
  const uint8_t* payload;
  const uint8_t* end;

  int64_t left() const { return end - payload; }
};

enum class DecodedKind { kZero, kRaw, kCodes, kDamaged };

// Reads planes first..count-1 written by WriteSuppressed.
template <class Isa>
bool ReadSuppressed(TileDecoder<Isa>* tile, int first, int count,
                    uint8_t (*plane)[kLanes]) {
  static_assert(kMaxPlanes >= kMasksAtOnce, "room for what ReadMasks writes");
  uint32_t mask[kMaxPlanes];
  const int suppressed = count - first;
  const int mask_bytes =
      Isa::ReadMasks(tile->payload, tile->left(), suppressed, mask);
  if (mask_bytes < 0) return false;
  tile->payload += mask_bytes;
  int bytes = 0;
  for (int k = 0; k < suppressed; ++k) bytes += Isa::PopCount(mask[k]);
  if (tile->left() < bytes) return false;
  for (int k = 0; k < suppressed; ++k) {
    Isa::ExpandBytes(tile->payload, mask[k], plane[first + k]);
    tile->payload += Isa::PopCount(mask[k]);
  }
  return true;
}

// Reads up to kFewPlanes planes without branches on how many are stored how.
// Planes from `count` on become zeros.
template <class Isa>
bool ReadFewPlanes(TileDecoder<Isa>* tile, int full, PlaneSet* set) {
  if (tile->left() < kLanes * full) return false;
  uint32_t mask[kFewPlanes + kMasksAtOnce] = {};
  const int mask_bytes = Isa::ReadMasks(tile->payload + kLanes * full,
                                        tile->left() - kLanes * full,
                                        set->count - full, mask + full);
  if (mask_bytes < 0) return false;
  int at[kFewPlanes];
  int bytes = 0;
  for (int p = 0; p < kFewPlanes; ++p) {
    mask[p] |= p < full ? ~0u : 0u;
    at[p] = bytes + (p < full ? 0 : mask_bytes);
    bytes += Isa::PopCount(mask[p]);
  }
  bytes += mask_bytes;
  if (tile->left() < bytes) return false;
  for (int p = 0; p < kFewPlanes; ++p) {
    Isa::ExpandBytes(tile->payload + at[p], mask[p], set->plane[p]);
  }
  tile->payload += bytes;
  return true;
}

template <class Isa>
bool ReadPlanes(TileDecoder<Isa>* tile, int index, PlaneSet* set) {
  int full;
  if (!PlanesFromIndex(index, &set->count, &full)) return false;
  if (Isa::kFastExpand && set->count <= kFewPlanes) {
    return ReadFewPlanes(tile, full, set);
  }
  if (full < 0) {
    if (tile->left() < 1) return false;
    full = *tile->payload++;
    if (full > set->count) return false;
  }
  if (tile->left() < kLanes * full) return false;
  std::memcpy(set->plane, tile->payload, static_cast<size_t>(kLanes) * full);
  tile->payload += kLanes * full;
  return ReadSuppressed<Isa>(tile, full, set->count, set->plane);
}

// Reads `count` (0..64) bits at bit `position`; the 9 bytes there are readable.
inline uint64_t ReadBits(const uint8_t* bytes, int64_t position, int count) {
  uint64_t low;
  std::memcpy(&low, bytes + position / 8, sizeof low);
  const int shift = static_cast<int>(position % 8);
  low >>= shift;
  if (shift != 0) {
    low |= static_cast<uint64_t>(bytes[position / 8 + 8]) << (64 - shift);
  }
  return count == 64 ? low : low & ((uint64_t{1} << count) - 1);
}

// Reads a SPARSE block: its value planes and its bitmap.
template <class Isa>
bool ReadSparse(TileDecoder<Isa>* tile, uint8_t header, PlaneSet* set,
                uint8_t (*bitmap)[kLanes]) {
  if (header & kSparseFullBitmap) {
    if (tile->left() < kLanes) return false;
    std::memcpy(bitmap, tile->payload, kLanes);
    tile->payload += kLanes;
  } else if (!ReadSuppressed<Isa>(tile, 0, 1, bitmap)) {
    return false;
  }
  uint64_t words[4];
  std::memcpy(words, bitmap, sizeof words);
  int nonzeros = 0;
  for (uint64_t word : words) nonzeros += Isa::PopCount(word);
  const int width = (header >> 2) & 0xF;
  set->count = width + ((header & kSparseSigns) != 0);
  const int64_t bytes = (static_cast<int64_t>(nonzeros) * set->count + 7) / 8;
  if (tile->left() < bytes) return false;
  int64_t position = 0;
  for (int p = 0; p < set->count; ++p) {
    uint64_t bits[4];
    for (int j = 0; j < 4; ++j) {
      const int count = Isa::PopCount(words[j]);
      bits[j] =
          Isa::Deposit(ReadBits(tile->payload, position, count), words[j]);
      position += count;
    }
    std::memcpy(set->plane[p], bits, sizeof bits);
  }
  tile->payload += bytes;
  return true;
}

// Reads one block up to its codes; a RAW block's payload is left to the caller.
template <class Isa>
DecodedKind ReadBlock(TileDecoder<Isa>* tile, typename Isa::Decoded* block) {
  const uint8_t header = *tile->header++;
  if (header == kZeroHeader || header == kRawHeader) {
    Isa::Reset(&tile->above);
    return header == kRawHeader ? DecodedKind::kRaw : DecodedKind::kZero;
  }
  PlaneSet set;
  const uint8_t kind = header & kKindMask;
  if (kind == kSparse) {
    alignas(64) uint8_t bitmap[1][kLanes];
    if (!ReadSparse<Isa>(tile, header, &set, bitmap)) {
      return DecodedKind::kDamaged;
    }
    Isa::template CodesFromPlanes<Residual::kSparseValues>(
        set, bitmap[0], (header >> 2) & 0xF, &tile->above, block);
    return DecodedKind::kCodes;
  }
  if (!ReadPlanes<Isa>(tile, header & 0x3F, &set)) return DecodedKind::kDamaged;
  if (kind == kDeltaCodes) {
    Isa::template CodesFromPlanes<Residual::kDeltaCodes>(set, nullptr, 0,
                                                         &tile->above, block);
  } else if (kind == kDeltaSteps) {
    Isa::template CodesFromPlanes<Residual::kDeltaSteps>(set, nullptr, 0,
                                                         &tile->above, block);
  } else {
    Isa::template CodesFromPlanes<Residual::kDirectCodes>(set, nullptr, 0,
                                                          &tile->above, block);
  }
  return DecodedKind::kCodes;
}

// Takes a RAW block's present elements to rows of 32, `stride` bytes apart.
template <class Isa>
bool ReadRaw(TileDecoder<Isa>* tile, int element_bytes, const uint32_t* present,
             int64_t stride, uint8_t* out) {
  int elements = 0;
  for (int r = 0; r < kBlockRows; ++r) elements += Isa::PopCount(present[r]);
  if (tile->left() < static_cast<int64_t>(elements) * element_bytes) {
    return false;
  }
  for (int r = 0; r < kBlockRows; ++r) {
    const size_t bytes =
        static_cast<size_t>(element_bytes) * Isa::PopCount(present[r]);
    if (bytes != 0) std::memcpy(out + r * stride, tile->payload, bytes);
    tile->payload += bytes;
  }
  return true;
}

// Where a block lies in the output.
struct BlockPlace {
  const uint32_t* present;
  bool whole;      // every element is present
  int64_t offset;  // bytes from the start of the tensor
  int64_t stride;  // bytes from row to row
};

// Writes values.
template <class Isa, DType kType, Rounding kRounding>
struct ValueSink {
  static constexpr bool kRestoresValues = true;
  static constexpr int kBytes = kType == DType::kFloat32 ? 4 : 2;

  static void Fill(const DecodeJob& job, bool zero,
                   const typename Isa::Decoded& block,
                   const typename Isa::TileDither& dither, int64_t stride,
                   uint8_t* out) {
    if (zero) {
      for (int r = 0; r < kBlockRows; ++r) {
        std::memset(out + r * stride, 0, kBytes * kLanes);
      }
    } else {
      Isa::template Restore<kType, kRounding>(block, job.quantiser.step, dither,
                                              stride, out);
    }
  }

  static bool Block(const DecodeJob& job, DecodedKind kind,
                    const typename Isa::Decoded& block, const BlockPlace& place,
                    TileDecoder<Isa>* tile) {
    uint8_t* out = job.out + place.offset;
    if (kind == DecodedKind::kRaw) {
      return ReadRaw<Isa>(tile, kBytes, place.present, place.stride, out);
    }
    const bool zero = kind == DecodedKind::kZero;
    if (place.whole) {
      Fill(job, zero, block, tile->dither, place.stride, out);
      return true;
    }
    alignas(64) uint8_t padded[kBlockElements * kBytes];
    Fill(job, zero, block, tile->dither, kLanes * kBytes, padded);
    for (int r = 0; r < kBlockRows; ++r) {
      const int lanes = Isa::PopCount(place.present[r]);
      if (lanes == 0) continue;
      std::memcpy(out + r * place.stride, padded + r * kLanes * kBytes,
                  static_cast<size_t>(kBytes) * lanes);
    }
    return true;
  }
};

// Writes dy where the element is positive, slope * dy elsewhere.
template <class Isa, DType kType, Rounding kRounding>
struct SignSink {
  static constexpr bool kRestoresValues = false;
  static constexpr int kBytes = kType == DType::kFloat32 ? 4 : 2;
  // The bits of an element; what is not scaled moves unchanged.
  using Bits = std::conditional_t<kType == DType::kFloat32, uint32_t, uint16_t>;

  static float Widen(Bits bits) {
    if constexpr (kType == DType::kFloat32) {
      return FloatFromBits(bits);
    } else {
      return WidenElement<kType>(bits);
    }
  }

  static Bits Scale(Bits dy, float slope) {
    const float scaled = slope * Widen(dy);
    if constexpr (kType == DType::kFloat32) {
      return FloatBits(scaled);
    } else {
      const uint16_t nan = kType == DType::kFloat16 ? 0x7E00 : 0x7FC0;
      return scaled == scaled ? NarrowElement<kType>(scaled, Rounding::kDither)
                              : nan;
    }
  }

  static bool Block(const DecodeJob& job, DecodedKind kind,
                    const typename Isa::Decoded& block, const BlockPlace& place,
                    TileDecoder<Isa>* tile) {
    uint32_t positive[kBlockRows] = {};
    if (kind == DecodedKind::kRaw) {
      alignas(64) Bits raw[kBlockRows][kLanes] = {};
      if (!ReadRaw<Isa>(tile, kBytes, place.present, sizeof raw[0],
                        reinterpret_cast<uint8_t*>(raw))) {
        return false;
      }
      for (int r = 0; r < kBlockRows; ++r) {
        for (int k = 0; k < kLanes; ++k) {
          const float x = Widen(raw[r][k]);
          const bool is_positive = x > 0.0f && !IsExactZero(x);
          positive[r] |= static_cast<uint32_t>(is_positive) << k;
        }
      }
    } else if (kind == DecodedKind::kCodes) {
      Isa::template PositiveLanes<kRounding>(block, positive);
    }
    for (int r = 0; r < kBlockRows; ++r) {
      const size_t bytes =
          static_cast<size_t>(kBytes) * Isa::PopCount(place.present[r]);
      if (bytes == 0) continue;
      const int64_t offset = place.offset + r * place.stride;
      alignas(64) Bits row[kLanes] = {};
      std::memcpy(row, job.dy + offset, bytes);
      if (job.slope == 0.0f) {
        for (int k = 0; k < kLanes; ++k) {
          row[k] = (positive[r] >> k) & 1 ? row[k] : Bits{0};
        }
      } else {
        for (int k = 0; k < kLanes; ++k) {
          row[k] = (positive[r] >> k) & 1 ? row[k] : Scale(row[k], job.slope);
        }
      }
      std::memcpy(job.out + offset, row, bytes);
    }
    return true;
  }
};

template <class Isa, DType kType, Rounding kRounding, class Sink>
bool DecodeTiles(const DecodeJob& job, const TileUnit& unit,
                 const TileBytes* bytes, uint64_t* checksum) {
  constexpr int kBytes = kType == DType::kFloat32 ? 4 : 2;
  // The signs need no dither.
  constexpr bool kDither =
      kRounding == Rounding::kDither && Sink::kRestoresValues;
  const Geometry& g = job.geometry;
  const int blocks = BandBlocks(g, unit.band);
  TileDecoder<Isa> tiles[kUnitStrips];
  for (int k = 0; k < unit.strips; ++k) {
    if (bytes[k].size < blocks) return false;
    Isa::Reset(&tiles[k].above);
    if constexpr (kDither) {
      Isa::template StartDither<false>(job.mixed_seed, FirstTile(g, unit) + k,
                                       blocks, &tiles[k].dither);
    }
    tiles[k].header = bytes[k].data;
    tiles[k].payload = bytes[k].data + blocks;
    tiles[k].end = bytes[k].data + bytes[k].size;
    *checksum += TileChecksum(Isa::Checksum(bytes[k].data, bytes[k].size),
                              FirstTile(g, unit) + k);
  }
  for (int b = 0; b < blocks; ++b) {
    const int64_t row = unit.band * kTileRows + b * kBlockRows;
    const bool inner = (row + kBlockRows) * g.row_length <= g.n;
    for (int k = 0; k < unit.strips; ++k) {
      const int64_t strip = unit.first_strip + k;
      tiles[k].dither.first = b * kBlockRows;
      uint32_t present[kBlockRows];
      BlockPlace place;
      place.whole = inner && (strip + 1) * kLanes <= g.row_length;
      place.present = kAllPresent;
      place.offset = (row * g.row_length + strip * kLanes) * kBytes;
      place.stride = g.row_length * kBytes;
      if (!place.whole) {
        PresentMasks<Isa>(g, row, strip, present);
        place.present = present;
      }
      if (place.whole) {
        PrefetchBlock<Isa, true>(
            job.out + place.offset + kBlockRows * place.stride, place.stride,
            kLanes * kBytes);
      }
      typename Isa::Decoded block;
      const DecodedKind kind = ReadBlock<Isa>(&tiles[k], &block);
      if (kind == DecodedKind::kDamaged ||
          !Sink::Block(job, kind, block, place, &tiles[k])) {
        return false;
      }
    }
  }
  for (int k = 0; k < unit.strips; ++k) {
    if (tiles[k].left() != 0) return false;
  }
  return true;
}

template <class Isa, template <class, DType, Rounding> class Sink>
bool DecodeUnit(const DecodeJob& job, const TileUnit& unit,
                const TileBytes* bytes, uint64_t* checksum) {
  return DispatchTypes(job.dtype, job.rounding, [&](auto type, auto rounding) {
    constexpr DType kType = decltype(type)::value;
    constexpr Rounding kRounding = decltype(rounding)::value;
    return DecodeTiles<Isa, kType, kRounding, Sink<Isa, kType, kRounding>>(
        job, unit, bytes, checksum);
  });
}

}  // namespace
}  // namespace comet

#endif  // COMET_CPU_CODEC_DECODE_TILE_H_

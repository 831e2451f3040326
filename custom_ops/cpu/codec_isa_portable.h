// SPDX-License-Identifier: Apache-2.0
// Block primitives in plain C++, written as loops over 32 lanes that compilers
// vectorise. Each instruction set derives from this and replaces what its
// intrinsics do better. Only for inclusion in the kernel files: the unnamed
// namespace keeps every file's code to itself.
#ifndef COMET_CPU_CODEC_ISA_PORTABLE_H_
#define COMET_CPU_CODEC_ISA_PORTABLE_H_

#include <cstdint>
#include <cstring>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cpu/codec_portable_bits.h"

namespace comet {
namespace {

// What the planes of a block are made from.
enum class Residual { kDeltaCodes, kDeltaSteps, kDirectCodes, kSparseValues };

// The codes of a block and what the choice of its kind needs.
struct BlockCodes {
  alignas(64) int32_t code[kBlockRows][kLanes];
  uint32_t magnitudes;  // OR of q over nonzero elements
  bool negative;        // some s < 0
  bool rejected;
  int nonzeros;
};

// The row of codes above a block.
struct CodeRow {
  alignas(64) int32_t code[kLanes];
};

struct PlaneSet {
  alignas(64) uint8_t plane[32][kLanes];
  uint32_t mask[32];  // the bytes of each plane that are not zero
  int count;
};

struct PortableIsa : PortableBits {
  using Codes = BlockCodes;
  using Above = CodeRow;
  // The same for decoding.
  using Decoded = BlockCodes;
  using DecodedAbove = CodeRow;

  static void Reset(Above* above) { std::memset(above, 0, sizeof *above); }

  // The keys of a tile's dither.
  struct TileDither {
    alignas(64) uint16_t lane[kLanes];
    alignas(64) uint64_t pair[kTileRows / 2];  // of rows
    int first;                                 // row of the block at hand

    uint32_t RowKey(int row) const {
      const int k = first + row;
      return static_cast<uint32_t>(pair[k / 2] >> (k % 2 * 32));
    }
  };

  // kEncode: whether for Quantise or for Restore.
  template <bool kEncode>
  static void StartDither(uint64_t mixed_seed, int64_t tile, int blocks,
                          TileDither* dither) {
    for (int k = 0; k < kLanes; k += 4) {
      const uint64_t keys = DitherLaneKeys(mixed_seed, tile, k / 4);
      for (int j = 0; j < 4; ++j) {
        const auto key = static_cast<uint32_t>(keys >> (16 * j));
        dither->lane[k + j] = static_cast<uint16_t>(DitherLane(key, k + j));
      }
    }
    for (int p = 0; p < blocks * kBlockRows / 2; ++p) {
      dither->pair[p] = DitherRowKeys(mixed_seed, tile, p);
    }
  }

  // Quantises 8 rows of 32 lanes, `stride` bytes apart. The flag tells whether
  // all rows have the same lanes inside the tensor.
  template <DType kType, Rounding kRounding>
  static void Quantise(const uint8_t* x, int64_t stride, const Quantiser& q,
                       const TileDither& dither, bool, Codes* block) {
    if (kType == DType::kFloat32 && IsSureStep(q.step)) {
      QuantiseRows<kType, kRounding, false>(x, stride, q, dither, block);
      if (Length(block->magnitudes) <= kSurelyAcceptedBits) return;
    }
    QuantiseRows<kType, kRounding, true>(x, stride, q, dither, block);
  }

  template <DType kType, Rounding kRounding, bool kCheck>
  static void QuantiseRows(const uint8_t* x, int64_t stride, const Quantiser& q,
                           const TileDither& dither, Codes* block) {
    uint32_t magnitudes = 0;
    int nonzeros = 0;
    int32_t negative = 0;
    int32_t rejected = 0;
    for (int r = 0; r < kBlockRows; ++r) {
      alignas(64) float row[kLanes];
      alignas(64) int32_t offset[kLanes] = {};
      LoadRow<kType>(x + r * stride, row);
      if (kRounding == Rounding::kDither) {
        const uint32_t key = dither.RowKey(r);
        for (int k = 0; k < kLanes; ++k) {
          offset[k] = DitherOffset(key, dither.lane[k]);
        }
      }
      int32_t* code = block->code[r];
      for (int k = 0; k < kLanes; ++k) {
        code[k] = kCheck ? QuantiseInto<kType, kRounding>(row[k], offset[k], q,
                                                          &rejected)
                         : QuantiseUnchecked<kRounding>(row[k], offset[k], q);
      }
      for (int k = 0; k < kLanes; ++k) {
        const int32_t s = StepFromCode(code[k]);
        magnitudes |= static_cast<uint32_t>(s ^ (s >> 31));
        negative |= s;
        nonzeros += code[k] != 0;
      }
    }
    block->nonzeros = nonzeros;
    block->magnitudes = magnitudes;
    block->negative = negative < 0;
    block->rejected = rejected != 0;
  }

  // Bit planes of the block's residuals. `present`: the lanes of each row that
  // are inside the tensor; `sign_plane`: the plane that takes the signs
  // (kSparseValues).
  template <Residual kResidual>
  static void BuildPlanes(const Codes& block, const Above& above,
                          const uint32_t* present, int sign_plane,
                          PlaneSet* set) {
    alignas(64) uint32_t values[kBlockRows][kLanes];
    uint32_t all = 0;
    for (int r = 0; r < kBlockRows; ++r) {
      const int32_t* code = block.code[r];
      const int32_t* before = r == 0 ? above.code : block.code[r - 1];
      for (int k = 0; k < kLanes; ++k) {
        uint32_t v = 0;
        const int32_t s = StepFromCode(code[k]);
        if (kResidual == Residual::kDeltaCodes) {
          v = ZigZag(WrapSub(code[k], before[k]));
        } else if (kResidual == Residual::kDeltaSteps) {
          v = ZigZag(WrapSub(s, StepFromCode(before[k])));
        } else if (kResidual == Residual::kDirectCodes) {
          v = ZigZag(code[k]);
        } else {
          v = static_cast<uint32_t>(s ^ (s >> 31)) |
              (static_cast<uint32_t>(s < 0) << sign_plane);
        }
        values[r][k] = v;
      }
      if (present[r] != ~0u) {
        for (int k = 0; k < kLanes; ++k) {
          values[r][k] &= 0u - ((present[r] >> k) & 1);
        }
      }
      for (int k = 0; k < kLanes; ++k) all |= values[r][k];
    }
    set->count = Length(all);
    for (int p = 0; p < 8; ++p) set->mask[p] = 0;
    for (int first = 0; first < set->count; first += 8) {
      alignas(64) uint8_t bytes[kBlockRows][kLanes];
      for (int r = 0; r < kBlockRows; ++r) {
        for (int k = 0; k < kLanes; ++k) {
          bytes[r][k] = static_cast<uint8_t>(values[r][k] >> first);
        }
      }
      TransposeBits(bytes, set->plane + first);
    }
    for (int p = 0; p < set->count; ++p) {
      set->mask[p] = NonzeroBytes(set->plane[p]);
    }
  }

  // The bitmap of nonzero elements as a plane: byte = lane, bit = row.
  static void BitmapPlane(const Codes& block, uint8_t* plane) {
    for (int k = 0; k < kLanes; ++k) {
      uint32_t byte = 0;
      for (int r = 0; r < kBlockRows; ++r) {
        byte |= static_cast<uint32_t>(block.code[r][k] != 0) << r;
      }
      plane[k] = static_cast<uint8_t>(byte);
    }
  }

  static void KeepLastRow(const Codes& block, Above* above) {
    std::memcpy(above->code, block.code[kBlockRows - 1], sizeof above->code);
  }

  // Inverse of BuildPlanes: the codes from the planes and the row above, which
  // becomes the last row. `bitmap` as in BitmapPlane (kSparseValues).
  template <Residual kResidual>
  static void CodesFromPlanes(const PlaneSet& set, const uint8_t* bitmap,
                              int sign_plane, Above* above, Codes* block) {
    alignas(64) uint8_t bytes[kBlockRows][kLanes];
    if (set.count <= 8) {
      BytesFromPlanes(set, 0, bytes);
      CodesFromValues<kResidual>(bytes, bitmap, sign_plane, above, block);
      return;
    }
    alignas(64) uint32_t values[kBlockRows][kLanes] = {};
    for (int first = 0; first < set.count; first += 8) {
      BytesFromPlanes(set, first, bytes);
      for (int r = 0; r < kBlockRows; ++r) {
        for (int k = 0; k < kLanes; ++k) {
          values[r][k] |= static_cast<uint32_t>(bytes[r][k]) << first;
        }
      }
    }
    CodesFromValues<kResidual>(values, bitmap, sign_plane, above, block);
  }

  // Bits first..first+7 of the values.
  static void BytesFromPlanes(const PlaneSet& set, int first,
                              uint8_t (*bytes)[kLanes]) {
    alignas(64) uint8_t planes[kBlockRows][kLanes] = {};
    const int count = set.count - first < 8 ? set.count - first : 8;
    std::memcpy(planes, set.plane[first], static_cast<size_t>(kLanes) * count);
    TransposeBits(planes, bytes);
  }

  // Value: uint8_t or uint32_t.
  template <Residual kResidual, class Value>
  static void CodesFromValues(const Value (*values)[kLanes],
                              const uint8_t* bitmap, int sign_plane,
                              Above* above, Codes* block) {
    auto* code = block->code;
    for (int r = 0; r < kBlockRows; ++r) {
      alignas(64) uint32_t value[kLanes];
      for (int k = 0; k < kLanes; ++k) value[k] = values[r][k];
      const int32_t* before = r == 0 ? above->code : code[r - 1];
      for (int k = 0; k < kLanes; ++k) {
        int32_t c;
        if (kResidual == Residual::kDeltaCodes) {
          c = WrapAdd(before[k], UnZigZag(value[k]));
        } else if (kResidual == Residual::kDeltaSteps) {
          c = CodeFromStep(
              WrapAdd(StepFromCode(before[k]), UnZigZag(value[k])));
        } else if (kResidual == Residual::kDirectCodes) {
          c = UnZigZag(value[k]);
        } else {
          const uint32_t sign = (value[k] >> sign_plane) & 1;
          const uint32_t q = value[k] & ((1u << sign_plane) - 1);
          c = CodeFromStep(static_cast<int32_t>(q ^ (0u - sign)));
          c = (bitmap[k] >> r) & 1 ? c : 0;
        }
        code[r][k] = c;
      }
    }
    KeepLastRow(*block, above);
  }

  // Restores 8 rows of 32 lanes from their codes.
  template <DType kType, Rounding kRounding>
  static void Restore(const Codes& block, float step, const TileDither& dither,
                      int64_t stride, uint8_t* out) {
    for (int r = 0; r < kBlockRows; ++r) {
      alignas(64) float row[kLanes];
      for (int k = 0; k < kLanes; ++k) {
        int32_t u = 0;
        if (kRounding == Rounding::kDither) {
          u = DitherOffset(dither.RowKey(r), dither.lane[k]);
        }
        const int32_t c = block.code[r][k];
        const float y = RestoreStep(StepFromCode(c), step, u, kRounding);
        row[k] = c == 0 ? 0.0f : y;
      }
      StoreRow<kType>(row, kRounding, out + r * stride);
    }
  }

  // Positive elements of each row (bit = lane); with dither all nonzero ones.
  template <Rounding kRounding>
  static void PositiveLanes(const Codes& block, uint32_t* positive) {
    for (int r = 0; r < kBlockRows; ++r) {
      positive[r] = 0;
      for (int k = 0; k < kLanes; ++k) {
        const int32_t c = block.code[r][k];
        const bool is_positive =
            kRounding == Rounding::kDither ? c != 0 : c > 0;
        positive[r] |= static_cast<uint32_t>(is_positive) << k;
      }
    }
  }
};

}  // namespace
}  // namespace comet

#endif  // COMET_CPU_CODEC_ISA_PORTABLE_H_

// SPDX-License-Identifier: Apache-2.0
// Block primitives of decoding for AVX-512, on top of those of encoding. Codes
// that fit 16 bits have one register a row, in packed order (`OrderTable`);
// others take the portable path.
#ifndef COMET_CPU_CODEC_ISA_AVX512_H_
#define COMET_CPU_CODEC_ISA_AVX512_H_

#include "custom_ops/cpu/codec_avx512_encode.h"

namespace comet {
namespace {

struct Avx512Isa : Avx512Encode {
  using Avx512Encode::Reset;

  struct Decoded {
    alignas(64) int16_t row[kBlockRows][kLanes];
    BlockCodes wide;  // only where is_wide
    bool is_wide;
  };

  struct DecodedAbove {
    alignas(64) int16_t row[kLanes];
    CodeRow wide;  // only where is_wide
    bool is_wide;
    int reach;  // bound of the magnitudes
  };

  static void Reset(DecodedAbove* above) {
    Store(above->row, _mm512_setzero_si512());
    above->is_wide = false;
    above->reach = 0;
  }

  template <Residual kResidual>
  static void CodesFromPlanes(const PlaneSet& set, const uint8_t* bitmap,
                              int sign_plane, DecodedAbove* above,
                              Decoded* block) {
    constexpr bool kDelta = kResidual == Residual::kDeltaCodes ||
                            kResidual == Residual::kDeltaSteps;
    // Largest magnitude that these planes can lead to.
    const int reach = set.count > 14
                          ? INT32_MAX
                          : (kDelta ? above->reach : 0) + (9 << set.count);
    block->is_wide = reach > INT16_MAX || (kDelta && above->is_wide);
    if (block->is_wide) {
      if (!above->is_wide) {
        for (int k = 0; k < kLanes; ++k) {
          above->wide.code[k] = above->row[PackedPosition(k)];
        }
      }
      PortableIsa::CodesFromPlanes<kResidual>(set, bitmap, sign_plane,
                                              &above->wide, &block->wide);
      KeepWideRow(block->wide, above);
      return;
    }
    if (set.count <= 8) {
      CodesFromPlanes8<kResidual>(set, bitmap, sign_plane, above, block);
    } else {
      CodesFromPlanes16<kResidual>(set, bitmap, sign_plane, above, block);
    }
    above->is_wide = false;
    above->reach = reach;
  }

  // Takes a wide block's last row; packs it if it fits.
  static void KeepWideRow(const BlockCodes& wide, DecodedAbove* above) {
    const int32_t* code = wide.code[kBlockRows - 1];
    uint32_t magnitudes = 0;
    for (int k = 0; k < kLanes; ++k) {
      magnitudes |= static_cast<uint32_t>(code[k] ^ (code[k] >> 31));
    }
    above->is_wide = Length(magnitudes) > kPackedBits;
    if (above->is_wide) return;  // above->wide is the last row already
    for (int k = 0; k < kLanes; ++k) {
      above->row[PackedPosition(k)] = static_cast<int16_t>(code[k]);
    }
    above->reach = 1 << kPackedBits;
  }

  // A plane in packed order, twice.
  static __m512i PackedPlane(const uint8_t* plane) {
    const __m512i order = _mm512_load_si512(kPackedOrder.lane_byte);
    return _mm512_permutexvar_epi8(order,
                                   _mm512_castsi256_si512(LoadPlane(plane)));
  }

  static __m256i PackedHalf(const uint8_t* plane) {
    return Low(PackedPlane(plane));
  }

  // Row bits: low half row 2 pair, high half row 2 pair + 1.
  static __m512i RowHalves(int pair) {
    return _mm512_inserti64x4(
        _mm512_set1_epi8(static_cast<char>(1 << (2 * pair))),
        _mm256_set1_epi8(static_cast<char>(2 << (2 * pair))), 1);
  }

  template <Residual kResidual>
  static void CodesFromPlanes8(const PlaneSet& set, const uint8_t* bitmap,
                               int sign_plane, DecodedAbove* above,
                               Decoded* block) {
    constexpr bool kSparse = kResidual == Residual::kSparseValues;
    __m512i value[kBlockRows / 2];
    const __m512i zero = _mm512_setzero_si512();
    for (__m512i& v : value) v = zero;
    // Planes of the magnitude: for zigzag all but the first, one bit lower.
    const int first = kSparse ? 0 : 1;
    const int end = kSparse && sign_plane < set.count ? sign_plane : set.count;
    for (int p = first; p < end; ++p) {
      const __m512i plane = PackedPlane(set.plane[p]);
      const __m512i bit = _mm512_set1_epi8(static_cast<char>(1 << (p - first)));
#pragma GCC unroll 4
      for (int j = 0; j < kBlockRows / 2; ++j) {
        const __mmask64 rows = _mm512_test_epi8_mask(plane, RowHalves(j));
        value[j] = _mm512_mask_add_epi8(value[j], rows, value[j], bit);
      }
    }
    if constexpr (kSparse) {
      const __m512i map = PackedPlane(bitmap);
      const __m512i signs =
          sign_plane < set.count ? PackedPlane(set.plane[sign_plane]) : zero;
      // Up to 8 magnitude bits: codes from q take 16 bits.
#pragma GCC unroll 4
      for (int j = 0; j < kBlockRows / 2; ++j) {
        const __mmask64 present = _mm512_test_epi8_mask(map, RowHalves(j));
        const __mmask64 negative = _mm512_test_epi8_mask(signs, RowHalves(j));
        StoreSparse(Low(value[j]), static_cast<__mmask32>(present),
                    static_cast<__mmask32>(negative), block->row[2 * j]);
        StoreSparse(High(value[j]), static_cast<__mmask32>(present >> 32),
                    static_cast<__mmask32>(negative >> 32),
                    block->row[2 * j + 1]);
      }
      Store(above->row, LoadRow16(block->row[kBlockRows - 1]));
      return;
    }
    const __m512i signs = set.count > 0 ? PackedPlane(set.plane[0]) : zero;
    const __m512i ones = _mm512_set1_epi8(-1);
    __m512i sum = FirstSum<kResidual>(*above);
#pragma GCC unroll 4
    for (int j = 0; j < kBlockRows / 2; ++j) {
      const __mmask64 negative = _mm512_test_epi8_mask(signs, RowHalves(j));
      const __m512i d =
          _mm512_mask_sub_epi8(value[j], negative, ones, value[j]);
      sum = NextRow<kResidual>(sum, _mm512_cvtepi8_epi16(Low(d)),
                               block->row[2 * j]);
      sum = NextRow<kResidual>(sum, _mm512_cvtepi8_epi16(High(d)),
                               block->row[2 * j + 1]);
    }
    Store(above->row, LoadRow16(block->row[kBlockRows - 1]));
  }

  // Writes codes q + 1, or its complement -q - 1, of the present lanes.
  static void StoreSparse(__m256i q, __mmask32 present, __mmask32 negative,
                          int16_t* row) {
    StoreSparse16(_mm512_cvtepu8_epi16(q), present, negative, row);
  }

  static void StoreSparse16(__m512i q, __mmask32 present, __mmask32 negative,
                            int16_t* row) {
    const __m512i code =
        _mm512_maskz_add_epi16(present, q, _mm512_set1_epi16(1));
    Store(row, _mm512_mask_sub_epi16(code, present & negative,
                                     _mm512_setzero_si512(), code));
  }

  // What the running sum of a block starts from.
  template <Residual kResidual>
  static __m512i FirstSum(const DecodedAbove& above) {
    if constexpr (kResidual == Residual::kDirectCodes) {
      return _mm512_setzero_si512();
    }
    const __m512i code = LoadRow16(above.row);
    return kResidual == Residual::kDeltaSteps ? StepsFromCodes16(code) : code;
  }

  // Stores the next row's codes and returns its sum.
  template <Residual kResidual>
  static __m512i NextRow(__m512i sum, __m512i d, int16_t* row) {
    if constexpr (kResidual == Residual::kDirectCodes) {
      Store(row, d);
      return sum;
    }
    sum = _mm512_add_epi16(sum, d);
    if constexpr (kResidual == Residual::kDeltaSteps) {
      const __mmask32 negative = _mm512_movepi16_mask(sum);
      Store(row,
            _mm512_mask_add_epi16(sum, ~negative, sum, _mm512_set1_epi16(1)));
    } else {
      Store(row, sum);
    }
    return sum;
  }

  template <Residual kResidual>
  static void CodesFromPlanes16(const PlaneSet& set, const uint8_t* bitmap,
                                int sign_plane, DecodedAbove* above,
                                Decoded* block) {
    constexpr bool kSparse = kResidual == Residual::kSparseValues;
    const int first = kSparse ? 0 : 1;
    const int end = kSparse && sign_plane < set.count ? sign_plane : set.count;
    __m512i sum = FirstSum<kResidual>(*above);
    for (int r = 0; r < kBlockRows; ++r) {
      const __m256i row_bit = _mm256_set1_epi8(static_cast<char>(1 << r));
      __m512i value = _mm512_setzero_si512();
      for (int p = first; p < end; ++p) {
        const __mmask32 rows =
            _mm256_test_epi8_mask(PackedHalf(set.plane[p]), row_bit);
        value = _mm512_mask_add_epi16(
            value, rows, value,
            _mm512_set1_epi16(static_cast<short>(1 << (p - first))));
      }
      if constexpr (kSparse) {
        const __mmask32 present =
            _mm256_test_epi8_mask(PackedHalf(bitmap), row_bit);
        const __mmask32 negative =
            sign_plane < set.count
                ? _mm256_test_epi8_mask(PackedHalf(set.plane[sign_plane]),
                                        row_bit)
                : 0;
        StoreSparse16(value, present, negative, block->row[r]);
      } else {
        const __mmask32 negative =
            _mm256_test_epi8_mask(PackedHalf(set.plane[0]), row_bit);
        value = _mm512_mask_sub_epi16(value, negative, _mm512_set1_epi16(-1),
                                      value);
        sum = NextRow<kResidual>(sum, value, block->row[r]);
      }
    }
    Store(above->row, LoadRow16(block->row[kBlockRows - 1]));
  }

  template <DType kType, Rounding kRounding>
  static void Store16(__m512 y, uint8_t* out) {
    if constexpr (kType == DType::kFloat32) {
      _mm512_storeu_ps(out, y);
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                          Narrow<kType, kRounding>(y));
    }
  }

  template <DType kType, Rounding kRounding>
  static void Restore(const Decoded& block, float step,
                      const TileDither& dither, int64_t stride, uint8_t* out) {
    constexpr int kHalfRow = kType == DType::kFloat32 ? 64 : 32;
    if (block.is_wide || !IsSureStep(step)) {
      BlockCodes codes;
      PortableIsa::Restore<kType, kRounding>(WideCodes(block, &codes), step,
                                             dither, stride, out);
      return;
    }
    const Restorer<kRounding, false> restorer(
        dither, step, _mm512_load_si512(kPackedOrder.lane));
#pragma GCC unroll 8
    for (int r = 0; r < kBlockRows; ++r) {
      __m512 y[2];
      restorer.Row(LoadRow16(block.row[r]), r, y);
      uint8_t* row = out + r * stride;
      Store16<kType, kRounding>(y[0], row);
      Store16<kType, kRounding>(y[1], row + kHalfRow);
    }
  }

  static const BlockCodes& WideCodes(const Decoded& block, BlockCodes* codes) {
    if (block.is_wide) return block.wide;
    for (int r = 0; r < kBlockRows; ++r) {
      for (int k = 0; k < kLanes; ++k) {
        codes->code[r][k] = block.row[r][PackedPosition(k)];
      }
    }
    return *codes;
  }

  template <Rounding kRounding>
  static void PositiveLanes(const Decoded& block, uint32_t* positive) {
    if (block.is_wide) {
      PortableIsa::PositiveLanes<kRounding>(block.wide, positive);
      return;
    }
    const __m512i lane_order = _mm512_load_si512(kPackedOrder.position);
    for (int r = 0; r < kBlockRows; ++r) {
      const __m512i code =
          _mm512_permutexvar_epi16(lane_order, LoadRow16(block.row[r]));
      positive[r] = kRounding == Rounding::kDither
                        ? _mm512_test_epi16_mask(code, code)
                        : _mm512_cmpgt_epi16_mask(code, _mm512_setzero_si512());
    }
  }
};

}  // namespace
}  // namespace comet

#endif  // COMET_CPU_CODEC_ISA_AVX512_H_

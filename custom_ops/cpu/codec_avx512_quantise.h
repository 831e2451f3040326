// SPDX-License-Identifier: Apache-2.0
// From floats to codes for AVX-512.
//
// Codes that fit 16 bits stay packed: one register a row, its 32 lanes in the
// order that suits the quantiser (`OrderTable`; lane order comes back with one
// byte permutation a plane). Rare blocks, with larger codes or at the end of
// the tensor, take the portable path on int32 codes ("wide").
#ifndef COMET_CPU_CODEC_AVX512_QUANTISE_H_
#define COMET_CPU_CODEC_AVX512_QUANTISE_H_

#include "custom_ops/cpu/codec_avx512_vectors.h"

namespace comet {
namespace {

struct Avx512Quantise : Avx512Vectors {
  struct Codes {
    alignas(64) int16_t packed[kBlockRows][kLanes];
    BlockCodes wide;  // only where is_wide
    const OrderTable* order;
    bool is_wide;
    uint32_t magnitudes;
    bool negative;
    bool rejected;
    int nonzeros;
  };

  // Codes of up to this many magnitude bits are packed.
  static constexpr int kPackedBits = 13;

  // Codes of 32 elements in packed order, rounded to nearest.
  static __m512i QuantiseNearest(__m512 low, __m512 high, __m512 inv) {
    const auto codes = [inv](__m512 x) {
      const __m512i bits = _mm512_castps_si512(x);
      const __mmask16 nonzero =
          _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x7F800000));
      const __m512i i = _mm512_cvttps_epi32(_mm512_mul_ps(x, inv));
      const __m512i sign = _mm512_srai_epi32(bits, 31);
      return _mm512_maskz_add_epi32(
          nonzero, i, _mm512_or_si512(sign, _mm512_set1_epi32(1)));
    };
    return _mm512_packs_epi32(codes(low), codes(high));
  }

  // The same in paired order with dither: fixed point, 16 bits after the point.
  // tops: the upper half of each element's bits; scale: 2^16 / step.
  static __m512i QuantiseDithered(__m512 low, __m512 high, __m512i tops,
                                  __m512i u, __m512 scale) {
    const __m512i fixed_low =
        _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(low, scale)),
                         _mm512_and_si512(u, _mm512_set1_epi32(0xFFFF)));
    const __m512i fixed_high =
        _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(high, scale)),
                         _mm512_srli_epi32(u, 16));
    const __m512i s = PairTops(fixed_low, fixed_high);
    const __mmask32 nonzero =
        _mm512_test_epi16_mask(tops, _mm512_set1_epi16(0x7F80));
    const __mmask32 up =
        _mm512_mask_cmpge_epi16_mask(nonzero, s, _mm512_setzero_si512());
    return _mm512_mask_add_epi16(s, up, s, _mm512_set1_epi16(1));
  }

  // The upper halves of 32-bit elements in paired order.
  static __m512i PairTops(__m512i low, __m512i high) {
    return _mm512_mask_mov_epi16(high, 0x55555555, _mm512_srli_epi32(low, 16));
  }

  template <DType kType>
  static __m512i Tops(const uint8_t* row, __m512 low, __m512 high) {
    const __m512i high_bits = _mm512_castps_si512(high);
    if constexpr (kType == DType::kFloat32) {
      // Read from 2 bytes on, the upper halves are where the lower ones were.
      return _mm512_mask_loadu_epi16(high_bits, 0x55555555, row + 2);
    } else {
      return PairTops(_mm512_castps_si512(low), high_bits);
    }
  }

  template <DType kType, Rounding kRounding>
  static void Quantise(const uint8_t* x, int64_t stride, const Quantiser& q,
                       const TileDither& dither, bool uniform, Codes* block) {
    constexpr int kHalfRow = kType == DType::kFloat32 ? 64 : 32;
    constexpr bool kDither = kRounding == Rounding::kDither;
    const __m512 inv = _mm512_set1_ps(q.inv);
    [[maybe_unused]] const __m512 scale = _mm512_set1_ps(q.inv * 65536.0f);
    block->order = kDither ? &kPairedOrder : &kPackedOrder;
    [[maybe_unused]] __m512i lanes;
    if constexpr (kDither) {
      lanes = DitherLanes(dither, _mm512_load_si512(kPairedOrder.lane));
    }
    __m512i magnitudes = _mm512_setzero_si512();
    __m512i negative = _mm512_setzero_si512();
    int nonzeros = 0;
#pragma GCC unroll 8
    for (int r = 0; r < kBlockRows; ++r) {
      const uint8_t* row = x + r * stride;
      const __m512 low = Load16<kType>(row);
      const __m512 high = Load16<kType>(row + kHalfRow);
      __m512i code;
      if constexpr (kDither) {
        code = QuantiseDithered(low, high, Tops<kType>(row, low, high),
                                DitherRow(lanes, dither, r), scale);
      } else {
        code = QuantiseNearest(low, high, inv);
      }
      Store(block->packed[r], code);
      nonzeros += PopCount(_mm512_test_epi16_mask(code, code));
      negative = _mm512_or_si512(negative, code);
      magnitudes = _mm512_or_si512(magnitudes, Magnitudes16(code));
    }
    block->magnitudes = OrWords(magnitudes);
    block->negative = _mm512_movepi16_mask(negative) != 0;
    block->nonzeros = nonzeros;
    const int length = Length(block->magnitudes);
    // With other steps fixed-point arithmetic rounds, and restored values may
    // be subnormal or infinite.
    block->is_wide = !uniform || length > kPackedBits || !IsSureStep(q.step);
    if (block->is_wide) {
      PortableIsa::Quantise<kType, kRounding>(x, stride, q, dither, uniform,
                                              &block->wide);
      block->magnitudes = block->wide.magnitudes;
      block->negative = block->wide.negative;
      block->rejected = block->wide.rejected;
      block->nonzeros = block->wide.nonzeros;
    } else {
      const bool sure =
          kType == DType::kFloat32 && length <= kSurelyAcceptedBits;
      block->rejected =
          !sure && IsOutside<kType, kRounding>(x, stride, q, dither, *block);
    }
  }

  // q of nonzero codes, 0 of others.
  static __m512i Magnitudes16(__m512i code) {
    return _mm512_subs_epu16(_mm512_abs_epi16(code), _mm512_set1_epi16(1));
  }

  // Whether an element is not within the bound when restored as decoders do.
  template <DType kType, Rounding kRounding>
  static bool IsOutside(const uint8_t* x, int64_t stride, const Quantiser& q,
                        const TileDither& dither, const Codes& block) {
    constexpr int kHalfRow = kType == DType::kFloat32 ? 64 : 32;
    const __m512i order = _mm512_load_si512(kPackedOrder.lane);
    const __m512i reorder = PermutationTo(order, *block.order);
    const Restorer<kRounding, true> restorer(dither, q.step, order);
    const __m512 zero = _mm512_setzero_ps();
    __m512 error = zero;
    __mmask16 lost = 0;
    for (int r = 0; r < kBlockRows; ++r) {
      const uint8_t* row = x + r * stride;
      const __m512i code =
          _mm512_permutexvar_epi16(reorder, LoadRow16(block.packed[r]));
      __m512 y[2];
      restorer.Row(code, r, y);
      for (int half = 0; half < 2; ++half) {
        const __m512 from = Load16<kType>(row + half * kHalfRow);
        const __mmask16 live = _mm512_cmpneq_ps_mask(y[half], zero);
        __m512 to = y[half];
        if constexpr (kType != DType::kFloat32) {
          to = Widen<kType>(Narrow<kType, kRounding>(to));
          lost |= _mm512_mask_testn_epi32_mask(live, _mm512_castps_si512(to),
                                               _mm512_set1_epi32(0x7F800000));
        }
        // Largest magnitude. NaN cannot be: codes this small have finite x.
        error = _mm512_mask_range_ps(error, live, error,
                                     _mm512_sub_ps(from, to), 0xB);
      }
    }
    return lost != 0 || FloatBits(_mm512_reduce_max_ps(error)) > q.limit;
  }

  // OR of all 16-bit words.
  static uint32_t OrWords(__m512i v) {
    const uint32_t all = static_cast<uint32_t>(_mm512_reduce_or_epi32(v));
    return (all | all >> 16) & 0xFFFFu;
  }
};

}  // namespace
}  // namespace comet

#endif  // COMET_CPU_CODEC_AVX512_QUANTISE_H_

// SPDX-License-Identifier: Apache-2.0
// Block primitives for AVX2. The compiler vectorises most portable loops well
// for it; replaced are the quantiser and what works on single bytes and bits.
#ifndef COMET_CPU_CODEC_ISA_AVX2_H_
#define COMET_CPU_CODEC_ISA_AVX2_H_

#include <immintrin.h>

#include "custom_ops/cpu/codec_isa_portable.h"

namespace comet {
namespace {

struct Avx2Isa : PortableIsa {
  // What the quantiser gathers of a block.
  struct Gather {
    __m256i magnitudes = _mm256_setzero_si256();
    __m256i codes = _mm256_setzero_si256();
    __m256i zeros = _mm256_setzero_si256();  // minus their number
  };

  static __m256i ZeroMask(__m256 x, Gather* gather) {
    const __m256i exponent =
        _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7F800000));
    const __m256i zero = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
    gather->zeros = _mm256_add_epi32(gather->zeros, zero);
    return zero;
  }

  // As QuantiseUnchecked(); what is too large converts to INT32_MIN.
  static __m256i QuantiseNearest8(__m256 x, __m256 inv, Gather* gather) {
    const __m256i zero = ZeroMask(x, gather);
    const __m256i i = _mm256_cvttps_epi32(_mm256_mul_ps(x, inv));
    const __m256i sign = _mm256_srai_epi32(_mm256_castps_si256(x), 31);
    gather->magnitudes =
        _mm256_or_si256(gather->magnitudes, _mm256_abs_epi32(i));
    return _mm256_andnot_si256(
        zero, _mm256_add_epi32(i, _mm256_or_si256(sign, _mm256_set1_epi32(1))));
  }

  // The same in fixed point, 16 bits after the point; scale: 2^16 / step.
  static __m256i QuantiseDithered8(__m256 x, __m256i u, __m256 scale,
                                   Gather* gather) {
    const __m256i zero = ZeroMask(x, gather);
    const __m256i fixed =
        _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x, scale)), u);
    const __m256i s = _mm256_srai_epi32(fixed, 16);
    const __m256i sign = _mm256_srai_epi32(fixed, 31);
    gather->magnitudes =
        _mm256_or_si256(gather->magnitudes, _mm256_xor_si256(s, sign));
    const __m256i up = _mm256_add_epi32(sign, _mm256_set1_epi32(1));
    return _mm256_andnot_si256(zero, _mm256_add_epi32(s, up));
  }

  // The dither of 16 lanes.
  static __m256i Dither16(const TileDither& dither, int row, int half) {
    const uint32_t key = dither.RowKey(row);
    const __m256i lanes = _mm256_load_si256(
        reinterpret_cast<const __m256i*>(dither.lane + 16 * half));
    const __m256i flip = _mm256_set1_epi16(static_cast<short>(DitherFlip(key)));
    const __m256i factor =
        _mm256_set1_epi16(static_cast<short>(DitherFactor(key)));
    return _mm256_mullo_epi16(_mm256_xor_si256(lanes, flip), factor);
  }

  template <DType kType, Rounding kRounding>
  static void Quantise(const uint8_t* x, int64_t stride, const Quantiser& q,
                       const TileDither& dither, bool uniform, Codes* block) {
    if (kType != DType::kFloat32 || !IsSureStep(q.step)) {
      PortableIsa::Quantise<kType, kRounding>(x, stride, q, dither, uniform,
                                              block);
      return;
    }
    const __m256 inv = _mm256_set1_ps(q.inv);
    const __m256 scale = _mm256_set1_ps(q.inv * 65536.0f);
    Gather gather;
    for (int r = 0; r < kBlockRows; ++r) {
      const auto* row = reinterpret_cast<const float*>(x + r * stride);
      for (int half = 0; half < 2; ++half) {
        const __m256 low = _mm256_loadu_ps(row + 16 * half);
        const __m256 high = _mm256_loadu_ps(row + 16 * half + 8);
        __m256i code[2];
        if constexpr (kRounding == Rounding::kDither) {
          const __m256i u = Dither16(dither, r, half);
          code[0] = QuantiseDithered8(
              low, _mm256_cvtepu16_epi32(_mm256_castsi256_si128(u)), scale,
              &gather);
          code[1] = QuantiseDithered8(
              high, _mm256_cvtepu16_epi32(_mm256_extracti128_si256(u, 1)),
              scale, &gather);
        } else {
          code[0] = QuantiseNearest8(low, inv, &gather);
          code[1] = QuantiseNearest8(high, inv, &gather);
        }
        gather.codes =
            _mm256_or_si256(gather.codes, _mm256_or_si256(code[0], code[1]));
        int32_t* to = block->code[r] + 16 * half;
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), code[0]);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + 8), code[1]);
      }
    }
    uint32_t magnitudes[8];
    int32_t zeros[8];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(magnitudes),
                        gather.magnitudes);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(zeros), gather.zeros);
    block->magnitudes = 0;
    block->nonzeros = kBlockElements;
    for (int k = 0; k < 8; ++k) {
      block->magnitudes |= magnitudes[k];
      block->nonzeros += zeros[k];
    }
    block->negative =
        _mm256_movemask_ps(_mm256_castsi256_ps(gather.codes)) != 0;
    block->rejected = false;
    if (Length(block->magnitudes) > kSurelyAcceptedBits) {
      QuantiseRows<kType, kRounding, true>(x, stride, q, dither, block);
    }
  }

  static __m256i IsZero8(const int32_t* codes) {
    return _mm256_cmpeq_epi32(
        _mm256_load_si256(reinterpret_cast<const __m256i*>(codes)),
        _mm256_setzero_si256());
  }

  static void BitmapPlane(const Codes& block, uint8_t* plane) {
    __m256i bits = _mm256_setzero_si256();
    for (int r = 0; r < kBlockRows; ++r) {
      const int32_t* row = block.code[r];
      // Ones where a code is 0, down to bytes.
      const __m256i low = _mm256_packs_epi32(IsZero8(row), IsZero8(row + 8));
      const __m256i high =
          _mm256_packs_epi32(IsZero8(row + 16), IsZero8(row + 24));
      const __m256i bit = _mm256_set1_epi8(static_cast<char>(1 << r));
      bits = _mm256_or_si256(
          bits, _mm256_andnot_si256(_mm256_packs_epi16(low, high), bit));
    }
    // Packing works within halves: back to lane order.
    const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
    _mm256_store_si256(reinterpret_cast<__m256i*>(plane),
                       _mm256_permutevar8x32_epi32(bits, order));
  }

  static uint32_t NonzeroBytes(const uint8_t* bytes) {
    const __m256i zeros = _mm256_cmpeq_epi8(
        _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes)),
        _mm256_setzero_si256());
    return ~static_cast<uint32_t>(_mm256_movemask_epi8(zeros));
  }

  static uint64_t Extract(uint64_t value, uint64_t mask) {
    return _pext_u64(value, mask);
  }
  static uint64_t Deposit(uint64_t value, uint64_t mask) {
    return _pdep_u64(value, mask);
  }

  // 8 mask bits as 8 bytes of ones or zeros.
  static uint64_t ByteMask(uint32_t bits) {
    return _pdep_u64(bits, 0x0101010101010101ull) * 0xFF;
  }

  static uint8_t* CompressBytes(const uint8_t* bytes, uint32_t mask,
                                uint8_t* out) {
    for (int j = 0; j < 4; ++j) {
      const uint32_t bits = (mask >> (8 * j)) & 0xFF;
      uint64_t word;
      std::memcpy(&word, bytes + 8 * j, sizeof word);
      word = _pext_u64(word, ByteMask(bits));
      std::memcpy(out, &word, sizeof word);
      out += PopCount(bits);
    }
    return out;
  }

  static void ExpandBytes(const uint8_t* in, uint32_t mask, uint8_t* bytes) {
    for (int j = 0; j < 4; ++j) {
      const uint32_t bits = (mask >> (8 * j)) & 0xFF;
      uint64_t word;
      std::memcpy(&word, in, sizeof word);
      word = _pdep_u64(word, ByteMask(bits));
      std::memcpy(bytes + 8 * j, &word, sizeof word);
      in += PopCount(bits);
    }
  }
};

}  // namespace
}  // namespace comet

#endif  // COMET_CPU_CODEC_ISA_AVX2_H_

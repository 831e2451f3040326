// SPDX-License-Identifier: Apache-2.0
// Operations on vectors for AVX-512 (Ice Lake, Zen 4 and later): bytes and bit
// masks, loads and conversions, the dither hash, the checksum.
#ifndef COMET_CPU_CODEC_AVX512_VECTORS_H_
#define COMET_CPU_CODEC_AVX512_VECTORS_H_

// GCC 12 takes the intrinsics' own undefined operands for mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include "custom_ops/cpu/codec_isa_portable.h"

namespace comet {
namespace {

struct Avx512Vectors : PortableIsa {
  static uint64_t Extract(uint64_t value, uint64_t mask) {
    return _pext_u64(value, mask);
  }
  static uint64_t Deposit(uint64_t value, uint64_t mask) {
    return _pdep_u64(value, mask);
  }

  static uint32_t NonzeroBytes(const uint8_t* bytes) {
    const __m256i v = LoadPlane(bytes);
    return _mm256_test_epi8_mask(v, v);
  }

  static uint8_t* CompressBytes(const uint8_t* bytes, uint32_t mask,
                                uint8_t* out) {
    const __m256i v = _mm256_maskz_compress_epi8(mask, LoadPlane(bytes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), v);
    return out + PopCount(mask);
  }

  static void ExpandBytes(const uint8_t* in, uint32_t mask, uint8_t* bytes) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
    _mm256_store_si256(reinterpret_cast<__m256i*>(bytes),
                       _mm256_maskz_expand_epi8(mask, v));
  }

  static uint8_t* WriteMasks(const uint32_t* mask, int count, uint8_t* out) {
    if (count > 8) return PortableIsa::WriteMasks(mask, count, out);
    const __mmask32 used = _bzhi_u32(~0u, 4 * count);
    const __m256i bytes = _mm256_maskz_loadu_epi8(used, mask);
    const uint32_t flags = _mm256_test_epi8_mask(bytes, bytes);
    std::memcpy(out, &flags, sizeof flags);
    out += (count + 1) / 2;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        _mm256_maskz_compress_epi8(flags, bytes));
    return out + PopCount(flags);
  }

  static int ReadMasks(const uint8_t* in, int64_t left, int count,
                       uint32_t* mask) {
    if (count > 8) return PortableIsa::ReadMasks(in, left, count, mask);
    const int flag_bytes = (count + 1) / 2;
    uint32_t flags;
    std::memcpy(&flags, in, sizeof flags);
    flags = _bzhi_u32(flags, 4 * count);
    const int used = flag_bytes + PopCount(flags);
    if (used > left) return -1;
    const __m256i bytes =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + flag_bytes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(mask),
                        _mm256_maskz_expand_epi8(flags, bytes));
    return used;
  }

  template <DType kType>
  static __m512 Load16(const uint8_t* x) {
    if constexpr (kType == DType::kFloat32) {
      return _mm512_loadu_ps(x);
    } else {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
      if constexpr (kType == DType::kFloat16) return _mm512_cvtph_ps(v);
      return _mm512_castsi512_ps(
          _mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
    }
  }

  // The 16-bit conversion of restored values.
  template <DType kType, Rounding kRounding>
  static __m256i Narrow(__m512 y) {
    if constexpr (kType == DType::kFloat16) {
      return kRounding == Rounding::kDither
                 ? _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT)
                 : _mm512_cvtps_ph(y, _MM_FROUND_TO_ZERO);
    } else {
      __m512i bits = _mm512_castps_si512(y);
      if constexpr (kRounding == Rounding::kDither) {
        const __m512i odd =
            _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        bits = _mm512_add_epi32(
            bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
      }
      return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
    }
  }

  template <DType kType>
  static __m512 Widen(__m256i v) {
    if constexpr (kType == DType::kFloat16) return _mm512_cvtph_ps(v);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
  }

  static __m512i DitherHash16(uint32_t key, __m512i lanes) {
    __m512i h =
        _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(key)), lanes);
    h = _mm512_xor_si512(h, _mm512_srli_epi32(h, 16));
    h = _mm512_mullo_epi32(h, _mm512_set1_epi32(0x7FEB352D));
    h = _mm512_xor_si512(h, _mm512_srli_epi32(h, 15));
    h = _mm512_mullo_epi32(h, _mm512_set1_epi32(static_cast<int>(0x846CA68Bu)));
    return _mm512_xor_si512(h, _mm512_srli_epi32(h, 16));
  }

  // lane * 0x9E3779B9 of 16 lanes.
  static __m512i HashLanes(int first) {
    const __m512i lanes = _mm512_add_epi32(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
        _mm512_set1_epi32(first));
    return _mm512_mullo_epi32(lanes,
                              _mm512_set1_epi32(static_cast<int>(0x9E3779B9u)));
  }

  static __m512 DitherOffset16(__m512i hash, bool odd_row) {
    const __m512i m =
        odd_row ? _mm512_srli_epi32(hash, 9) : _mm512_slli_epi32(hash, 7);
    // (m & 0x7FFF80) | 0x3F800040
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        m, _mm512_set1_epi32(0x7FFF80), _mm512_set1_epi32(0x3F800040), 0xEA));
  }

  static __m512i StepsFromCodes16(__m512i code) {
    const __mmask32 positive =
        _mm512_cmpgt_epi16_mask(code, _mm512_setzero_si512());
    return _mm512_mask_sub_epi16(code, positive, code, _mm512_set1_epi16(1));
  }

  // Products of 32-bit words and their multipliers, 16 words at a time.
  static uint64_t Checksum(const uint8_t* bytes, int count) {
    const __m512i twice = _mm512_set1_epi32(static_cast<int>(2 * kGolden32));
    __m512i multiplier =
        _mm512_mullo_epi32(_mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15,
                                            13, 11, 9, 7, 5, 3, 1),
                           _mm512_set1_epi32(static_cast<int>(kGolden32)));
    const __m512i next = _mm512_slli_epi32(twice, 4);
    __m512i even = _mm512_setzero_si512();
    __m512i odd = _mm512_setzero_si512();
    for (int k = 0; k < count; k += 64) {
      const int left = count - k;
      const __mmask64 inside =
          left >= 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
      const __m512i word = _mm512_maskz_loadu_epi8(inside, bytes + k);
      even = _mm512_add_epi64(even, _mm512_mul_epu32(word, multiplier));
      odd = _mm512_add_epi64(
          odd, _mm512_mul_epu32(_mm512_srli_epi64(word, 32),
                                _mm512_srli_epi64(multiplier, 32)));
      multiplier = _mm512_add_epi32(multiplier, next);
    }
    uint64_t sums[8];
    _mm512_storeu_si512(sums, _mm512_add_epi64(even, odd));
    uint64_t sum = static_cast<uint64_t>(count) * kGolden64;
    for (const uint64_t part : sums) sum += part;
    return sum;
  }

  static __m256i Low(__m512i v) { return _mm512_castsi512_si256(v); }
  static __m256i High(__m512i v) { return _mm512_extracti64x4_epi64(v, 1); }
  static __m256i LoadPlane16(const int16_t* row) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(row));
  }
  static __m256i LoadPlane(const uint8_t* plane) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(plane));
  }
  static __m512i LoadRow16(const int16_t* row) {
    return _mm512_load_si512(row);
  }
  static void Store(int16_t* row, __m512i v) { _mm512_store_si512(row, v); }
};

}  // namespace
}  // namespace comet

#endif  // COMET_CPU_CODEC_AVX512_VECTORS_H_

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

  static constexpr bool kFastExpand = true;

  static void ExpandBytes(const uint8_t* in, uint32_t mask, uint8_t* bytes) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
    _mm256_store_si256(reinterpret_cast<__m256i*>(bytes),
                       _mm256_maskz_expand_epi8(mask, v));
  }

  static uint8_t* WriteMasks(const uint32_t* mask, int count, uint8_t* out) {
    if (count > kMasksAtOnce) return PortableIsa::WriteMasks(mask, count, out);
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
    if (count > kMasksAtOnce)
      return PortableIsa::ReadMasks(in, left, count, mask);
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

  // Also what the rows' keys do, in both halves of a word.
  struct TileDither : PortableIsa::TileDither {
    alignas(64) uint32_t flip[kTileRows];
    alignas(64) uint32_t factor[kTileRows];
  };

  static __m512i Mix8(__m512i v) {
    v = _mm512_xor_si512(v, _mm512_srli_epi64(v, 30));
    v = _mm512_mullo_epi64(
        v, _mm512_set1_epi64(static_cast<int64_t>(kMixFactor1)));
    v = _mm512_xor_si512(v, _mm512_srli_epi64(v, 27));
    v = _mm512_mullo_epi64(
        v, _mm512_set1_epi64(static_cast<int64_t>(kMixFactor2)));
    return _mm512_xor_si512(v, _mm512_srli_epi64(v, 31));
  }

  // DitherWord of 8 words.
  static __m512i DitherWords(uint64_t mixed_seed, int64_t tile, int word) {
    const uint64_t first = mixed_seed + (128ull * static_cast<uint64_t>(tile) +
                                         static_cast<uint64_t>(word)) *
                                            kGolden64;
    const __m512i steps = _mm512_set_epi64(static_cast<int64_t>(7 * kGolden64),
                                           static_cast<int64_t>(6 * kGolden64),
                                           static_cast<int64_t>(5 * kGolden64),
                                           static_cast<int64_t>(4 * kGolden64),
                                           static_cast<int64_t>(3 * kGolden64),
                                           static_cast<int64_t>(2 * kGolden64),
                                           static_cast<int64_t>(kGolden64), 0);
    return Mix8(_mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(first)),
                                 steps));
  }

  // Quantise needs u = odd * factor, Restore 2^15 - u, which is odd times
  // 2^15 - factor.
  template <bool kEncode>
  static void StartDither(uint64_t mixed_seed, int64_t tile, int blocks,
                          TileDither* dither) {
    // (key & 0xFFC0) | number
    const __m512i numbers = _mm512_add_epi16(
        _mm512_slli_epi16(LaneNumbers(), 1), _mm512_set1_epi16(1));
    _mm512_store_si512(
        dither->lane,
        _mm512_ternarylogic_epi32(DitherWords(mixed_seed, tile, kTileRows / 2),
                                  _mm512_set1_epi16(-64), numbers, 0xEA));
    const __m512i low = _mm512_broadcast_i32x4(
        _mm_set_epi8(13, 12, 13, 12, 9, 8, 9, 8, 5, 4, 5, 4, 1, 0, 1, 0));
    const __m512i high = _mm512_add_epi8(low, _mm512_set1_epi8(2));
    for (int p = 0; p < blocks * kBlockRows / 2; p += 8) {
      const __m512i keys = DitherWords(mixed_seed, tile, p);
      _mm512_store_si512(dither->pair + p, keys);
      _mm512_store_si512(dither->flip + 2 * p,
                         _mm512_and_si512(_mm512_shuffle_epi8(keys, low),
                                          _mm512_set1_epi16(-2)));
      const __m512i factor = _mm512_or_si512(_mm512_shuffle_epi8(keys, high),
                                             _mm512_set1_epi16(1));
      _mm512_store_si512(
          dither->factor + 2 * p,
          kEncode ? factor
                  : _mm512_sub_epi16(_mm512_set1_epi16(INT16_MIN), factor));
    }
  }

  static __m512i LaneNumbers() {
    return _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19,
                            18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5,
                            4, 3, 2, 1, 0);
  }

  // The lanes' odd numbers in the order of 16-bit elements that `order` gives.
  static __m512i DitherLanes(const TileDither& dither, __m512i order) {
    return _mm512_permutexvar_epi16(order, _mm512_load_si512(dither.lane));
  }

  // The dither of a row of 32 lanes.
  static __m512i DitherRow(__m512i lanes, const TileDither& dither, int row) {
    const int k = dither.first + row;
    const __m512i flip = _mm512_set1_epi32(static_cast<int>(dither.flip[k]));
    const __m512i factor =
        _mm512_set1_epi32(static_cast<int>(dither.factor[k]));
    return _mm512_mullo_epi16(_mm512_xor_si512(lanes, flip), factor);
  }

  // Packed order: as _mm512_packs_epi32 leaves lanes 0 to 15 and 16 to 31, and
  // the unpacking of 16-bit elements takes apart. Paired order: lane k before
  // lane 16 + k. Position of each lane, and the lane of each position.
  static constexpr int PackedPosition(int lane) {
    return lane % 16 / 4 * 8 + lane / 16 * 4 + lane % 4;
  }
  static constexpr int PairedPosition(int lane) {
    return 2 * (lane % 16) + lane / 16;
  }
  struct OrderTable {
    alignas(64) uint16_t position[kLanes];
    alignas(64) uint16_t lane[kLanes];
    alignas(64) uint8_t lane_byte[2 * kLanes];  // `lane`, twice
    alignas(64) uint8_t pair_byte[kLanes];      // of each lane in RowPairs
  };
  static constexpr OrderTable MakeOrder(bool paired) {
    OrderTable table{};
    for (int k = 0; k < kLanes; ++k) {
      const int at = paired ? PairedPosition(k) : PackedPosition(k);
      table.position[k] = static_cast<uint16_t>(at);
      table.lane[at] = static_cast<uint16_t>(k);
      table.lane_byte[at] = table.lane_byte[kLanes + at] =
          static_cast<uint8_t>(k);
      table.pair_byte[k] = static_cast<uint8_t>(at / 8 * 16 + at % 8);
    }
    return table;
  }

  // The indices that take elements in an order to those of `lanes`.
  static __m512i PermutationTo(__m512i lanes, const OrderTable& from) {
    return _mm512_permutexvar_epi16(lanes, _mm512_load_si512(from.position));
  }

  // From codes in packed order to values, in fixed point: 16 bits after the
  // point, which unpacking puts below the step. kEncode as in StartDither.
  template <Rounding kRounding, bool kEncode>
  struct Restorer {
    Restorer(const TileDither& tile, float step, __m512i packed_order)
        : dither(tile), scale(_mm512_set1_ps(step * (1.0f / 65536.0f))) {
      if constexpr (kRounding == Rounding::kDither) {
        lanes = DitherLanes(tile, packed_order);
      }
    }

    // Lanes 0 to 15 and 16 to 31.
    void Row(__m512i code, int row, __m512* y) const {
      const __mmask32 nonzero = _mm512_test_epi16_mask(code, code);
      __m512i s = StepsFromCodes16(code);
      __m512i part;
      if constexpr (kRounding == Rounding::kDither) {
        part = DitherRow(lanes, dither, row);
        if constexpr (kEncode) {
          part = _mm512_sub_epi16(_mm512_set1_epi16(INT16_MIN), part);
        }
        part = _mm512_maskz_mov_epi16(nonzero, part);
        s = _mm512_add_epi16(s, _mm512_srai_epi16(part, 15));
      } else {
        part = _mm512_maskz_set1_epi16(nonzero, INT16_MIN);
      }
      y[0] = Value(_mm512_unpacklo_epi16(part, s));
      y[1] = Value(_mm512_unpackhi_epi16(part, s));
    }

    __m512 Value(__m512i fixed) const {
      return _mm512_mul_ps(_mm512_cvtepi32_ps(fixed), scale);
    }

    const TileDither& dither;
    __m512 scale;
    __m512i lanes;
  };

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

constexpr Avx512Vectors::OrderTable kPackedOrder =
    Avx512Vectors::MakeOrder(false);
constexpr Avx512Vectors::OrderTable kPairedOrder =
    Avx512Vectors::MakeOrder(true);

}  // namespace
}  // namespace comet

#endif  // COMET_CPU_CODEC_AVX512_VECTORS_H_

// SPDX-License-Identifier: Apache-2.0
// Block primitives for AVX-512 (Ice Lake, Zen 4 and later).
//
// Codes that fit 16 bits stay packed: one register a row, its 32 lanes in the
// order that _mm512_packs_epi32 leaves them in ("packed order"; lane order
// comes back with one byte permutation a plane). Rare blocks, with larger codes
// or at the end of the tensor, take the portable path on int32 codes ("wide").
#ifndef COMET_CPU_CODEC_ISA_AVX512_H_
#define COMET_CPU_CODEC_ISA_AVX512_H_

// GCC 12 takes the intrinsics' own undefined operands for mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include "custom_ops/cpu/codec_isa_portable.h"

namespace comet {
namespace {

// Position of a lane in packed order.
inline int PackedPosition(int lane) {
  return lane % 16 / 4 * 8 + lane / 16 * 4 + lane % 4;
}

struct Avx512Isa : PortableIsa {
  struct Codes {
    alignas(64) int16_t packed[kBlockRows][kLanes];
    BlockCodes wide;  // only where is_wide
    bool is_wide;
    uint32_t magnitudes;
    bool negative;
    bool rejected;
    int nonzeros;
  };

  struct Above {
    alignas(64) int16_t packed[kLanes];
    CodeRow wide;  // only where is_wide
    bool is_wide;
    int low;  // bounds of the packed codes
    int high;
  };

  // Codes of up to this many magnitude bits are packed.
  static constexpr int kPackedBits = 13;

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

  static void Reset(Above* above) {
    Store(above->packed, _mm512_setzero_si512());
    above->is_wide = false;
    above->low = 0;
    above->high = 0;
  }

  // --- quantisation ---------------------------------------------------------

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

  // What a block's quantisation gathers.
  struct Gather {
    __m512 error = _mm512_setzero_ps();
    __m512i magnitudes = _mm512_setzero_si512();
    __m512i steps = _mm512_setzero_si512();
    __mmask16 lost = 0;
  };

  // Codes of 16 elements; `f` is used by dither only.
  template <DType kType, Rounding kRounding>
  static __m512i Quantise16(__m512 x, __m512 f, __m512 step, __m512 inv,
                            Gather* gather) {
    constexpr bool kDither = kRounding == Rounding::kDither;
    const __m512i bits = _mm512_castps_si512(x);
    const __mmask16 nonzero =
        _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x7F800000));
    __m512 t = _mm512_maskz_mul_ps(nonzero, x, inv);
    const __m512 half = _mm512_set1_ps(0.5f);
    const __m512i one = _mm512_set1_epi32(1);
    __m512i s, sign, code;
    __m512 y;
    if constexpr (kDither) {
      t = _mm512_add_ps(t, f);
      const __m512i i = _mm512_cvt_roundps_epi32(
          t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      y = _mm512_sub_ps(_mm512_add_ps(_mm512_cvtepi32_ps(i), half), f);
      s = _mm512_sub_epi32(i, one);
      sign = _mm512_srai_epi32(s, 31);
      code = _mm512_maskz_add_epi32(nonzero, i, sign);
    } else {
      const __m512i i = _mm512_cvttps_epi32(t);
      sign = _mm512_srai_epi32(bits, 31);
      s = _mm512_add_epi32(i, sign);
      // float(i) + copysign(0.5, x) is float(s) + 0.5.
      const __m512i signed_half = _mm512_ternarylogic_epi32(
          bits, _mm512_set1_epi32(INT32_MIN), _mm512_castps_si512(half), 0xEA);
      y = _mm512_add_ps(_mm512_cvtepi32_ps(i),
                        _mm512_castsi512_ps(signed_half));
      code = _mm512_maskz_add_epi32(nonzero, i, _mm512_or_si512(sign, one));
    }
    y = _mm512_mul_ps(y, step);
    if constexpr (kType != DType::kFloat32) {
      y = Widen<kType>(Narrow<kType, kRounding>(y));
      gather->lost |= _mm512_mask_testn_epi32_mask(
          nonzero, _mm512_castps_si512(y), _mm512_set1_epi32(0x7F800000));
    }
    // Largest magnitude; drops NaN, whose `s` is far out of range.
    gather->error = _mm512_mask_range_ps(gather->error, nonzero, gather->error,
                                         _mm512_sub_ps(x, y), 0xB);
    gather->magnitudes =
        _mm512_mask_or_epi32(gather->magnitudes, nonzero, gather->magnitudes,
                             _mm512_xor_si512(s, sign));
    gather->steps =
        _mm512_mask_or_epi32(gather->steps, nonzero, gather->steps, s);
    return code;
  }

  template <DType kType, Rounding kRounding>
  static void Quantise(const uint8_t* x, int64_t stride, const Quantiser& q,
                       const uint32_t* keys, bool uniform, Codes* block) {
    constexpr int kHalfRow = kType == DType::kFloat32 ? 64 : 32;
    const __m512 step = _mm512_set1_ps(q.step);
    const __m512 inv = _mm512_set1_ps(q.inv);
    Gather gather;
    [[maybe_unused]] __m512i hash_low, hash_high;
    [[maybe_unused]] const __m512i lanes_low = HashLanes(0);
    [[maybe_unused]] const __m512i lanes_high = HashLanes(16);
    int nonzeros = 0;
#pragma GCC unroll 8
    for (int r = 0; r < kBlockRows; ++r) {
      const uint8_t* row = x + r * stride;
      __m512 f_low = _mm512_setzero_ps();
      __m512 f_high = _mm512_setzero_ps();
      if constexpr (kRounding == Rounding::kDither) {
        if (r % 2 == 0) {
          hash_low = DitherHash16(keys[r / 2], lanes_low);
          hash_high = DitherHash16(keys[r / 2], lanes_high);
        }
        f_low = DitherOffset16(hash_low, r % 2 != 0);
        f_high = DitherOffset16(hash_high, r % 2 != 0);
      }
      const __m512i low = Quantise16<kType, kRounding>(
          Load16<kType>(row), f_low, step, inv, &gather);
      const __m512i high = Quantise16<kType, kRounding>(
          Load16<kType>(row + kHalfRow), f_high, step, inv, &gather);
      const __m512i packed = _mm512_packs_epi32(low, high);
      Store(block->packed[r], packed);
      nonzeros += PopCount(_mm512_test_epi16_mask(packed, packed));
    }
    block->magnitudes =
        static_cast<uint32_t>(_mm512_reduce_or_epi32(gather.magnitudes));
    block->negative = _mm512_movepi32_mask(gather.steps) != 0;
    block->nonzeros = nonzeros;
    const float error = _mm512_reduce_max_ps(gather.error);
    block->rejected = gather.lost != 0 || FloatBits(error) > q.limit ||
                      block->magnitudes >= uint32_t{kMagnitudeLimit};
    block->is_wide = !uniform || Length(block->magnitudes) > kPackedBits ||
                     q.step < kTinyStep;
    if (block->is_wide) {
      PortableIsa::Quantise<kType, kRounding>(x, stride, q, keys, uniform,
                                              &block->wide);
      block->magnitudes = block->wide.magnitudes;
      block->negative = block->wide.negative;
      block->rejected = block->wide.rejected;
    }
  }

  // Below, a restored float32 can be subnormal, which only the portable path
  // checks for.
  static constexpr float kTinyStep = 1e-30f;

  // --- planes ---------------------------------------------------------------

  // Bytes of two rows: in each 128-bit lane 8 of row r, then 8 of row r + 1.
  using RowPairs = __m512i[kBlockRows / 2];

  // Row bits of a row pair's bytes in a plane.
  static __m512i RowBits(int pair) {
    const uint64_t even = 0x0101010101010101ull << (2 * pair);
    const int64_t low = static_cast<int64_t>(even);
    const int64_t high = static_cast<int64_t>(even << 1);
    return _mm512_set_epi64(high, low, high, low, high, low, high, low);
  }

  // A plane from the row bits of its set elements: joins the rows of each pair
  // and returns to lane order.
  static __m256i FinishPlane(__m512i rows) {
    const __m512i joined =
        _mm512_or_si512(rows, _mm512_shuffle_epi32(rows, _MM_PERM_BADC));
    // Lane k comes from byte k / 4 % 4 * 16 + k / 16 * 4 + k % 4.
    const __m512i index = _mm512_castsi256_si512(_mm256_set_epi8(
        55, 54, 53, 52, 39, 38, 37, 36, 23, 22, 21, 20, 7, 6, 5, 4, 51, 50, 49,
        48, 35, 34, 33, 32, 19, 18, 17, 16, 3, 2, 1, 0));
    return _mm512_castsi512_si256(_mm512_permutexvar_epi8(index, joined));
  }

  // Planes of bit 0..count-1 of the bytes; they go to planes first, first+1...
  static void PlanesFromBytes(const RowPairs& bytes, int first, int count,
                              PlaneSet* set) {
    for (int p = 0; p < count; ++p) {
      const __m512i bit = _mm512_set1_epi8(static_cast<char>(1 << p));
      __m512i rows = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int j = 0; j < kBlockRows / 2; ++j) {
        // Adds bits that are not there yet: OR, which has no byte mask.
        rows = _mm512_mask_add_epi8(rows, _mm512_test_epi8_mask(bytes[j], bit),
                                    rows, RowBits(j));
      }
      StorePlane(FinishPlane(rows), first + p, set);
    }
  }

  static void StorePlane(__m256i plane, int p, PlaneSet* set) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(set->plane[p]), plane);
    set->mask[p] = _mm256_test_epi8_mask(plane, plane);
  }

  // OR of all 16-bit words.
  static uint32_t OrWords(__m512i v) {
    const uint32_t all = static_cast<uint32_t>(_mm512_reduce_or_epi32(v));
    return (all | all >> 16) & 0xFFFFu;
  }

  static uint32_t OrBytes(__m512i v) {
    const uint32_t all = OrWords(v);
    return (all | all >> 8) & 0xFFu;
  }

  static __m512i StepsFromCodes8(__m512i code) {
    const __mmask64 positive =
        _mm512_cmpgt_epi8_mask(code, _mm512_setzero_si512());
    return _mm512_mask_sub_epi8(code, positive, code, _mm512_set1_epi8(1));
  }

  static __m512i StepsFromCodes16(__m512i code) {
    const __mmask32 positive =
        _mm512_cmpgt_epi16_mask(code, _mm512_setzero_si512());
    return _mm512_mask_sub_epi16(code, positive, code, _mm512_set1_epi16(1));
  }

  static __m512i ZigZag8(__m512i d) {
    const __m512i twice = _mm512_add_epi8(d, d);
    return _mm512_mask_sub_epi8(twice, _mm512_movepi8_mask(d),
                                _mm512_set1_epi8(-1), twice);
  }

  static __m512i ZigZag16(__m512i d) {
    return _mm512_xor_si512(_mm512_add_epi16(d, d), _mm512_srai_epi16(d, 15));
  }

  // Magnitude q and sign (in bit sign_plane) of nonzero codes.
  static __m512i SparseValue8(__m512i code, int sign_plane) {
    const __mmask64 nonzero = _mm512_test_epi8_mask(code, code);
    const __m512i q = _mm512_maskz_sub_epi8(nonzero, _mm512_abs_epi8(code),
                                            _mm512_set1_epi8(1));
    const __m512i bit = _mm512_set1_epi8(static_cast<char>(1 << sign_plane));
    return _mm512_mask_add_epi8(q, _mm512_movepi8_mask(code), q, bit);
  }

  static __m512i SparseValue16(__m512i code, int sign_plane) {
    const __mmask32 nonzero = _mm512_test_epi16_mask(code, code);
    const __m512i q = _mm512_maskz_sub_epi16(nonzero, _mm512_abs_epi16(code),
                                             _mm512_set1_epi16(1));
    const __m512i bit = _mm512_set1_epi16(static_cast<short>(1 << sign_plane));
    return _mm512_mask_add_epi16(q, _mm512_movepi16_mask(code), q, bit);
  }

  // Whether codes and differences to the row above fit signed bytes.
  static bool FitsBytes(const Codes& block, const Above& above) {
    const int reach = 1 << Length(block.magnitudes);
    const int low = block.negative ? -reach : 0;
    return reach <= 127 && above.high <= 127 && above.low >= -127 &&
           reach - above.low <= 127 && above.high - low <= 127 &&
           reach - low <= 127;
  }

  template <Residual kResidual>
  static void BuildPlanes(const Codes& block, const Above& above,
                          const uint32_t* present, int sign_plane,
                          PlaneSet* set) {
    if (block.is_wide || above.is_wide) {
      BlockCodes codes;
      CodeRow row;
      PortableIsa::BuildPlanes<kResidual>(WideCodes(block, &codes),
                                          WideRow(above, &row), present,
                                          sign_plane, set);
    } else if (FitsBytes(block, above)) {
      BuildPlanes8<kResidual>(block, above, sign_plane, set);
    } else {
      BuildPlanes16<kResidual>(block, above, sign_plane, set);
    }
  }

  // Codes as pairs of rows of bytes.
  static void BytePairs(const Codes& block, RowPairs* pairs) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockRows / 2; ++j) {
      (*pairs)[j] = _mm512_packs_epi16(LoadRow16(block.packed[2 * j]),
                                       LoadRow16(block.packed[2 * j + 1]));
    }
  }

  template <Residual kResidual>
  static void BuildPlanes8(const Codes& block, const Above& above,
                           int sign_plane, PlaneSet* set) {
    RowPairs code;
    BytePairs(block, &code);
    const __m512i row = LoadRow16(above.packed);
    __m512i last = _mm512_packs_epi16(row, row);
    if constexpr (kResidual == Residual::kDeltaSteps) {
      last = StepsFromCodes8(last);
    }
    RowPairs value;
    __m512i all = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int j = 0; j < kBlockRows / 2; ++j) {
      if constexpr (kResidual == Residual::kSparseValues) {
        value[j] = SparseValue8(code[j], sign_plane);
      } else if constexpr (kResidual == Residual::kDirectCodes) {
        value[j] = ZigZag8(code[j]);
      } else {
        __m512i now = code[j];
        if constexpr (kResidual == Residual::kDeltaSteps) {
          now = StepsFromCodes8(now);
        }
        // The rows before these two.
        const __m512i before = _mm512_alignr_epi8(now, last, 8);
        value[j] = ZigZag8(_mm512_sub_epi8(now, before));
        last = now;
      }
      all = _mm512_or_si512(all, value[j]);
    }
    set->count = Length(OrBytes(all));
    PlanesFromBytes(value, 0, set->count, set);
  }

  template <Residual kResidual>
  static void BuildPlanes16(const Codes& block, const Above& above,
                            int sign_plane, PlaneSet* set) {
    __m512i last = LoadRow16(above.packed);
    if constexpr (kResidual == Residual::kDeltaSteps) {
      last = StepsFromCodes16(last);
    }
    __m512i value[kBlockRows];
    __m512i all = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int r = 0; r < kBlockRows; ++r) {
      __m512i now = LoadRow16(block.packed[r]);
      if constexpr (kResidual == Residual::kSparseValues) {
        value[r] = SparseValue16(now, sign_plane);
      } else if constexpr (kResidual == Residual::kDirectCodes) {
        value[r] = ZigZag16(now);
      } else {
        if constexpr (kResidual == Residual::kDeltaSteps) {
          now = StepsFromCodes16(now);
        }
        value[r] = ZigZag16(_mm512_sub_epi16(now, last));
        last = now;
      }
      all = _mm512_or_si512(all, value[r]);
    }
    set->count = Length(OrWords(all));
    const __m512i low_byte = _mm512_set1_epi16(0xFF);
    RowPairs low, high;
#pragma GCC unroll 4
    for (int j = 0; j < kBlockRows / 2; ++j) {
      const __m512i even = value[2 * j];
      const __m512i odd = value[2 * j + 1];
      low[j] = _mm512_packus_epi16(_mm512_and_si512(even, low_byte),
                                   _mm512_and_si512(odd, low_byte));
      high[j] = _mm512_packus_epi16(_mm512_srli_epi16(even, 8),
                                    _mm512_srli_epi16(odd, 8));
    }
    PlanesFromBytes(low, 0, set->count < 8 ? set->count : 8, set);
    PlanesFromBytes(high, 8, set->count - 8, set);
  }

  static void BitmapPlane(const Codes& block, uint8_t* plane) {
    if (block.is_wide) {
      PortableIsa::BitmapPlane(block.wide, plane);
      return;
    }
    RowPairs code;
    BytePairs(block, &code);  // saturation keeps nonzero codes nonzero
    __m512i rows = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int j = 0; j < kBlockRows / 2; ++j) {
      rows = _mm512_or_si512(
          rows, _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(code[j], code[j]),
                                      RowBits(j)));
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(plane), FinishPlane(rows));
  }

  static void KeepLastRow(const Codes& block, Above* above) {
    above->is_wide = block.is_wide;
    if (block.is_wide) {
      PortableIsa::KeepLastRow(block.wide, &above->wide);
      return;
    }
    Store(above->packed, LoadRow16(block.packed[kBlockRows - 1]));
    above->high = 1 << Length(block.magnitudes);
    above->low = block.negative ? -above->high : 0;
  }

  static const BlockCodes& WideCodes(const Codes& block, BlockCodes* codes) {
    if (block.is_wide) return block.wide;
    for (int r = 0; r < kBlockRows; ++r) {
      for (int k = 0; k < kLanes; ++k) {
        codes->code[r][k] = block.packed[r][PackedPosition(k)];
      }
    }
    return *codes;
  }

  static const CodeRow& WideRow(const Above& above, CodeRow* row) {
    if (above.is_wide) return above.wide;
    for (int k = 0; k < kLanes; ++k) {
      row->code[k] = above.packed[PackedPosition(k)];
    }
    return *row;
  }

  // --- decoding -------------------------------------------------------------

  // Codes in lane order.
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
        for (int k = 0; k < kLanes; ++k) above->wide.code[k] = above->row[k];
      }
      PortableIsa::CodesFromPlanes<kResidual>(set, bitmap, sign_plane,
                                              &above->wide, &block->wide);
      Narrow(block->wide, above);
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
  static void Narrow(const BlockCodes& wide, DecodedAbove* above) {
    const int32_t* code = wide.code[kBlockRows - 1];
    uint32_t magnitudes = 0;
    for (int k = 0; k < kLanes; ++k) {
      magnitudes |= static_cast<uint32_t>(code[k] ^ (code[k] >> 31));
    }
    above->is_wide = Length(magnitudes) > kPackedBits;
    if (above->is_wide) return;  // above->wide is the last row already
    for (int k = 0; k < kLanes; ++k) {
      above->row[k] = static_cast<int16_t>(code[k]);
    }
    above->reach = 1 << kPackedBits;
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
      const __m512i plane = _mm512_broadcast_i64x4(LoadPlane(set.plane[p]));
      const __m512i bit = _mm512_set1_epi8(static_cast<char>(1 << (p - first)));
#pragma GCC unroll 4
      for (int j = 0; j < kBlockRows / 2; ++j) {
        const __mmask64 rows = _mm512_test_epi8_mask(plane, RowHalves(j));
        value[j] = _mm512_mask_add_epi8(value[j], rows, value[j], bit);
      }
    }
    if constexpr (kSparse) {
      const __m512i map = _mm512_broadcast_i64x4(LoadPlane(bitmap));
      const __m512i signs =
          sign_plane < set.count
              ? _mm512_broadcast_i64x4(LoadPlane(set.plane[sign_plane]))
              : zero;
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
    const __m512i signs =
        set.count > 0 ? _mm512_broadcast_i64x4(LoadPlane(set.plane[0])) : zero;
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
            _mm256_test_epi8_mask(LoadPlane(set.plane[p]), row_bit);
        value = _mm512_mask_add_epi16(
            value, rows, value,
            _mm512_set1_epi16(static_cast<short>(1 << (p - first))));
      }
      if constexpr (kSparse) {
        const __mmask32 present =
            _mm256_test_epi8_mask(LoadPlane(bitmap), row_bit);
        const __mmask32 negative =
            sign_plane < set.count
                ? _mm256_test_epi8_mask(LoadPlane(set.plane[sign_plane]),
                                        row_bit)
                : 0;
        StoreSparse16(value, present, negative, block->row[r]);
      } else {
        const __mmask32 negative =
            _mm256_test_epi8_mask(LoadPlane(set.plane[0]), row_bit);
        value = _mm512_mask_sub_epi16(value, negative, _mm512_set1_epi16(-1),
                                      value);
        sum = NextRow<kResidual>(sum, value, block->row[r]);
      }
    }
    Store(above->row, LoadRow16(block->row[kBlockRows - 1]));
  }

  // Values of 16 codes; `f` is used by dither only.
  template <Rounding kRounding>
  static __m512 Restore16(__m512i code, __m512 step, __m512 f) {
    const __mmask16 nonzero = _mm512_test_epi32_mask(code, code);
    const __m512 half = _mm512_set1_ps(0.5f);
    if constexpr (kRounding == Rounding::kDither) {
      // s + 1 is c for positive codes, c + 1 for negative ones.
      const __m512i i = _mm512_mask_add_epi32(code, _mm512_movepi32_mask(code),
                                              code, _mm512_set1_epi32(1));
      const __m512 level = _mm512_add_ps(_mm512_cvtepi32_ps(i), half);
      return _mm512_maskz_mul_ps(nonzero, _mm512_sub_ps(level, f), step);
    } else {
      // s + 0.5 is c - copysign(0.5, c).
      const __m512i signed_half = _mm512_ternarylogic_epi32(
          code, _mm512_set1_epi32(INT32_MIN), _mm512_castps_si512(half), 0xEA);
      const __m512 level = _mm512_sub_ps(_mm512_cvtepi32_ps(code),
                                         _mm512_castsi512_ps(signed_half));
      return _mm512_maskz_mul_ps(nonzero, level, step);
    }
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
  static void Restore(const Decoded& block, float step, const uint32_t* keys,
                      int64_t stride, uint8_t* out) {
    constexpr int kHalfRow = kType == DType::kFloat32 ? 64 : 32;
    if (block.is_wide) {
      PortableIsa::Restore<kType, kRounding>(block.wide, step, keys, stride,
                                             out);
      return;
    }
    const __m512 steps = _mm512_set1_ps(step);
    [[maybe_unused]] __m512i hash_low, hash_high;
    [[maybe_unused]] const __m512i lanes_low = HashLanes(0);
    [[maybe_unused]] const __m512i lanes_high = HashLanes(16);
#pragma GCC unroll 8
    for (int r = 0; r < kBlockRows; ++r) {
      __m512 f_low = _mm512_setzero_ps();
      __m512 f_high = _mm512_setzero_ps();
      if constexpr (kRounding == Rounding::kDither) {
        if (r % 2 == 0) {
          hash_low = DitherHash16(keys[r / 2], lanes_low);
          hash_high = DitherHash16(keys[r / 2], lanes_high);
        }
        f_low = DitherOffset16(hash_low, r % 2 != 0);
        f_high = DitherOffset16(hash_high, r % 2 != 0);
      }
      const __m512i low = _mm512_cvtepi16_epi32(LoadPlane16(block.row[r]));
      const __m512i high =
          _mm512_cvtepi16_epi32(LoadPlane16(block.row[r] + 16));
      uint8_t* row = out + r * stride;
      Store16<kType, kRounding>(Restore16<kRounding>(low, steps, f_low), row);
      Store16<kType, kRounding>(Restore16<kRounding>(high, steps, f_high),
                                row + kHalfRow);
    }
  }

  template <Rounding kRounding>
  static void PositiveLanes(const Decoded& block, uint32_t* positive) {
    if (block.is_wide) {
      PortableIsa::PositiveLanes<kRounding>(block.wide, positive);
      return;
    }
    for (int r = 0; r < kBlockRows; ++r) {
      const __m512i code = LoadRow16(block.row[r]);
      positive[r] = kRounding == Rounding::kDither
                        ? _mm512_test_epi16_mask(code, code)
                        : _mm512_cmpgt_epi16_mask(code, _mm512_setzero_si512());
    }
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

  // --- helpers --------------------------------------------------------------

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

#endif  // COMET_CPU_CODEC_ISA_AVX512_H_

// SPDX-License-Identifier: Apache-2.0
// From codes to planes for AVX-512: the block primitives of encoding.
#ifndef COMET_CPU_CODEC_AVX512_ENCODE_H_
#define COMET_CPU_CODEC_AVX512_ENCODE_H_

#include "custom_ops/cpu/codec_avx512_quantise.h"

namespace comet {
namespace {

struct Avx512Encode : Avx512Quantise {
  struct Above {
    alignas(64) int16_t packed[kLanes];
    CodeRow wide;  // only where is_wide
    bool is_wide;
    int low;  // bounds of the packed codes
    int high;
  };

  static void Reset(Above* above) {
    Store(above->packed, _mm512_setzero_si512());
    above->is_wide = false;
    above->low = 0;
    above->high = 0;
  }

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
  static __m256i FinishPlane(__m512i rows, __m512i order) {
    const __m512i joined =
        _mm512_or_si512(rows, _mm512_shuffle_epi32(rows, _MM_PERM_BADC));
    return _mm512_castsi512_si256(_mm512_permutexvar_epi8(order, joined));
  }

  static __m512i ByteOrder(const Codes& block) {
    return _mm512_castsi256_si512(LoadPlane(block.order->pair_byte));
  }

  // Planes of bit 0..count-1 of the bytes; they go to planes first, first+1...
  static void PlanesFromBytes(const RowPairs& bytes, __m512i order, int first,
                              int count, PlaneSet* set) {
    if (first == 0) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(set->mask),
                          _mm256_setzero_si256());
    }
    for (int p = 0; p < count; ++p) {
      const __m512i bit = _mm512_set1_epi8(static_cast<char>(1 << p));
      __m512i rows = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int j = 0; j < kBlockRows / 2; ++j) {
        // Adds bits that are not there yet: OR, which has no byte mask.
        rows = _mm512_mask_add_epi8(rows, _mm512_test_epi8_mask(bytes[j], bit),
                                    rows, RowBits(j));
      }
      StorePlane(FinishPlane(rows, order), first + p, set);
    }
  }

  static void StorePlane(__m256i plane, int p, PlaneSet* set) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(set->plane[p]), plane);
    set->mask[p] = _mm256_test_epi8_mask(plane, plane);
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
                                          WideRow(above, *block.order, &row),
                                          present, sign_plane, set);
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
    PlanesFromBytes(value, ByteOrder(block), 0, set->count, set);
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
    const __m512i order = ByteOrder(block);
    PlanesFromBytes(low, order, 0, set->count < 8 ? set->count : 8, set);
    PlanesFromBytes(high, order, 8, set->count - 8, set);
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
    _mm256_store_si256(reinterpret_cast<__m256i*>(plane),
                       FinishPlane(rows, ByteOrder(block)));
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
        codes->code[r][k] = block.packed[r][block.order->position[k]];
      }
    }
    return *codes;
  }

  static const CodeRow& WideRow(const Above& above, const OrderTable& order,
                                CodeRow* row) {
    if (above.is_wide) return above.wide;
    for (int k = 0; k < kLanes; ++k) {
      row->code[k] = above.packed[order.position[k]];
    }
    return *row;
  }
};

}  // namespace
}  // namespace comet

#endif  // COMET_CPU_CODEC_AVX512_ENCODE_H_

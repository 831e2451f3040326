// SPDX-License-Identifier: Apache-2.0
// What the portable block primitives do with bytes and bits: selections,
// planes' masks, transposition, the checksum, elements of all types.
#ifndef COMET_CPU_CODEC_PORTABLE_BITS_H_
#define COMET_CPU_CODEC_PORTABLE_BITS_H_

#include <cstdint>
#include <cstring>

#include "custom_ops/codec/checksum.h"
#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"

namespace comet {
namespace {

// Masks of planes that vector code handles in one go.
constexpr int kMasksAtOnce = 8;

struct PortableBits {
  static int PopCount(uint64_t v) { return __builtin_popcountll(v); }
  static int Length(uint32_t v) { return v == 0 ? 0 : 32 - __builtin_clz(v); }

  // Bits of `value` at the set bits of `mask`, packed from bit 0 up.
  static uint64_t Extract(uint64_t value, uint64_t mask) {
    uint64_t result = 0;
    for (int k = 0; mask != 0; ++k, mask &= mask - 1) {
      result |= ((value >> __builtin_ctzll(mask)) & 1) << k;
    }
    return result;
  }

  // Inverse of Extract.
  static uint64_t Deposit(uint64_t value, uint64_t mask) {
    uint64_t result = 0;
    for (; mask != 0; mask &= mask - 1, value >>= 1) {
      result |= (value & 1) << __builtin_ctzll(mask);
    }
    return result;
  }

  // Bit k of the result: bytes[k] is not zero.
  static uint32_t NonzeroBytes(const uint8_t* bytes) {
    constexpr uint64_t kLow7 = 0x7F7F7F7F7F7F7F7Full;
    uint32_t mask = 0;
    for (int j = 0; j < 4; ++j) {
      uint64_t word;
      std::memcpy(&word, bytes + 8 * j, sizeof word);
      // The top bit of each byte that is not zero, then those bits side by
      // side.
      const uint64_t top = (((word & kLow7) + kLow7) | word) & ~kLow7;
      const uint64_t gathered = (top >> 7) * 0x0102040810204080ull;
      mask |= static_cast<uint32_t>(gathered >> 56) << (8 * j);
    }
    return mask;
  }

  // Writes the bytes of the set bits of `mask`; may write 32 bytes.
  static uint8_t* CompressBytes(const uint8_t* bytes, uint32_t mask,
                                uint8_t* out) {
    for (; mask != 0; mask &= mask - 1) *out++ = bytes[__builtin_ctz(mask)];
    return out;
  }

  // Whether ExpandBytes takes full planes as well as copying them does.
  static constexpr bool kFastExpand = false;

  // Inverse of CompressBytes, other bytes 0; may read 32 bytes.
  static void ExpandBytes(const uint8_t* in, uint32_t mask, uint8_t* bytes) {
    std::memset(bytes, 0, kLanes);
    for (; mask != 0; mask &= mask - 1) bytes[__builtin_ctz(mask)] = *in++;
  }

  template <bool kWrite>
  static void Prefetch(const uint8_t* p) {
    __builtin_prefetch(p, kWrite ? 1 : 0);
  }

  template <DType kType>
  static void LoadRow(const uint8_t* x, float* row) {
    if (kType == DType::kFloat32) {
      std::memcpy(row, x, kLanes * sizeof(float));
      return;
    }
    uint16_t narrow[kLanes];
    std::memcpy(narrow, x, sizeof narrow);
    for (int k = 0; k < kLanes; ++k) row[k] = WidenElement<kType>(narrow[k]);
  }

  template <DType kType>
  static void StoreRow(const float* row, Rounding rounding, uint8_t* out) {
    if (kType == DType::kFloat32) {
      std::memcpy(out, row, kLanes * sizeof(float));
      return;
    }
    uint16_t narrow[kLanes];
    for (int k = 0; k < kLanes; ++k) {
      narrow[k] = NarrowElement<kType>(row[k], rounding);
    }
    std::memcpy(out, narrow, sizeof narrow);
  }

  // One step of TransposeBits, on rows as 64-bit words: exchanges the upper
  // kHalf bits of 2 kHalf in one row with the lower ones kHalf rows on.
  template <int kHalf>
  static void SwapBits(uint64_t (*row)[4]) {
    constexpr uint64_t kMask = kHalf == 4   ? 0x0F0F0F0F0F0F0F0Full
                               : kHalf == 2 ? 0x3333333333333333ull
                                            : 0x5555555555555555ull;
    for (int r = 0; r < kBlockRows; ++r) {
      if ((r & kHalf) != 0) continue;
      for (int k = 0; k < 4; ++k) {
        const uint64_t swap =
            ((row[r][k] >> kHalf) ^ row[r + kHalf][k]) & kMask;
        row[r + kHalf][k] ^= swap;
        row[r][k] ^= swap << kHalf;
      }
    }
  }

  // Bit r of to[p][lane] = bit p of from[r][lane]: rows to planes and back.
  static void TransposeBits(const uint8_t (*from)[kLanes],
                            uint8_t (*to)[kLanes]) {
    alignas(64) uint64_t row[kBlockRows][4];
    std::memcpy(row, from, sizeof row);
    SwapBits<4>(row);
    SwapBits<2>(row);
    SwapBits<1>(row);
    std::memcpy(to, row, sizeof row);
  }

  // Writes the masks of suppressed planes: flags, then the nonzero bytes.
  static uint8_t* WriteMasks(const uint32_t* mask, int count, uint8_t* out) {
    uint8_t* flags = out;
    out += (count + 1) / 2;
    for (int p = 0; p < count; ++p) {
      uint32_t nibble = 0;
      for (int j = 0; j < 4; ++j) {
        const uint32_t byte = (mask[p] >> (8 * j)) & 0xFFu;
        *out = static_cast<uint8_t>(byte);
        out += byte != 0;
        nibble |= static_cast<uint32_t>(byte != 0) << j;
      }
      if (p % 2 == 0) {
        flags[p / 2] = static_cast<uint8_t>(nibble);
      } else {
        flags[p / 2] |= static_cast<uint8_t>(nibble << 4);
      }
    }
    return out;
  }

  // Inverse of WriteMasks. Returns the bytes read, -1 if there are too few. May
  // write kMasksAtOnce masks where `count` is smaller.
  static int ReadMasks(const uint8_t* in, int64_t left, int count,
                       uint32_t* mask) {
    int used = (count + 1) / 2;
    for (int p = 0; p < count; ++p) {
      if (used > left) return -1;
      const uint32_t nibble = (in[p / 2] >> (p % 2 * 4)) & 0xFu;
      if (left - used < PopCount(nibble)) return -1;
      mask[p] = 0;
      for (int j = 0; j < 4; ++j) {
        if ((nibble >> j) & 1) {
          mask[p] |= static_cast<uint32_t>(in[used++]) << (8 * j);
        }
      }
    }
    return used;
  }

  static uint64_t Checksum(const uint8_t* bytes, int count) {
    uint64_t sum = static_cast<uint64_t>(count) * kGolden64;
    const int words = count / 4;
    for (int i = 0; i < words; ++i) {
      uint32_t value;
      std::memcpy(&value, bytes + 4 * i, sizeof value);
      sum += ChecksumTerm(i, value);
    }
    uint32_t tail = 0;
    std::memcpy(&tail, bytes + 4 * words, count % 4);
    return sum + ChecksumTerm(words, tail);
  }
};

}  // namespace
}  // namespace comet

#endif  // COMET_CPU_CODEC_PORTABLE_BITS_H_

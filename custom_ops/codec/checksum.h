// SPDX-License-Identifier: Apache-2.0
// The stream checksum (README.md, section "Checksum").
#ifndef COMET_CODEC_CHECKSUM_H_
#define COMET_CODEC_CHECKSUM_H_

#include <cstdint>

#include "custom_ops/codec/host_device.h"

namespace comet {

constexpr uint64_t kGolden64 = 0x9E3779B97F4A7C15ull;
constexpr uint32_t kGolden32 = 0x9E3779B1u;
constexpr uint64_t kMixFactor1 = 0xBF58476D1CE4E5B9ull;
constexpr uint64_t kMixFactor2 = 0x94D049BB133111EBull;
constexpr uint64_t kHeaderSalt = 0xD1B54A32D192ED03ull;

// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection.
COMET_INLINE uint64_t Mix(uint64_t v) {
  v ^= v >> 30;
  v *= kMixFactor1;
  v ^= v >> 27;
  v *= kMixFactor2;
  return v ^ (v >> 31);
}

COMET_INLINE uint32_t ChecksumMultiplier(uint32_t word) {
  return (2 * word + 1) * kGolden32;
}

// One word's contribution; contributions add up in any order.
COMET_INLINE uint64_t ChecksumTerm(uint32_t word, uint32_t value) {
  return static_cast<uint64_t>(value) * ChecksumMultiplier(word);
}

COMET_INLINE uint64_t ChecksumSum(const uint8_t* bytes, uint32_t count) {
  uint64_t sum = count * kGolden64;
  const uint32_t words = count / 4;
  for (uint32_t i = 0; i < words; ++i) {
    const uint8_t* b = bytes + 4 * i;
    const uint32_t value = b[0] | (uint32_t{b[1]} << 8) |
                           (uint32_t{b[2]} << 16) | (uint32_t{b[3]} << 24);
    sum += ChecksumTerm(i, value);
  }
  uint32_t tail = 0;
  for (uint32_t k = 4 * words; k < count; ++k) {
    tail |= uint32_t{bytes[k]} << (8 * (k % 4));
  }
  return sum + ChecksumTerm(words, tail);
}

COMET_INLINE uint64_t TileChecksum(uint64_t sum, int64_t tile) {
  return Mix(sum + static_cast<uint64_t>(tile + 1) * kGolden64);
}

COMET_INLINE uint64_t HeaderChecksum(const uint8_t* header) {
  return Mix(ChecksumSum(header, 56) + kHeaderSalt);
}

}  // namespace comet

#endif  // COMET_CODEC_CHECKSUM_H_

// SPDX-License-Identifier: Apache-2.0
// Eight lanes as the bits of a byte, and back.
#ifndef COMET_CPU_BITS_H_
#define COMET_CPU_BITS_H_

#include <cstdint>
#include <cstring>

namespace comet {

// Bit k of the result is byte k of `lanes`, each of which must be 0 or 1.
inline uint8_t PackByte(const uint8_t* lanes) {
  uint64_t word;
  std::memcpy(&word, lanes, sizeof(word));
  // Moves byte k to bit 56 + k, all eight in one multiplication.
  return static_cast<uint8_t>((word * 0x0102040810204080u) >> 56);
}

// Lane k becomes all ones where bit k of `byte` is set, else zero.
// U: unsigned integer.
template <typename U>
inline void ExpandByte(uint8_t byte, U* lanes) {
  static constexpr U kBits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  for (int k = 0; k < 8; ++k) {
    lanes[k] = static_cast<U>(-static_cast<U>((byte & kBits[k]) != 0));
  }
}

}  // namespace comet

#endif  // COMET_CPU_BITS_H_

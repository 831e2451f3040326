// SPDX-License-Identifier: Apache-2.0
// Block primitives for AVX2: the compiler vectorises the portable loops well
// for it, so only what works on single bytes and bits is replaced.
#ifndef COMET_CPU_CODEC_ISA_AVX2_H_
#define COMET_CPU_CODEC_ISA_AVX2_H_

#include <immintrin.h>

#include "custom_ops/cpu/codec_isa_portable.h"

namespace comet {
namespace {

struct Avx2Isa : PortableIsa {
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

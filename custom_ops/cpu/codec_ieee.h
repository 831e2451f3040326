// SPDX-License-Identifier: Apache-2.0
// Puts the calling thread into plain IEEE-754 arithmetic for a scope.
// Frameworks let their threads flush subnormal numbers to zero; the codec's
// bytes must not depend on that.
#ifndef COMET_CPU_CODEC_IEEE_H_
#define COMET_CPU_CODEC_IEEE_H_

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace comet {

#if defined(__SSE2__)
class ScopedIeee {
 public:
  // All exceptions masked, round to nearest even, nothing flushed.
  ScopedIeee() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~ScopedIeee() { _mm_setcsr(saved_); }
  ScopedIeee(const ScopedIeee&) = delete;
  ScopedIeee& operator=(const ScopedIeee&) = delete;

 private:
  unsigned saved_;
};
#elif defined(__aarch64__)
class ScopedIeee {
 public:
  ScopedIeee() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~ScopedIeee() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
  ScopedIeee(const ScopedIeee&) = delete;
  ScopedIeee& operator=(const ScopedIeee&) = delete;

 private:
  uint64_t saved_;
};
#else
// IEEE-754 arithmetic is the default elsewhere.
class ScopedIeee {
 public:
  ScopedIeee() {}
};
#endif

}  // namespace comet

#endif  // COMET_CPU_CODEC_IEEE_H_

// SPDX-License-Identifier: Apache-2.0
// One bit an element: which elements lie in a range, and a gradient let through
// by such bits. Bit k of byte i belongs to element 8 i + k.
#ifndef COMET_CPU_MASK_H_
#define COMET_CPU_MASK_H_

#include <cstdint>

#include "custom_ops/cpu/codec.h"
#include "custom_ops/cpu/element.h"

namespace comet {

inline int64_t MaskBytes(int64_t n) { return n / 8 + (n % 8 != 0); }

// Sets the bits where lower < x < upper; an infinite `upper` is no limit. The
// bits past the last element are zero. T: float, Half, BFloat16.
template <typename T>
void PackMask(const T* x, int64_t n, float lower, float upper,
              const ParallelFor& parallel_for, uint8_t* mask);

// dx = bit ? dy : negative_slope * dy; a slope of zero gives +0 even where dy
// is not finite. dx may be dy.
template <typename T>
void MaskGradient(const uint8_t* mask, const T* dy, int64_t n,
                  float negative_slope, const ParallelFor& parallel_for, T* dx);

}  // namespace comet

#endif  // COMET_CPU_MASK_H_

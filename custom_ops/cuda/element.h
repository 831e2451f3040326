// SPDX-License-Identifier: Apache-2.0
// Arithmetic on an element of any type, as the CPU does it: in float32, rounded
// to nearest even.
#ifndef COMET_CUDA_ELEMENT_H_
#define COMET_CUDA_ELEMENT_H_

#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cuda/tile.h"

namespace comet {
namespace cuda {

template <DType kType>
__device__ inline Storage<kType> RoundElement(float x) {
  if constexpr (kType == DType::kFloat32) {
    return FloatBits(x);
  } else {
    // Dither's conversion rounds to nearest even, but has no NaN.
    constexpr uint16_t kNan = kType == DType::kFloat16 ? 0x7E00 : 0x7FC0;
    return x == x ? NarrowElement<kType>(x, Rounding::kDither) : kNan;
  }
}

// slope * x; +0 where the slope is 0, whatever x is.
template <DType kType>
__device__ inline Storage<kType> ScaleElement(Storage<kType> x, float slope) {
  return slope == 0.0f ? Storage<kType>{0}
                       : RoundElement<kType>(slope * ToFloat<kType>(x));
}

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_ELEMENT_H_

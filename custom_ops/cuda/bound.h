// SPDX-License-Identifier: Apache-2.0
// The absolute bound of a fraction of a tensor's value range.
#ifndef COMET_CUDA_BOUND_H_
#define COMET_CUDA_BOUND_H_

#include "custom_ops/codec/host_device.h"
#include "custom_ops/codec/quantise.h"

namespace comet {
namespace cuda {

constexpr float kLargestFinite = 3.4028234663852886e38f;

COMET_INLINE float Magnitude(float x) {
  return FloatFromBits(FloatBits(x) & 0x7FFFFFFFu);
}

// What relative bounds refer to, from the smallest and the largest finite
// element; `high` is below `low` if there was none.
COMET_INLINE float ReferenceRange(float low, float high) {
  double width = 0.0;
  if (low <= high) {
    width = static_cast<double>(high) - static_cast<double>(low);
    if (width == 0.0) width = static_cast<double>(Magnitude(high));
  }
  if (width > kLargestFinite) return kLargestFinite;
  const float range = static_cast<float>(width);
  return range >= kSmallestNormal ? range : kSmallestNormal;
}

// Rounded down: the bound must not pass the fraction.
COMET_INLINE float RelativeBound(float fraction, float range) {
  const double bound =
      static_cast<double>(fraction) * static_cast<double>(range);
  if (bound < kSmallestNormal) return kSmallestNormal;
  if (bound > kLargestFinite) return kLargestFinite;
  const float rounded = static_cast<float>(bound);
  return static_cast<double>(rounded) > bound
             ? FloatFromBits(FloatBits(rounded) - 1)
             : rounded;
}

COMET_INLINE bool ValidBound(float bound) {
  return bound >= kSmallestNormal && bound <= kLargestFinite;
}

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_BOUND_H_

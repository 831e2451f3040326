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
  float range = 0.0f;
  if (low <= high) {
    range = high - low;
    if (range == 0.0f) range = Magnitude(high);
    if (range > kLargestFinite) range = kLargestFinite;
  }
  return range >= kSmallestNormal ? range : kSmallestNormal;
}

COMET_INLINE float RelativeBound(float fraction, float range) {
  const float bound = fraction * range;
  if (bound < kSmallestNormal && fraction > 0.0f) return kSmallestNormal;
  return bound;
}

COMET_INLINE bool ValidBound(float bound) {
  return bound >= kSmallestNormal && bound <= kLargestFinite;
}

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_BOUND_H_

// SPDX-License-Identifier: Apache-2.0
// Quantising in the usual case, in half the instructions of QuantiseElement()
// and most of them on the floating-point pipes. What this accepts, that accepts
// too, with the same code; what this refuses, that has to decide.
//
// The conversion to an integer adds a large number of which the sum's last bit
// is 1, so that the rounding mode of the addition is that of the conversion and
// the integer can be read off the sum's bits.
#ifndef COMET_CUDA_QUICK_H_
#define COMET_CUDA_QUICK_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"

namespace comet {
namespace cuda {

struct QuickCode {
  int32_t code;        // if not zero
  uint32_t magnitude;  // q
  bool zero;           // an exact zero
  bool accepted;
};

__device__ inline bool IsQuickZero(float x) {
  return fabsf(x) < kSmallestNormal;
}

// Rounds a positive value to the element type as `nearest` does, toward zero;
// right from the type's smallest normal number up.
template <DType kType>
__device__ inline float TruncateToType(float y) {
  if constexpr (kType == DType::kFloat32) {
    return y;
  } else if constexpr (kType == DType::kBFloat16) {
    return FloatFromBits(FloatBits(y) & 0xFFFF0000u);
  } else {
    constexpr float kLargestHalf = 65504.0f;
    return FloatFromBits(FloatBits(fminf(y, kLargestHalf)) & 0xFFFFE000u);
  }
}

template <DType kType, Rounding kRounding>
struct QuickQuantiser {
  static constexpr bool kExists = false;
  __device__ static bool Suits(const Quantiser&) { return false; }
  template <bool kVerify>
  __device__ static QuickCode Quantise(float, int32_t, const Quantiser&) {
    return {};
  }
};

// Symmetric about zero: works on magnitudes.
template <DType kType>
struct QuickQuantiser<kType, Rounding::kNearest> {
  static constexpr bool kExists = true;

  // Whether the smallest level, half a step, is a normal number of the type.
  __device__ static bool Suits(const Quantiser& q) {
    constexpr float kLeast =
        kType == DType::kFloat16 ? 6.103515625e-5f : kSmallestNormal;
    return 0.5f * q.step >= kLeast;
  }

  template <bool kVerify>
  __device__ static QuickCode Quantise(float x, int32_t, const Quantiser& q) {
    constexpr float kUnit = 8388608.0f;  // 2^23
    const float magnitude = fabsf(x);
    const float sum = __fadd_rz(magnitude * q.inv, kUnit);
    QuickCode result;
    result.magnitude = FloatBits(sum) - FloatBits(kUnit);
    // Also refuses NaN and infinity, whose bits are large.
    result.accepted = result.magnitude < static_cast<uint32_t>(kMagnitudeLimit);
    if (kVerify) {
      // q + 1/2, exactly.
      const float y = TruncateToType<kType>((sum - (kUnit - 0.5f)) * q.step);
      result.accepted &= fabsf(magnitude - y) <= q.error_bound;
    }
    // q + 1, or the complement of q for negative x.
    const int32_t sign = static_cast<int32_t>(FloatBits(x)) >> 31;
    result.code = (static_cast<int32_t>(result.magnitude) ^ sign) + sign + 1;
    result.zero = IsQuickZero(x);
    return result;
  }
};

template <>
struct QuickQuantiser<DType::kFloat32, Rounding::kDither> {
  static constexpr bool kExists = true;

  // Levels lie at odd multiples of step / 2^16 from zero.
  __device__ static bool Suits(const Quantiser& q) {
    constexpr float kLeast = 1.5407439555097887e-33f;  // 2^-109
    return q.step >= kLeast;
  }

  template <bool kVerify>
  __device__ static QuickCode Quantise(float x, int32_t u, const Quantiser& q) {
    constexpr float kUnit = 12582912.0f;  // 1.5 * 2^23
    constexpr int32_t kMost = kMagnitudeLimit - 4;
    // As DitheredStep(), but the whole part is the nearest integer.
    const float t = x * q.inv;
    const float sum = t + kUnit;
    const int32_t whole = UnitsOf(sum);
    const float part = (t - (sum - kUnit)) * 65536.0f;
    const int32_t s = whole + ((UnitsOf(part + kUnit) + u) >> 16);
    QuickCode result;
    result.accepted = static_cast<uint32_t>(WrapAdd(whole, kMost)) <
                      2u * static_cast<uint32_t>(kMost);
    if (kVerify) {
      // As RestoreStep(), converting by bits.
      const float level =
          FloatFromBits(FloatBits(kUnit) + static_cast<uint32_t>(s)) - kUnit;
      constexpr float kPlain = 8388608.0f;  // 2^23
      const float shift =
          (kPlain + 32768.0f) -
          FloatFromBits(FloatBits(kPlain) | static_cast<uint32_t>(u));
      const float y = (level + shift * (1.0f / 65536.0f)) * q.step;
      result.accepted &= fabsf(x - y) < q.error_bound;
    }
    result.code = CodeFromStep(s);
    result.magnitude = static_cast<uint32_t>(s ^ s >> 31);
    result.zero = IsQuickZero(x);
    return result;
  }

 private:
  // The integer that was added to 1.5 * 2^23.
  __device__ static int32_t UnitsOf(float sum) {
    return static_cast<int32_t>(FloatBits(sum) - FloatBits(12582912.0f));
  }
};

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_QUICK_H_

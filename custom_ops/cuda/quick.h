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
  __device__ static QuickCode Quantise(float, float, const Quantiser&) {
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
  __device__ static QuickCode Quantise(float x, float, const Quantiser& q) {
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

  // Levels lie at odd multiples of step / 2^17 from zero.
  __device__ static bool Suits(const Quantiser& q) {
    constexpr float kLeast = 1.5407439555097887e-33f;  // 2^-109
    return q.step >= kLeast;
  }

  template <bool kVerify>
  __device__ static QuickCode Quantise(float x, float f, const Quantiser& q) {
    constexpr float kUnit = 12582912.0f;  // 1.5 * 2^23
    constexpr int32_t kMost = kMagnitudeLimit - 4;
    const float sum = __fadd_rd(x * q.inv + f, kUnit);
    const auto i = static_cast<int32_t>(FloatBits(sum) - FloatBits(kUnit));
    QuickCode result;
    result.accepted = static_cast<uint32_t>(WrapAdd(i, kMost)) <
                      2u * static_cast<uint32_t>(kMost);
    if (kVerify) {
      // (i + 1/2) - f: the first sum is exact.
      const float y = ((sum - (kUnit - 0.5f)) - f) * q.step;
      result.accepted &= fabsf(x - y) < q.error_bound;
    }
    const int32_t s = WrapSub(i, 1);
    result.code = CodeFromStep(s);
    result.magnitude = static_cast<uint32_t>(s ^ s >> 31);
    result.zero = IsQuickZero(x);
    return result;
  }
};

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_QUICK_H_

// SPDX-License-Identifier: Apache-2.0
// From a float to its code and back (README.md, sections "Codes", "Dither").
// The one definition that every instruction set and the GPU must agree with.
#ifndef COMET_CODEC_QUANTISE_H_
#define COMET_CODEC_QUANTISE_H_

#include <cstdint>
#include <cstring>

#include "custom_ops/codec/checksum.h"
#include "custom_ops/codec/format.h"
#include "custom_ops/codec/host_device.h"

namespace comet {

constexpr float kSmallestNormal = 1.17549435e-38f;  // 2^-126
constexpr float kLargestStep = 8.507059e+37f;       // 2^126
constexpr uint32_t kConvertibleBits = 0x4B000000u;  // of 2^23
constexpr int32_t kMagnitudeLimit = 1 << 22;

COMET_INLINE uint32_t FloatBits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

COMET_INLINE float FloatFromBits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

COMET_INLINE bool IsExactZero(float x) {
  return (FloatBits(x) & 0x7F800000u) == 0;
}

COMET_INLINE int BitLength(uint32_t v) {
  int bits = 0;
  for (; v != 0; v >>= 1) ++bits;
  return bits;
}

// --- 16-bit types ----------------------------------------------------------

COMET_INLINE float HalfToFloat(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  const uint32_t shifted = magnitude << 13;
  const uint32_t normal = shifted + (112u << 23);
  const uint32_t special = shifted | 0x7F800000u;
  const uint32_t subnormal = FloatBits(
      static_cast<float>(static_cast<int32_t>(magnitude)) * 5.9604645e-8f);
  const uint32_t bits = magnitude >= 0x7C00u
                            ? special
                            : (magnitude < 0x0400u ? subnormal : normal);
  return FloatFromBits(sign | bits);
}

COMET_INLINE uint16_t FloatToHalf(float y, Rounding rounding) {
  const uint32_t bits = FloatBits(y);
  const uint32_t a = bits & 0x7FFFFFFFu;
  const bool nearest_even = rounding == Rounding::kDither;
  const uint32_t round = nearest_even ? 0xFFFu + ((a >> 13) & 1u) : 0u;
  const uint32_t normal = (a - 0x38000000u + round) >> 13;
  // Below 2^-14: a multiple of 2^-24. Adding 2^23 rounds to nearest even.
  const bool is_small = a < 0x38800000u;
  const float scaled = is_small ? FloatFromBits(a) * 16777216.0f : 0.0f;
  const uint32_t small =
      nearest_even ? FloatBits(scaled + 8388608.0f) - 0x4B000000u
                   : static_cast<uint32_t>(static_cast<int32_t>(scaled));
  const uint32_t overflow =
      a >= 0x7F800000u ? 0x7C00u : (nearest_even ? 0x7C00u : 0x7BFFu);
  const uint32_t first_overflow = nearest_even ? 0x477FF000u : 0x47800000u;
  const uint32_t magnitude =
      a >= first_overflow ? overflow : (is_small ? small : normal);
  return static_cast<uint16_t>((bits >> 16 & 0x8000u) | magnitude);
}

COMET_INLINE float BFloat16ToFloat(uint16_t value) {
  return FloatFromBits(static_cast<uint32_t>(value) << 16);
}

COMET_INLINE uint16_t FloatToBFloat16(float y, Rounding rounding) {
  const uint32_t bits = FloatBits(y);
  const uint32_t round =
      rounding == Rounding::kDither ? 0x7FFFu + ((bits >> 16) & 1u) : 0u;
  return static_cast<uint16_t>((bits + round) >> 16);
}

template <DType kType>
COMET_INLINE float WidenElement(uint16_t element) {
  return kType == DType::kFloat16 ? HalfToFloat(element)
                                  : BFloat16ToFloat(element);
}

template <DType kType>
COMET_INLINE uint16_t NarrowElement(float y, Rounding rounding) {
  return kType == DType::kFloat16 ? FloatToHalf(y, rounding)
                                  : FloatToBFloat16(y, rounding);
}

// --- step and acceptance ---------------------------------------------------

struct Quantiser {
  float step;
  float inv;
  float error_bound;
  uint32_t limit;  // largest accepted bits of |x - y|
};

// The quantisation step of a bound; part of the format.
COMET_INLINE float StepFor(DType dtype, Rounding rounding, float bound) {
  const double twice = 2.0 * static_cast<double>(bound);
  if (dtype == DType::kFloat32) {
    const double step = twice * (1.0 - 1.0 / 4096.0);
    return step < static_cast<double>(kLargestStep) ? static_cast<float>(step)
                                                    : kLargestStep;
  }
  // A power of two: keep the exponent of 2 * bound, which is a normal float
  // unless it overflows.
  if (twice > static_cast<double>(kLargestStep)) return kLargestStep;
  const uint32_t bits = FloatBits(static_cast<float>(twice));
  const bool exact = (bits & 0x007FFFFFu) == 0;
  const uint32_t exponent = bits >> 23;
  const bool halve = exact && rounding == Rounding::kDither;
  return FloatFromBits((exponent - (halve ? 1u : 0u)) << 23);
}

COMET_INLINE Quantiser MakeQuantiser(DType dtype, Rounding rounding,
                                     float bound) {
  Quantiser q;
  q.step = StepFor(dtype, rounding, bound);
  q.inv = 1.0f / q.step;
  q.error_bound = bound;
  q.limit = FloatBits(bound) - (rounding == Rounding::kDither ? 1u : 0u);
  return q;
}

// --- codes -----------------------------------------------------------------

COMET_INLINE int32_t WrapSub(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) -
                              static_cast<uint32_t>(b));
}

COMET_INLINE int32_t WrapAdd(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) +
                              static_cast<uint32_t>(b));
}

COMET_INLINE uint32_t ZigZag(int32_t d) {
  return (static_cast<uint32_t>(d) << 1) ^ static_cast<uint32_t>(d >> 31);
}

COMET_INLINE int32_t UnZigZag(uint32_t z) {
  return static_cast<int32_t>((z >> 1) ^ (0u - (z & 1u)));
}

COMET_INLINE int32_t CodeFromStep(int32_t s) {
  return WrapAdd(s, (s >> 31) + 1);
}

COMET_INLINE int32_t StepFromCode(int32_t c) {
  return WrapSub(c, c > 0 ? 1 : 0);
}

// --- dither ----------------------------------------------------------------

// Strong random bits: one of 128 words of a tile.
COMET_INLINE uint64_t DitherWord(uint64_t mixed_seed, int64_t tile, int word) {
  const uint64_t counter =
      128ull * static_cast<uint64_t>(tile) + static_cast<uint64_t>(word);
  return Mix(mixed_seed + counter * kGolden64);
}

// The keys of two rows: the even one's in the lower half.
COMET_INLINE uint64_t DitherRowKeys(uint64_t mixed_seed, int64_t tile,
                                    int pair) {
  return DitherWord(mixed_seed, tile, pair);
}

// The keys of lanes 4 k to 4 k + 3, 16 bits each.
COMET_INLINE uint64_t DitherLaneKeys(uint64_t mixed_seed, int64_t tile, int k) {
  return DitherWord(mixed_seed, tile, kTileRows / 2 + k);
}

// The odd number that a lane's key stands for: no two lanes have the same.
COMET_INLINE uint32_t DitherLane(uint32_t key, int lane) {
  return (key & 0xFFC0u) | static_cast<uint32_t>(2 * lane + 1);
}

// What a row's key does to it.
COMET_INLINE uint32_t DitherFlip(uint32_t row_key) { return row_key & 0xFFFEu; }
COMET_INLINE uint32_t DitherFactor(uint32_t row_key) {
  return row_key >> 16 | 1u;
}

// The dither u of an element, an odd number below 2^16. `lane` is the lane's
// odd number.
COMET_INLINE int32_t DitherOffset(uint32_t row_key, uint32_t lane) {
  const uint32_t odd = lane ^ DitherFlip(row_key);
  return static_cast<int32_t>(odd * DitherFactor(row_key) & 0xFFFFu);
}

// How far a dithered level lies from an integer number of steps.
COMET_INLINE float DitherShift(int32_t u) {
  return static_cast<float>(32768 - u) * (1.0f / 65536.0f);
}

// --- one element -----------------------------------------------------------

// Restores a nonzero code's float32 value; `u` is used by dither only.
COMET_INLINE float RestoreStep(int32_t s, float step, int32_t u,
                               Rounding rounding) {
  const float shift = rounding == Rounding::kDither ? DitherShift(u) : 0.5f;
  return (static_cast<float>(s) + shift) * step;
}

// floor(t + u / 2^16), with t rounded to 16 bits after the point.
COMET_INLINE int32_t DitheredStep(float t, int32_t u) {
  constexpr float kUnit = 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const int32_t whole = static_cast<int32_t>(t);
  const float part = (t - static_cast<float>(whole)) * 65536.0f;  // exact
  const uint32_t rounded = FloatBits(part + kUnit) - FloatBits(kUnit);
  return whole + ((static_cast<int32_t>(rounded) + u) >> 16);
}

// Up to this many bits of q, and for such steps, every float32 element is
// within the bound (README.md, "Blocks that need no check").
constexpr int kSurelyAcceptedBits = 8;
constexpr float kLeastSureStep = 1e-30f;
constexpr float kLargestSureStep = 1e30f;

COMET_INLINE bool IsSureStep(float step) {
  return step >= kLeastSureStep && step <= kLargestSureStep;
}

// The code of a float32 without a check. What is too large, and NaN, gets a
// code that is too large as well.
template <Rounding kRounding>
COMET_INLINE int32_t QuantiseUnchecked(float x, int32_t u, const Quantiser& q) {
  const uint32_t bits = FloatBits(x);
  const float t = x * q.inv;
  const bool huge = (FloatBits(t) & 0x7FFFFFFFu) >= kConvertibleBits;
  const float bounded = huge ? static_cast<float>(kMagnitudeLimit) : t;
  const int32_t negative = static_cast<int32_t>(bits) >> 31;
  const int32_t s = kRounding == Rounding::kDither
                        ? DitheredStep(bounded, u)
                        : static_cast<int32_t>(bounded) + negative;
  const int32_t zero = (bits & 0x7F800000u) == 0 ? -1 : 0;
  return CodeFromStep(s) & ~zero;
}

// The code of x; ORs all ones into *rejected when the block must be RAW. Free
// of branches, of short-circuits and of bool, so that loops over it vectorise.
template <DType kType, Rounding kRounding>
COMET_INLINE int32_t QuantiseInto(float x, int32_t u, const Quantiser& q,
                                  int32_t* rejected) {
  const bool dither = kRounding == Rounding::kDither;
  const uint32_t bits = FloatBits(x);
  const float t = x * q.inv;
  // Outside of what int32 can surely hold, or NaN.
  const bool huge = (FloatBits(t) & 0x7FFFFFFFu) >= kConvertibleBits;
  const float bounded = huge ? 0.0f : t;
  const int32_t negative = static_cast<int32_t>(bits) >> 31;
  const int32_t s = dither ? DitheredStep(bounded, u)
                           : static_cast<int32_t>(bounded) + negative;
  float y = RestoreStep(s, q.step, u, kRounding);
  if (kType != DType::kFloat32) {
    y = WidenElement<kType>(NarrowElement<kType>(y, kRounding));
  }
  const uint32_t error = FloatBits(x - y) & 0x7FFFFFFFu;
  const int32_t magnitude = s ^ (s >> 31);
  const int32_t zero = (bits & 0x7F800000u) == 0 ? -1 : 0;
  const int32_t bad =
      (huge ? -1 : 0) | (magnitude >= kMagnitudeLimit ? -1 : 0) |
      (error > q.limit ? -1 : 0) | ((FloatBits(y) & 0x7F800000u) == 0 ? -1 : 0);
  *rejected |= bad & ~zero;
  return CodeFromStep(s) & ~zero;
}

struct QuantisedElement {
  int32_t code;
  bool accepted;
};

template <DType kType, Rounding kRounding>
COMET_INLINE QuantisedElement QuantiseElement(float x, int32_t u,
                                              const Quantiser& q) {
  int32_t rejected = 0;
  QuantisedElement result;
  result.code = QuantiseInto<kType, kRounding>(x, u, q, &rejected);
  result.accepted = rejected == 0;
  return result;
}

}  // namespace comet

#endif  // COMET_CODEC_QUANTISE_H_

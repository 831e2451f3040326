// SPDX-License-Identifier: Apache-2.0
// The element types of the kernels, with conversions to and from float that
// are exact or rounded to nearest even, whatever the thread does with
// denormals (TensorFlow flushes them). Branch-free, so that loops vectorise.
#ifndef COMET_CPU_ELEMENT_H_
#define COMET_CPU_ELEMENT_H_

#include <cstdint>
#include <cstring>

namespace comet {

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

namespace element_internal {

inline uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float Float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Not `?:`, which compilers turn into branches and then cannot vectorise.
inline uint32_t Select(bool which, uint32_t yes, uint32_t no) {
  const uint32_t mask = -static_cast<uint32_t>(which);
  return (yes & mask) | (no & ~mask);
}

}  // namespace element_internal

// The unsigned integer of an element's size.
template <typename T>
struct BitsOf {
  using Type = uint16_t;
};
template <>
struct BitsOf<float> {
  using Type = uint32_t;
};

inline float ToFloat(float value) { return value; }

inline float ToFloat(BFloat16 value) {
  return element_internal::Float(static_cast<uint32_t>(value.bits) << 16);
}

inline float ToFloat(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  // Exponent bias 127 instead of 15; infinity and NaN need that twice.
  const uint32_t bias =
      element_internal::Select(magnitude >= 0x7c00u, 224u << 23, 112u << 23);
  const uint32_t normal = (magnitude << 13) + bias;
  // A denormal is its integer times 2^-24, which float holds as a normal.
  const uint32_t denormal = element_internal::Bits(
      static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  return element_internal::Float(
      sign | element_internal::Select(magnitude < 0x0400u, denormal, normal));
}

inline void FromFloat(float value, float* out) { *out = value; }

inline void FromFloat(float value, BFloat16* out) {
  const uint32_t bits = element_internal::Bits(value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const uint32_t result = element_internal::Select(
      (bits & 0x7fffffffu) > 0x7f800000u, bits | 0x00400000u, rounded);
  out->bits = static_cast<uint16_t>(result >> 16);
}

inline void FromFloat(float value, Half* out) {
  const uint32_t bits = element_internal::Bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
  // Below 2^-14 the unit is 2^-24; adding 0.5 puts that unit at the end of the
  // mantissa, so the addition rounds.
  const uint32_t denormal =
      element_internal::Bits(element_internal::Float(magnitude) + 0.5f) -
      0x3f000000u;
  using element_internal::Select;
  uint32_t result = Select(magnitude < (113u << 23), denormal, normal);
  // From 65520 on, what rounds to 2^16 is infinite.
  result = Select(magnitude >= 0x477ff000u, 0x7c00u, result);
  result = Select(magnitude > 0x7f800000u, 0x7e00u, result);
  out->bits = static_cast<uint16_t>(sign | result);
}

}  // namespace comet

#endif  // COMET_CPU_ELEMENT_H_

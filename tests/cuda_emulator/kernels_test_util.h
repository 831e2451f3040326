// SPDX-License-Identifier: Apache-2.0
//
// What the kernel tests share: a check, and tensors of test values.

#ifndef COMET_TF_TESTS_CUDA_EMULATOR_KERNELS_TEST_UTIL_H_
#define COMET_TF_TESTS_CUDA_EMULATOR_KERNELS_TEST_UTIL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cpu/codec.h"
#include "device.h"

namespace comet {

// Fails the whole run: a wrong kernel is wrong everywhere.
#define COMET_CHECK(condition, what)                                    \
  do {                                                                  \
    if (!(condition)) {                                                 \
      std::fprintf(stderr, "%s:%d: failed: %s\n  %s\n  %s\n", __FILE__, \
                   __LINE__, #condition, std::string(what).c_str(),     \
                   DeviceError().c_str());                              \
      std::exit(1);                                                     \
    }                                                                   \
  } while (false)

inline void Serial(int64_t units, int64_t,
                   const std::function<void(int64_t, int64_t)>& fn) {
  if (units != 0) fn(0, units);
}

// Float32 values as bits of an element of any type.
inline uint32_t Narrow(DType dtype, float x) {
  switch (dtype) {
    case DType::kFloat32:
      return FloatBits(x);
    case DType::kFloat16:
      return FloatToHalf(x, Rounding::kNearest);
    default:
      return FloatToBFloat16(x, Rounding::kNearest);
  }
}

inline void SetElement(DType dtype, DeviceMemory* tensor, int64_t i,
                       uint32_t bits) {
  if (dtype == DType::kFloat32) {
    tensor->as<uint32_t>()[i] = bits;
  } else {
    tensor->as<uint16_t>()[i] = static_cast<uint16_t>(bits);
  }
}

// Kinds of content that between them reach every kind of block.
enum class Content {
  kZeros,
  kSmooth,     // changes little from row to row, no zeros
  kRectified,  // half of them zero
  kSparse,     // few are not zero
  kNoise,      // wide differences, both signs
  kConstant,
  kSpecial,  // NaN, infinities, denormals, huge and tiny values
  kMixed,    // changes character from block to block
};
constexpr Content kContents[] = {
    Content::kZeros, Content::kSmooth,   Content::kRectified, Content::kSparse,
    Content::kNoise, Content::kConstant, Content::kSpecial,   Content::kMixed};

inline float SpecialValue(uint32_t pick) {
  constexpr uint32_t kBits[] = {
      0x7FC00000u, 0xFFC12345u, 0x7F800000u, 0xFF800000u, 0x00000001u,
      0x80000001u, 0x007FFFFFu, 0x00800000u, 0x80800000u, 0x7F7FFFFFu,
      0xFF7FFFFFu, 0x80000000u, 0x00000000u, 0x3F800000u, 0xBF800000u,
      0x33800000u, 0x38800000u, 0x387FC000u, 0x4A800000u, 0xCA7FFFFFu};
  return FloatFromBits(kBits[pick % (sizeof kBits / sizeof kBits[0])]);
}

inline float ContentValue(Content content, int64_t row, int64_t column,
                          std::mt19937* random) {
  std::normal_distribution<float> normal;
  const auto smooth = [&] {
    return std::sin(0.05f * static_cast<float>(row) +
                    static_cast<float>(column)) +
           0.02f * normal(*random);
  };
  switch (content) {
    case Content::kZeros:
      return 0.0f;
    case Content::kSmooth:
      return 2.0f + smooth();
    case Content::kRectified:
      return std::max(0.0f, smooth());
    case Content::kSparse:
      return (*random)() % 16 == 0 ? normal(*random) : 0.0f;
    case Content::kNoise:
      return 3.0f * normal(*random);
    case Content::kConstant:
      return -0.7f;
    case Content::kSpecial:
      return (*random)() % 64 == 0 ? SpecialValue((*random)())
                                   : normal(*random);
    default: {
      constexpr Content kOthers[] = {Content::kZeros,     Content::kSmooth,
                                     Content::kRectified, Content::kSparse,
                                     Content::kConstant,  Content::kNoise,
                                     Content::kSpecial};
      return ContentValue(kOthers[(row / 8 + column / 32) % 7], row, column,
                          random);
    }
  }
}

inline DeviceMemory MakeTensor(DType dtype, int64_t n, int64_t row_length,
                               Content content, uint32_t seed) {
  DeviceMemory x(static_cast<size_t>(n * ElementBytes(dtype)));
  std::mt19937 random(seed);
  for (int64_t i = 0; i < n; ++i) {
    const float value =
        ContentValue(content, i / row_length, i % row_length, &random);
    SetElement(dtype, &x, i, Narrow(dtype, value));
  }
  return x;
}

}  // namespace comet

#endif  // COMET_TF_TESTS_CUDA_EMULATOR_KERNELS_TEST_UTIL_H_

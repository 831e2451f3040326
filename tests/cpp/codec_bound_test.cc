// SPDX-License-Identifier: Apache-2.0
// The bound, in exact arithmetic: every float16 and bfloat16 pattern and a
// stratified sample of float32 at many bounds, element by element and through
// streams. (All float32 patterns: exhaustive.cc.)
#include <cmath>
#include <random>

#include "tests/cpp/codec_test_util.h"

namespace comet {
namespace {

// Powers of two and others, tiny to huge.
std::vector<float> Bounds() {
  std::vector<float> bounds = {
      kSmallestNormal, FloatFromBits(FloatBits(kSmallestNormal) + 1),
      3.4028234e38f,   2e38f,
      0x1p126f,        0x1p125f};
  for (int exponent = -40; exponent <= 20; exponent += 6) {
    for (const float mantissa : {1.0f, 1.37f, 1.9999999f}) {
      bounds.push_back(std::ldexp(mantissa, exponent));
    }
  }
  return bounds;
}

struct Counts {
  int64_t checked = 0;
  int64_t accepted = 0;
};

// Checks one element alone, as a block would take it.
template <DType kType, Rounding kRounding>
void CheckElement(float x, int32_t u, const Quantiser& q, Counts* counts) {
  const QuantisedElement e = QuantiseElement<kType, kRounding>(x, u, q);
  const bool finite = (FloatBits(x) & 0x7F800000u) != 0x7F800000u;
  if (!e.accepted) return;
  COMET_CHECK(finite);
  COMET_CHECK((e.code == 0) == IsExactZero(x));
  if (e.code == 0) return;
  float y = RestoreStep(StepFromCode(e.code), q.step, u, kRounding);
  if (kType != DType::kFloat32) {
    y = WidenElement<kType>(NarrowElement<kType>(y, kRounding));
  }
  COMET_CHECK(Allowed(kType, kRounding, x, y, q.error_bound));
  if (kRounding == Rounding::kNearest) COMET_CHECK((e.code > 0) == (x > 0));
  ++counts->accepted;
}

// Whether an element of this size should be stored as a code: the bound is
// neither near the type's resolution there nor near float32's limits.
bool ShouldAccept(float x, float bound) {
  const float size = std::abs(x);
  return bound > 1e-30f && bound < 1e30f && size < 500 * bound;
}

template <DType kType, Rounding kRounding>
void CheckHalfPatterns(float bound) {
  const Quantiser q = MakeQuantiser(kType, kRounding, bound);
  std::mt19937 random(FloatBits(bound));
  std::vector<uint16_t> x(65536), y(65536);
  Counts counts;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    x[bits] = static_cast<uint16_t>(bits);
    const float value = WidenElement<kType>(x[bits]);
    const int draws = kRounding == Rounding::kDither ? 3 : 1;
    for (int k = 0; k < draws; ++k) {
      const int32_t u = DitherOffset(static_cast<uint32_t>(random()), 1);
      const int64_t before = counts.accepted;
      CheckElement<kType, kRounding>(value, u, q, &counts);
      if (kRounding == Rounding::kNearest && !IsExactZero(value) &&
          ShouldAccept(value, bound) && std::abs(value) > 1e-6f) {
        COMET_CHECK(counts.accepted > before);
      }
    }
  }
  // Once in order, once so that blocks mix all sizes.
  for (const uint32_t factor : {1u, 40503u}) {
    for (uint32_t k = 0; k < 65536; ++k) {
      x[k] = static_cast<uint16_t>(k * factor);
    }
    CompressOptions options;
    options.dtype = kType;
    options.n = 65536;
    options.error_bound = bound;
    options.rounding = kRounding;
    options.seed = factor;
    std::vector<uint8_t> stream;
    COMET_CHECK(CompressTo(options, x.data(), Serial, &stream).ok);
    COMET_CHECK(Decompress(stream.data(), static_cast<int64_t>(stream.size()),
                           kType, 65536, Serial, y.data())
                    .ok);
    for (uint32_t k = 0; k < 65536; ++k) {
      COMET_CHECK(Allowed(kType, kRounding, WidenElement<kType>(x[k]),
                          WidenElement<kType>(y[k]), bound));
    }
  }
}

template <Rounding kRounding>
void CheckFloats(float bound) {
  constexpr DType kType = DType::kFloat32;
  const Quantiser q = MakeQuantiser(kType, kRounding, bound);
  std::mt19937 random(FloatBits(bound) + 1);
  std::vector<float> x;
  // Every exponent and sign, random mantissas and the extreme ones.
  for (uint32_t top = 0; top < 512; ++top) {
    for (int k = 0; k < 24; ++k) {
      x.push_back(FloatFromBits(top << 23 | (random() & 0x7FFFFFu)));
    }
    for (const uint32_t low : {0u, 1u, 0x400000u, 0x7FFFFEu, 0x7FFFFFu}) {
      x.push_back(FloatFromBits(top << 23 | low));
    }
  }
  // Around the edges and the middles of the steps.
  for (int k = 0; k < 4000; ++k) {
    const int bits = 1 + static_cast<int>(random() % 23);
    const float level = static_cast<float>(random() % (1u << bits)) * 0.5f;
    const float at = level * q.step;
    const uint32_t around = FloatBits(at) + random() % 7 - 3;
    x.push_back(FloatFromBits(around));
    x.push_back(FloatFromBits(around ^ 0x80000000u));
  }
  Counts counts;
  for (const float value : x) {
    const int32_t u = DitherOffset(static_cast<uint32_t>(random()), 1);
    const int64_t before = counts.accepted;
    CheckElement<kType, kRounding>(value, u, q, &counts);
    if (!IsExactZero(value) && ShouldAccept(value, bound)) {
      COMET_CHECK(counts.accepted > before);
    }
  }
  CompressOptions options;
  options.n = static_cast<int64_t>(x.size());
  options.error_bound = bound;
  options.rounding = kRounding;
  options.seed = 3;
  std::vector<uint8_t> stream;
  COMET_CHECK(CompressTo(options, x.data(), Serial, &stream).ok);
  std::vector<float> y(x.size());
  COMET_CHECK(Decompress(stream.data(), static_cast<int64_t>(stream.size()),
                         kType, options.n, Serial, y.data())
                  .ok);
  for (size_t k = 0; k < x.size(); ++k) {
    COMET_CHECK(Allowed(kType, kRounding, x[k], y[k], bound));
  }
}

void CheckRefusedBounds() {
  const float x[4] = {1, 2, 3, 4};
  for (const float bound :
       {0.0f, -1.0f, FloatFromBits(1), FloatFromBits(0x007FFFFF),
        FloatFromBits(0x7F800000), FloatFromBits(0x7FC00000)}) {
    CompressOptions options;
    options.n = 4;
    options.error_bound = bound;
    std::vector<uint8_t> stream;
    const Status status = CompressTo(options, x, Serial, &stream);
    COMET_CHECK(!status.ok &&
                status.message.find("bound") != std::string::npos);
  }
}

}  // namespace
}  // namespace comet

int main() {
  using comet::DType;
  using comet::Rounding;
  for (const float bound : comet::Bounds()) {
    comet::CheckHalfPatterns<DType::kFloat16, Rounding::kNearest>(bound);
    comet::CheckHalfPatterns<DType::kFloat16, Rounding::kDither>(bound);
    comet::CheckHalfPatterns<DType::kBFloat16, Rounding::kNearest>(bound);
    comet::CheckHalfPatterns<DType::kBFloat16, Rounding::kDither>(bound);
    comet::CheckFloats<Rounding::kNearest>(bound);
    comet::CheckFloats<Rounding::kDither>(bound);
  }
  comet::CheckRefusedBounds();
  std::printf("ok (%s)\n", comet::CodecIsa());
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// What the codec's C++ tests share: a check macro that stays on in release
// builds, serial execution, and exact comparison against the bound.
#ifndef COMET_TESTS_CPP_CODEC_TEST_UTIL_H_
#define COMET_TESTS_CPP_CODEC_TEST_UTIL_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/codec/quantise.h"
#include "custom_ops/cpu/codec.h"

#define COMET_CHECK(condition)                                        \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, \
                   #condition);                                       \
      std::exit(1);                                                   \
    }                                                                 \
  } while (false)

namespace comet {

inline void Serial(int64_t units, int64_t,
                   const std::function<void(int64_t, int64_t)>& fn) {
  if (units != 0) fn(0, units);
}

inline Status CompressTo(const CompressOptions& options, const void* x,
                         const ParallelFor& parallel_for,
                         std::vector<uint8_t>* stream) {
  std::vector<std::unique_ptr<uint8_t[]>> chunks;
  Compressor compressor;
  const Status status =
      compressor.Encode(options, x, parallel_for, [&](size_t bytes) {
        COMET_CHECK(bytes <= (size_t{132} << 10));
        chunks.emplace_back(new uint8_t[bytes]);
        return chunks.back().get();
      });
  if (!status.ok) return status;
  stream->resize(static_cast<size_t>(compressor.stream_bytes()));
  compressor.Write(stream->data(), parallel_for);
  return status;
}

inline void StoreFloat(std::vector<uint8_t>* x, int64_t k, float value) {
  std::memcpy(x->data() + 4 * k, &value, sizeof value);
}

inline float ElementAt(DType dtype, const void* x, int64_t k) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, static_cast<const char*>(x) + 4 * k, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(x) + 2 * k, 2);
  return dtype == DType::kFloat16 ? HalfToFloat(bits) : BFloat16ToFloat(bits);
}

// Whether |x - y| <= bound in exact arithmetic. high + low is exactly x - y
// (Knuth's TwoSum; no double made from floats overflows here).
inline bool ExactlyWithin(double x, double y, double bound) {
  const double high = x - y;
  const double back = high - x;
  const double low = (x - (high - back)) + (-y - back);
  const double size = high < 0 ? -high : high;
  const double rest = high < 0 ? -low : low;
  return size < bound || (size == bound && rest <= 0);
}

// Whether y may be the restored x.
inline bool Allowed(DType dtype, Rounding rounding, float x, float y,
                    float bound) {
  const uint32_t bits = FloatBits(x);
  if ((bits & 0x7F800000u) == 0x7F800000u) {
    return FloatBits(y) == bits;  // NaN and infinity bit for bit
  }
  // Exact zeros; a RAW block keeps the sign of 0 and subnormal float32 numbers.
  const bool zero = dtype == DType::kFloat16 ? x == 0 : IsExactZero(x);
  if (zero) return FloatBits(y) == 0 || FloatBits(y) == bits;
  if (IsExactZero(y)) return false;
  if (rounding == Rounding::kNearest && (x < 0) != (y < 0)) return false;
  return ExactlyWithin(x, y, bound);
}

}  // namespace comet

#endif  // COMET_TESTS_CPP_CODEC_TEST_UTIL_H_

// SPDX-License-Identifier: Apache-2.0
// The range of the finite elements of a tensor part.
#ifndef COMET_CPU_CODEC_RANGE_H_
#define COMET_CPU_CODEC_RANGE_H_

#include "custom_ops/cpu/codec_isa_portable.h"
#include "custom_ops/cpu/codec_kernels.h"

namespace comet {
namespace {

constexpr float kInfinity = __builtin_inff();

// Smallest and largest finite element of 32-lane rows.
template <class Isa, DType kType>
FiniteRange RangeOf(const uint8_t* x, int64_t n) {
  constexpr int kBytes = kType == DType::kFloat32 ? 4 : 2;
  alignas(64) float low[kLanes];
  alignas(64) float high[kLanes];
  for (int k = 0; k < kLanes; ++k) {
    low[k] = kInfinity;
    high[k] = -kInfinity;
  }
  for (int64_t begin = 0; begin < n; begin += kLanes) {
    alignas(64) float row[kLanes];
    if (n - begin >= kLanes) {
      Isa::template LoadRow<kType>(x + begin * kBytes, row);
    } else {
      // Infinities do not count, so they can fill the row.
      for (int k = 0; k < kLanes; ++k) row[k] = kInfinity;
      alignas(64) uint8_t padded[kLanes * kBytes] = {};
      std::memcpy(padded, x + begin * kBytes,
                  static_cast<size_t>(n - begin) * kBytes);
      alignas(64) float tail[kLanes];
      Isa::template LoadRow<kType>(padded, tail);
      for (int k = 0; k < n - begin; ++k) row[k] = tail[k];
    }
    for (int k = 0; k < kLanes; ++k) {
      const bool finite = (FloatBits(row[k]) & 0x7FFFFFFFu) < 0x7F800000u;
      const float at_least = finite ? row[k] : kInfinity;
      const float at_most = finite ? row[k] : -kInfinity;
      low[k] = at_least < low[k] ? at_least : low[k];
      high[k] = at_most > high[k] ? at_most : high[k];
    }
  }
  FiniteRange range{kInfinity, -kInfinity};
  for (int k = 0; k < kLanes; ++k) {
    range.low = low[k] < range.low ? low[k] : range.low;
    range.high = high[k] > range.high ? high[k] : range.high;
  }
  return range;
}

template <class Isa>
FiniteRange Range(DType dtype, const uint8_t* x, int64_t n) {
  if (dtype == DType::kFloat32) return RangeOf<Isa, DType::kFloat32>(x, n);
  if (dtype == DType::kFloat16) return RangeOf<Isa, DType::kFloat16>(x, n);
  return RangeOf<Isa, DType::kBFloat16>(x, n);
}

}  // namespace
}  // namespace comet

#endif  // COMET_CPU_CODEC_RANGE_H_

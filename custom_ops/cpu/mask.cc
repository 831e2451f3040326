// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/cpu/mask.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "custom_ops/cpu/bits.h"

namespace comet {
namespace {

// Elements between which threads may part; their masks fill whole cache lines.
constexpr int64_t kGrain = 8192;
// Elements treated together, so that inner loops have a fixed length.
constexpr int kStretch = 64;

// A range of floats, tested on floats.
class FloatRange {
 public:
  FloatRange(float lower, float upper)
      : lower_(lower),
        upper_(upper),
        unlimited_(upper == std::numeric_limits<float>::infinity()) {}

  void Test(const float* x, int count, uint8_t* inside) const {
    if (unlimited_) {
      for (int i = 0; i < count; ++i) inside[i] = x[i] > lower_;
    } else {
      for (int i = 0; i < count; ++i) {
        inside[i] = (x[i] > lower_) & (x[i] < upper_);
      }
    }
  }

 private:
  float lower_;
  float upper_;
  bool unlimited_;
};

// A range of 16-bit elements, tested on integers that sort as their values do.
template <typename T>
class KeyRange {
 public:
  KeyRange(float lower, float upper)
      : first_(FirstKey([&](float value) { return value > lower; })),
        size_((upper == std::numeric_limits<float>::infinity()
                   ? kInfinity + 1
                   : FirstKey([&](float value) { return value >= upper; })) -
              first_) {}

  void Test(const T* x, int count, uint8_t* inside) const {
    const auto first = static_cast<uint16_t>(first_);
    const auto size = static_cast<uint16_t>(std::max(size_, 0));
    for (int i = 0; i < count; ++i) {
      const uint16_t magnitude = x[i].bits & 0x7fffu;
      const auto sign =
          static_cast<uint16_t>(-static_cast<uint16_t>(x[i].bits >> 15));
      const auto key = static_cast<uint16_t>((magnitude ^ sign) - sign);
      inside[i] = static_cast<uint16_t>(key - first) < size;
    }
  }

 private:
  static constexpr int kInfinity = std::is_same_v<T, Half> ? 0x7c00 : 0x7f80;

  // Smallest key whose value satisfies a condition that stays true from there
  // on; one past infinity if there is none.
  template <typename Condition>
  static int FirstKey(const Condition& condition) {
    int low = -kInfinity;
    int high = kInfinity + 1;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      const auto bits =
          static_cast<uint16_t>(middle < 0 ? 0x8000 | -middle : middle);
      if (condition(ToFloat(T{bits}))) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  int first_;
  int size_;
};

template <typename T>
struct RangeOf {
  using Type = KeyRange<T>;
};
template <>
struct RangeOf<float> {
  using Type = FloatRange;
};

// The elements of a grain whose bit is not set become `otherwise`.
template <typename T>
void Choose(const uint8_t* mask, const T* dy, int count, const T* otherwise,
            T* dx) {
  using U = typename BitsOf<T>::Type;
  for (int i = 0; i + 8 <= count; i += 8) {
    U yes[8], no[8], lanes[8];
    ExpandByte(mask[i / 8], lanes);
    std::memcpy(yes, dy + i, sizeof(yes));
    std::memcpy(no, otherwise + i, sizeof(no));
    for (int k = 0; k < 8; ++k) {
      yes[k] = no[k] ^ ((yes[k] ^ no[k]) & lanes[k]);
    }
    std::memcpy(dx + i, yes, sizeof(yes));
  }
}

template <typename T>
void Gate(const uint8_t* mask, const T* dy, int count, T* dx) {
  using U = typename BitsOf<T>::Type;
  for (int i = 0; i + 8 <= count; i += 8) {
    U yes[8], lanes[8];
    ExpandByte(mask[i / 8], lanes);
    std::memcpy(yes, dy + i, sizeof(yes));
    for (int k = 0; k < 8; ++k) yes[k] &= lanes[k];
    std::memcpy(dx + i, yes, sizeof(yes));
  }
}

template <typename T>
void GradientStretch(const uint8_t* mask, const T* dy, float slope, T* dx) {
  if (slope == 0) {
    Gate(mask, dy, kStretch, dx);
    return;
  }
  T scaled[kStretch];
  for (int i = 0; i < kStretch; ++i)
    FromFloat(ToFloat(dy[i]) * slope, &scaled[i]);
  Choose(mask, dy, kStretch, scaled, dx);
}

}  // namespace

template <typename T>
void PackMask(const T* x, int64_t n, float lower, float upper,
              const ParallelFor& parallel_for, uint8_t* mask) {
  const typename RangeOf<T>::Type range(lower, upper);
  const int64_t grains = (n + kGrain - 1) / kGrain;
  parallel_for(grains, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t last = std::min(end * kGrain, n);
    for (int64_t i = begin * kGrain; i < last; i += kStretch) {
      uint8_t inside[kStretch] = {};
      const int count = static_cast<int>(std::min<int64_t>(kStretch, last - i));
      if (count == kStretch) {
        range.Test(x + i, kStretch, inside);
      } else {
        range.Test(x + i, count, inside);
      }
      for (int k = 0; k < count; k += 8) {
        mask[(i + k) / 8] = PackByte(inside + k);
      }
    }
  });
}

template <typename T>
void MaskGradient(const uint8_t* mask, const T* dy, int64_t n,
                  float negative_slope, const ParallelFor& parallel_for,
                  T* dx) {
  const int64_t grains = (n + kGrain - 1) / kGrain;
  parallel_for(grains, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t last = std::min(end * kGrain, n);
    int64_t i = begin * kGrain;
    for (; i + kStretch <= last; i += kStretch) {
      GradientStretch(mask + i / 8, dy + i, negative_slope, dx + i);
    }
    if (i < last) {
      // A copy padded to the full length.
      T padded[kStretch] = {};
      uint8_t bits[kStretch / 8] = {};
      std::memcpy(padded, dy + i, (last - i) * sizeof(T));
      std::memcpy(bits, mask + i / 8, MaskBytes(last - i));
      GradientStretch(bits, padded, negative_slope, padded);
      std::memcpy(dx + i, padded, (last - i) * sizeof(T));
    }
  });
}

#define COMET_INSTANTIATE(T)                                              \
  template void PackMask<T>(const T*, int64_t, float, float,              \
                            const ParallelFor&, uint8_t*);                \
  template void MaskGradient<T>(const uint8_t*, const T*, int64_t, float, \
                                const ParallelFor&, T*);
COMET_INSTANTIATE(float)
COMET_INSTANTIATE(Half)
COMET_INSTANTIATE(BFloat16)
#undef COMET_INSTANTIATE

}  // namespace comet

// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/cpu/pooling.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "custom_ops/cpu/bits.h"

namespace comet {
namespace {

using Dims = PoolGeometry::Dims;

// Channels treated together; their state stays in the first-level cache.
constexpr int kChannels = 256;

// The place of a pixel in a tensor whose spatial dimensions are `dims`.
struct Pixel {
  int64_t batch;
  Dims at;
};

Pixel Locate(int64_t index, const Dims& dims) {
  Pixel pixel;
  for (int d = 2; d >= 0; --d) {
    pixel.at[d] = index % dims[d];
    index /= dims[d];
  }
  pixel.batch = index;
  return pixel;
}

int64_t IndexOf(int64_t batch, const Dims& at, const Dims& dims) {
  return ((batch * dims[0] + at[0]) * dims[1] + at[1]) * dims[2] + at[2];
}

struct Interval {
  int64_t begin;
  int64_t end;
};

// The part of a window that lies inside the input, along one dimension.
Interval WindowPart(const PoolGeometry& g, int d, int64_t output) {
  const int64_t start = output * g.strides[d] - g.padding[d];
  return {std::max<int64_t>(0, -start),
          std::min(g.window[d], g.input[d] - start)};
}

// The outputs whose windows cover an input element, along one dimension.
Interval CoveringOutputs(const PoolGeometry& g, int d, int64_t input) {
  const int64_t padded = input + g.padding[d];
  const int64_t first = padded - g.window[d] + 1;
  return {first <= 0 ? 0 : (first + g.strides[d] - 1) / g.strides[d],
          std::min(g.output[d], padded / g.strides[d] + 1)};
}

// Calls visit(input pixel, position) for a window's elements in their order.
template <typename Visit>
void ForWindow(const PoolGeometry& g, const Pixel& out, const Visit& visit) {
  Interval part[3];
  for (int d = 0; d < 3; ++d) part[d] = WindowPart(g, d, out.at[d]);
  for (int64_t i = part[0].begin; i < part[0].end; ++i) {
    for (int64_t j = part[1].begin; j < part[1].end; ++j) {
      for (int64_t k = part[2].begin; k < part[2].end; ++k) {
        const Dims at = {out.at[0] * g.strides[0] - g.padding[0] + i,
                         out.at[1] * g.strides[1] - g.padding[1] + j,
                         out.at[2] * g.strides[2] - g.padding[2] + k};
        visit(IndexOf(out.batch, at, g.input),
              static_cast<uint32_t>((i * g.window[1] + j) * g.window[2] + k));
      }
    }
  }
}

// Calls visit(output pixel, position) for the outputs that may have taken their
// maximum from an input element, in their order.
template <typename Visit>
void ForCovering(const PoolGeometry& g, const Pixel& in, const Visit& visit) {
  Interval part[3];
  for (int d = 0; d < 3; ++d) part[d] = CoveringOutputs(g, d, in.at[d]);
  for (int64_t i = part[0].begin; i < part[0].end; ++i) {
    for (int64_t j = part[1].begin; j < part[1].end; ++j) {
      for (int64_t k = part[2].begin; k < part[2].end; ++k) {
        const Dims out = {i, j, k};
        int64_t position = 0;
        for (int d = 0; d < 3; ++d) {
          position = position * g.window[d] + in.at[d] + g.padding[d] -
                     out[d] * g.strides[d];
        }
        visit(IndexOf(in.batch, out, g.output),
              static_cast<uint32_t>(position));
      }
    }
  }
}

// The running maximum over a window, of up to kChannels channels.
struct Maximum {
  float value[kChannels];
  uint32_t position[kChannels];

  template <typename T>
  void Start(const T* x, int count, uint32_t at) {
    for (int c = 0; c < count; ++c) value[c] = ToFloat(x[c]);
    for (int c = 0; c < count; ++c) position[c] = at;
  }

  template <typename T>
  void Update(const T* x, int count, uint32_t at) {
    for (int c = 0; c < count; ++c) {
      const float candidate = ToFloat(x[c]);
      const uint32_t larger = -static_cast<uint32_t>(value[c] < candidate);
      position[c] = (position[c] & ~larger) | (at & larger);
      value[c] = value[c] < candidate ? candidate : value[c];
    }
  }

  void Pack(int count, int bits, uint8_t* positions) const {
    for (int c = 0; c < count; c += 8) {
      for (int b = 0; b < bits; ++b) {
        uint8_t lanes[8] = {};
        for (int k = 0; k < std::min(8, count - c); ++k) {
          lanes[k] = (position[c + k] >> b) & 1;
        }
        *positions++ = PackByte(lanes);
      }
    }
  }
};

// Which of a group's eight channels have their maximum at `position`.
template <int kBits>
uint8_t Matches(const uint8_t* group, uint32_t position) {
  uint8_t differ = 0;
  for (int b = 0; b < kBits; ++b) {
    differ |= group[b] ^ static_cast<uint8_t>(-((position >> b) & 1));
  }
  return static_cast<uint8_t>(~differ);
}

// sum += the lanes of dy whose bit is set, rounded to T. Without a branch on
// whether there is any: that would be taken at random.
template <typename T>
void AddMatching(uint8_t matches, const T* dy, T* sum) {
  using U = typename BitsOf<T>::Type;
  U lanes[8], bits[8];
  ExpandByte(matches, lanes);
  std::memcpy(bits, dy, sizeof(bits));
  for (int k = 0; k < 8; ++k) bits[k] &= lanes[k];
  T addend[8], total[8];
  std::memcpy(addend, bits, sizeof(bits));
  std::memcpy(total, sum, sizeof(total));
  for (int k = 0; k < 8; ++k) {
    FromFloat(ToFloat(total[k]) + ToFloat(addend[k]), &total[k]);
  }
  std::memcpy(sum, total, sizeof(total));
}

template <int kBits, typename T>
void AddPixel(const uint8_t* positions, uint32_t position, const T* dy,
              int64_t channels, T* sum) {
  int64_t c = 0;
  for (; c + 8 <= channels; c += 8, positions += kBits) {
    AddMatching(Matches<kBits>(positions, position), dy + c, sum + c);
  }
  if (c < channels) {
    T padded_dy[8] = {}, padded_sum[8] = {};
    const size_t bytes = (channels - c) * sizeof(T);
    std::memcpy(padded_dy, dy + c, bytes);
    std::memcpy(padded_sum, sum + c, bytes);
    AddMatching(Matches<kBits>(positions, position), padded_dy, padded_sum);
    std::memcpy(sum + c, padded_sum, bytes);
  }
}

// AddPixel for each number of bits, 0 to 16.
template <typename T>
using AddPixelFunction = void (*)(const uint8_t*, uint32_t, const T*, int64_t,
                                  T*);

template <typename T, int... kBits>
AddPixelFunction<T> ChooseAddPixel(int bits,
                                   std::integer_sequence<int, kBits...>) {
  static constexpr AddPixelFunction<T> kFunctions[] = {AddPixel<kBits, T>...};
  return kFunctions[bits];
}

}  // namespace

template <typename T>
void PackPoolPositions(const PoolGeometry& g, const T* x,
                       const ParallelFor& parallel_for, uint8_t* positions) {
  const int bits = g.PositionBits();
  const int64_t pixel_bytes = g.PixelBytes();
  if (pixel_bytes == 0) return;
  parallel_for(g.OutputPixels(), g.channels * g.WindowSize(),
               [&](int64_t begin, int64_t end) {
                 Maximum maximum;
                 for (int64_t p = begin; p < end; ++p) {
                   const Pixel out = Locate(p, g.output);
                   for (int64_t c = 0; c < g.channels; c += kChannels) {
                     const int count = static_cast<int>(
                         std::min<int64_t>(kChannels, g.channels - c));
                     bool started = false;
                     ForWindow(g, out, [&](int64_t pixel, uint32_t position) {
                       const T* row = x + pixel * g.channels + c;
                       if (started) {
                         maximum.Update(row, count, position);
                       } else {
                         maximum.Start(row, count, position);
                         started = true;
                       }
                     });
                     maximum.Pack(count, bits,
                                  positions + p * pixel_bytes + c / 8 * bits);
                   }
                 }
               });
}

template <typename T>
void PoolGradient(const PoolGeometry& g, const uint8_t* positions, const T* dy,
                  const ParallelFor& parallel_for, T* dx) {
  const AddPixelFunction<T> add_pixel = ChooseAddPixel<T>(
      g.PositionBits(), std::make_integer_sequence<int, 17>());
  const int64_t pixel_bytes = g.PixelBytes();
  const int64_t pixels = g.batch * g.input[0] * g.input[1] * g.input[2];
  parallel_for(pixels, g.channels * 4, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      T* sum = dx + p * g.channels;
      std::memset(static_cast<void*>(sum), 0, g.channels * sizeof(T));
      ForCovering(g, Locate(p, g.input), [&](int64_t pixel, uint32_t position) {
        add_pixel(positions + pixel * pixel_bytes, position,
                  dy + pixel * g.channels, g.channels, sum);
      });
    }
  });
}

#define COMET_INSTANTIATE(T)                                                   \
  template void PackPoolPositions<T>(const PoolGeometry&, const T*,            \
                                     const ParallelFor&, uint8_t*);            \
  template void PoolGradient<T>(const PoolGeometry&, const uint8_t*, const T*, \
                                const ParallelFor&, T*);
COMET_INSTANTIATE(float)
COMET_INSTANTIATE(Half)
COMET_INSTANTIATE(BFloat16)
#undef COMET_INSTANTIATE

}  // namespace comet

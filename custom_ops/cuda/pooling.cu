// SPDX-License-Identifier: Apache-2.0
// Max-pooling's backward pass from the packed positions of the maxima. The
// layout is that of custom_ops/cpu/pooling.h: for each output pixel and group
// of 8 channels one byte a position bit, low bit first.

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/cuda/element.h"
#include "custom_ops/cuda/launch.h"
#include "custom_ops/cuda/launchers.h"
#include "custom_ops/cuda/tile.h"
#include "custom_ops/cuda/warp.h"

namespace comet {
namespace cuda {
namespace {

constexpr int kGroup = 8;
constexpr int kMostPositionBits = 16;
// Elements up to which 32-bit indices do, with room for a stride beyond.
constexpr int64_t kSmallIndices = 1 << 30;

// PoolShape with the index type that the kernel computes in: 64-bit divisions
// are slow.
template <typename Index>
struct Shape {
  Index batch, channels, input[3], output[3], window[3], strides[3], padding[3];

  explicit Shape(const PoolShape& s)
      : batch(static_cast<Index>(s.batch)),
        channels(static_cast<Index>(s.channels)) {
    for (int d = 0; d < 3; ++d) {
      input[d] = static_cast<Index>(s.input[d]);
      output[d] = static_cast<Index>(s.output[d]);
      window[d] = static_cast<Index>(s.window[d]);
      strides[d] = static_cast<Index>(s.strides[d]);
      padding[d] = static_cast<Index>(s.padding[d]);
    }
  }
};

template <typename Index>
struct Pixel {
  Index batch, at[3];
};

template <typename Index>
__device__ inline Pixel<Index> Locate(Index pixel, const Index dims[3]) {
  Pixel<Index> p;
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    p.at[d] = pixel % dims[d];
    pixel /= dims[d];
  }
  p.batch = pixel;
  return p;
}

template <typename Index>
__device__ inline Index Max(Index a, Index b) {
  return a > b ? a : b;
}
template <typename Index>
__device__ inline Index Min(Index a, Index b) {
  return a < b ? a : b;
}

// The position of the first maximum of a window. A NaN counts only in first
// place.
template <DType kType, typename Index>
__device__ inline uint32_t FindMaximum(const Shape<Index>& s,
                                       const Storage<kType>* x,
                                       const Pixel<Index>& out, Index channel) {
  Index start[3], begin[3], end[3];
#pragma unroll
  for (int d = 0; d < 3; ++d) {
    start[d] = out.at[d] * s.strides[d] - s.padding[d];
    begin[d] = Max<Index>(0, -start[d]);
    end[d] = Min<Index>(s.window[d], s.input[d] - start[d]);
  }
  float best = 0.0f;
  uint32_t best_position = 0;
  bool started = false;
  for (Index i = begin[0]; i < end[0]; ++i) {
    for (Index j = begin[1]; j < end[1]; ++j) {
      for (Index k = begin[2]; k < end[2]; ++k) {
        const Index pixel =
            ((out.batch * s.input[0] + start[0] + i) * s.input[1] + start[1] +
             j) *
                s.input[2] +
            start[2] + k;
        const float value = ToFloat<kType>(x[pixel * s.channels + channel]);
        if (!started || best < value) {
          best = value;
          best_position =
              static_cast<uint32_t>((i * s.window[1] + j) * s.window[2] + k);
          started = true;
        }
      }
    }
  }
  return best_position;
}

// A thread for each output pixel and channel, channels padded to whole groups.
template <DType kType, typename Index>
__global__ void __launch_bounds__(kThreads)
    PositionsKernel(Shape<Index> s, const Storage<kType>* x, int bits,
                    int64_t units, uint8_t* positions) {
  const int lane = LaneIndex();
  const int64_t unit = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const Index groups = (s.channels + kGroup - 1) / kGroup;
  const Index group = static_cast<Index>(unit / kGroup);
  const Index pixel = group / groups;
  const Index channel =
      (group - pixel * groups) * kGroup + static_cast<Index>(unit % kGroup);
  uint32_t position = 0;
  if (unit < units && channel < s.channels) {
    position = FindMaximum<kType>(s, x, Locate(pixel, s.output), channel);
  }
  for (int b = 0; b < bits; ++b) {
    const uint32_t word = __ballot_sync(kAllLanes, position >> b & 1u);
    if (unit < units && lane % kGroup == b % kGroup) {
      positions[int64_t{group} * bits + b] =
          static_cast<uint8_t>(word >> (lane & ~(kGroup - 1)));
    }
  }
}

// A thread for each input element: the sum of what the windows that cover it
// hand back, in the order of the outputs.
template <DType kType, typename Index>
__global__ void __launch_bounds__(kThreads)
    PoolGradientKernel(Shape<Index> s, const uint8_t* positions, int bits,
                       const Storage<kType>* dy, int64_t units,
                       Storage<kType>* dx) {
  const int64_t unit = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (unit >= units) return;
  const Index element = static_cast<Index>(unit);
  const Index pixel = element / s.channels;
  const Index channel = element - pixel * s.channels;
  const Index groups = (s.channels + kGroup - 1) / kGroup;
  const Pixel<Index> in = Locate(pixel, s.input);
  Index begin[3], end[3];
#pragma unroll
  for (int d = 0; d < 3; ++d) {
    const Index padded = in.at[d] + s.padding[d];
    const Index first = padded - s.window[d] + 1;
    begin[d] = first <= 0 ? 0 : (first + s.strides[d] - 1) / s.strides[d];
    end[d] = Min<Index>(s.output[d], padded / s.strides[d] + 1);
  }
  Storage<kType> sum = 0;
  for (Index i = begin[0]; i < end[0]; ++i) {
    for (Index j = begin[1]; j < end[1]; ++j) {
      for (Index k = begin[2]; k < end[2]; ++k) {
        const Index at[3] = {i, j, k};
        Index position = 0;
#pragma unroll
        for (int d = 0; d < 3; ++d) {
          position = position * s.window[d] + in.at[d] + s.padding[d] -
                     at[d] * s.strides[d];
        }
        const Index out =
            ((in.batch * s.output[0] + i) * s.output[1] + j) * s.output[2] + k;
        const uint8_t* group =
            positions + (int64_t{out} * groups + channel / kGroup) * bits;
        uint32_t stored = 0;
        for (int b = 0; b < bits; ++b) {
          stored |= (group[b] >> (channel % kGroup) & 1u) << b;
        }
        if (stored == static_cast<uint32_t>(position)) {
          sum = RoundElement<kType>(
              ToFloat<kType>(sum) +
              ToFloat<kType>(dy[out * s.channels + channel]));
        }
      }
    }
  }
  dx[unit] = sum;
}

int PositionBits(const PoolShape& s) {
  const int64_t size = s.window[0] * s.window[1] * s.window[2];
  int bits = 0;
  while ((int64_t{1} << bits) < size) ++bits;
  return bits;
}

int64_t Pixels(const PoolShape& s, const int64_t dims[3]) {
  return s.batch * dims[0] * dims[1] * dims[2];
}

bool IndicesAreSmall(const PoolShape& s) {
  const int64_t channels = (s.channels + kGroup - 1) / kGroup * kGroup;
  return Pixels(s, s.input) * channels <= kSmallIndices &&
         Pixels(s, s.output) * channels <= kSmallIndices;
}

template <DType kType, typename Index>
int Positions(void* stream, const PoolShape& s, const void* x,
              uint8_t* positions) {
  const int64_t units =
      Pixels(s, s.output) * ((s.channels + kGroup - 1) / kGroup) * kGroup;
  return Launch(stream, CeilDivide(units, kThreads), kThreads,
                &PositionsKernel<kType, Index>, Shape<Index>(s),
                static_cast<const Storage<kType>*>(x), PositionBits(s), units,
                positions);
}

template <DType kType, typename Index>
int Gradient(void* stream, const PoolShape& s, const uint8_t* positions,
             const void* dy, void* dx) {
  const int64_t units = Pixels(s, s.input) * s.channels;
  return Launch(stream, CeilDivide(units, kThreads), kThreads,
                &PoolGradientKernel<kType, Index>, Shape<Index>(s), positions,
                PositionBits(s), static_cast<const Storage<kType>*>(dy), units,
                static_cast<Storage<kType>*>(dx));
}

template <DType kType>
int PositionsOfType(void* stream, const PoolShape& s, const void* x,
                    uint8_t* positions) {
  return IndicesAreSmall(s)
             ? Positions<kType, int32_t>(stream, s, x, positions)
             : Positions<kType, int64_t>(stream, s, x, positions);
}

template <DType kType>
int GradientOfType(void* stream, const PoolShape& s, const uint8_t* positions,
                   const void* dy, void* dx) {
  return IndicesAreSmall(s)
             ? Gradient<kType, int32_t>(stream, s, positions, dy, dx)
             : Gradient<kType, int64_t>(stream, s, positions, dy, dx);
}

}  // namespace

int LaunchPackPoolPositions(void* stream, DType dtype, const PoolShape& shape,
                            const void* x, uint8_t* positions) {
  if (Pixels(shape, shape.output) * shape.channels == 0) return 0;
  if (PositionBits(shape) > kMostPositionBits) return cudaErrorInvalidValue;
  switch (dtype) {
    case DType::kFloat32:
      return PositionsOfType<DType::kFloat32>(stream, shape, x, positions);
    case DType::kFloat16:
      return PositionsOfType<DType::kFloat16>(stream, shape, x, positions);
    default:
      return PositionsOfType<DType::kBFloat16>(stream, shape, x, positions);
  }
}

int LaunchPoolGradient(void* stream, DType dtype, const PoolShape& shape,
                       const uint8_t* positions, const void* dy, void* dx) {
  if (Pixels(shape, shape.input) * shape.channels == 0) return 0;
  if (PositionBits(shape) > kMostPositionBits) return cudaErrorInvalidValue;
  switch (dtype) {
    case DType::kFloat32:
      return GradientOfType<DType::kFloat32>(stream, shape, positions, dy, dx);
    case DType::kFloat16:
      return GradientOfType<DType::kFloat16>(stream, shape, positions, dy, dx);
    default:
      return GradientOfType<DType::kBFloat16>(stream, shape, positions, dy, dx);
  }
}

}  // namespace cuda
}  // namespace comet

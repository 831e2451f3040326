// SPDX-License-Identifier: Apache-2.0
// Max-pooling's backward pass from the position of each window's maximum,
// instead of from the input and the output.
//
// Tensors are channels-last with one to three spatial dimensions. A position is
// the row-major index within the window, of `PositionBits()` bits. The channels
// of an output pixel are taken in groups of eight, the last one padded; a group
// is stored as one byte for each bit of the position, low bit first, whose bit
// k belongs to the group's channel k.
#ifndef COMET_CPU_POOLING_H_
#define COMET_CPU_POOLING_H_

#include <array>
#include <cstdint>

#include "custom_ops/cpu/codec.h"
#include "custom_ops/cpu/element.h"

namespace comet {

// Always three spatial dimensions; those that are missing come first, with
// size 1.
struct PoolGeometry {
  using Dims = std::array<int64_t, 3>;

  int64_t batch = 0;
  int64_t channels = 0;
  Dims input = {1, 1, 1};
  Dims output = {1, 1, 1};
  Dims window = {1, 1, 1};
  Dims strides = {1, 1, 1};
  // What "SAME" padding puts before the first element.
  Dims padding = {0, 0, 0};

  int64_t WindowSize() const { return window[0] * window[1] * window[2]; }
  int PositionBits() const {
    int bits = 0;
    while ((int64_t{1} << bits) < WindowSize()) ++bits;
    return bits;
  }
  int64_t OutputPixels() const {
    return batch * output[0] * output[1] * output[2];
  }
  int64_t PixelBytes() const { return (channels + 7) / 8 * PositionBits(); }
  int64_t PositionBytes() const { return OutputPixels() * PixelBytes(); }
};

// Largest window, so that a position fits 16 bits.
constexpr int64_t kMaxWindowSize = 1 << 16;

// Finds where the maximum of each window is; the first one if there are
// several, as in TensorFlow's own gradient. A NaN counts only in first place.
template <typename T>
void PackPoolPositions(const PoolGeometry& geometry, const T* x,
                       const ParallelFor& parallel_for, uint8_t* positions);

// Adds each output's gradient to the input element that was its maximum. Sums
// run over the outputs in order and are rounded to T after each addition, as in
// TensorFlow's own gradient. Every element of dx is written, once.
template <typename T>
void PoolGradient(const PoolGeometry& geometry, const uint8_t* positions,
                  const T* dy, const ParallelFor& parallel_for, T* dx);

}  // namespace comet

#endif  // COMET_CPU_POOLING_H_

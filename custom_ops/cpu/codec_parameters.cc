// SPDX-License-Identifier: Apache-2.0
// What an encoder is asked for: bounds from ranges, rows for shapes, room.
#include <limits>

#include "custom_ops/codec/quantise.h"
#include "custom_ops/cpu/codec.h"

namespace comet {

float RelativeBound(float fraction, float range) {
  const double bound =
      static_cast<double>(fraction) * static_cast<double>(range);
  // Also takes a NaN fraction to a NaN bound, which Encode refuses.
  if (bound < kSmallestNormal) return kSmallestNormal;
  if (bound > std::numeric_limits<float>::max()) {
    return std::numeric_limits<float>::max();
  }
  // Rounded down: the bound must not pass the fraction.
  const float rounded = static_cast<float>(bound);
  return static_cast<double>(rounded) > bound
             ? FloatFromBits(FloatBits(rounded) - 1)
             : rounded;
}

int64_t RowLength(const int64_t* dims, int rank) {
  constexpr int64_t kMinRows = 32;
  int64_t n = 1;
  for (int k = 0; k < rank; ++k) n *= dims[k];
  if (rank == 0 || n == 0) return kLanes;
  // Lanes in use, in percent; a multiple of 32 has 100.
  const auto use = [](int64_t length) {
    return 100 * length / (kLanes * ((length + kLanes - 1) / kLanes));
  };
  int64_t best = 0;
  int64_t length = 1;
  for (int k = rank - 1; k >= 0; --k) {
    length *= dims[k];
    if (n / length < kMinRows) break;
    if (best == 0 || use(length) > use(best)) best = length;
    if (length >= kLanes && use(best) >= 85) return best;
  }
  const int64_t unit = dims[rank - 1];
  for (int64_t m = 2; m <= kLanes && n / (m * unit) >= kMinRows; ++m) {
    if (m * unit >= kLanes / 2 && use(m * unit) >= 85) return m * unit;
  }
  return kLanes;
}

int64_t MaxStreamBytes(DType dtype, int64_t n, int64_t row_length) {
  const Geometry g = MakeGeometry(n, row_length);
  return TilesStart(g.tiles) + kTileBlocks * g.tiles + n * ElementBytes(dtype) +
         kPaddingBytes;
}

}  // namespace comet

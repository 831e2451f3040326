// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/cpu/channels.h"

#include <algorithm>
#include <vector>

namespace comet {
namespace {

// Rows that are added up in single precision before they go to the double.
constexpr int64_t kRowsInFloat = 32;
// Elements of one partial sum at least. The partition depends on the shape
// alone, so that the order of additions does not depend on the threads.
constexpr int64_t kPartElements = 1 << 16;
constexpr int64_t kMostPartialBytes = 1 << 20;

struct Partition {
  int64_t parts;
  int64_t rows;  // of a part
};

Partition MakePartition(int64_t rows, int64_t channels) {
  const int64_t bytes = 2 * channels * static_cast<int64_t>(sizeof(double));
  const int64_t most = std::max<int64_t>(8, kMostPartialBytes / bytes);
  const int64_t least = std::max<int64_t>(1, kPartElements / channels);
  const int64_t per_part = std::max(least, (rows + most - 1) / most);
  return {(rows + per_part - 1) / per_part, per_part};
}

// Adds to `totals`: first the sums of all channels, then their products.
void AddRows(const float* dy, const float* x, int64_t rows, int64_t channels,
             float* sums, float* products, double* totals) {
  for (int64_t row = 0; row < rows; row += kRowsInFloat) {
    const int64_t end = std::min(rows, row + kRowsInFloat);
    std::fill(sums, sums + channels, 0.0f);
    std::fill(products, products + channels, 0.0f);
    for (int64_t r = row; r < end; ++r) {
      const float* dy_row = dy + r * channels;
      const float* x_row = x + r * channels;
      for (int64_t c = 0; c < channels; ++c) {
        sums[c] += dy_row[c];
        products[c] += dy_row[c] * x_row[c];
      }
    }
    for (int64_t c = 0; c < channels; ++c) {
      totals[c] += static_cast<double>(sums[c]);
      totals[channels + c] += static_cast<double>(products[c]);
    }
  }
}

}  // namespace

void ChannelSums(const float* dy, const float* x, int64_t rows,
                 int64_t channels, const ParallelFor& parallel_for, float* sums,
                 float* products) {
  if (channels == 0) return;
  const Partition partition = MakePartition(rows, channels);
  std::vector<double> partials(
      static_cast<size_t>(partition.parts * 2 * channels));
  parallel_for(partition.parts, partition.rows * channels,
               [&](int64_t begin, int64_t end) {
                 std::vector<float> scratch(static_cast<size_t>(2 * channels));
                 for (int64_t p = begin; p < end; ++p) {
                   const int64_t first = p * partition.rows;
                   AddRows(dy + first * channels, x + first * channels,
                           std::min(partition.rows, rows - first), channels,
                           scratch.data(), scratch.data() + channels,
                           partials.data() + p * 2 * channels);
                 }
               });
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0;
    double product = 0;
    for (int64_t p = 0; p < partition.parts; ++p) {
      sum += partials[static_cast<size_t>(p * 2 * channels + c)];
      product += partials[static_cast<size_t>((p * 2 + 1) * channels + c)];
    }
    sums[c] = static_cast<float>(sum);
    products[c] = static_cast<float>(product);
  }
}

void ChannelLine(const ChannelLineInput& first, const ChannelLineInput& second,
                 const float* offset, int64_t rows, int64_t channels,
                 const ParallelFor& parallel_for, float* y) {
  if (channels == 0) return;
  const float* slope = first.slope;
  const float* other = second.slope;
  parallel_for(rows, channels, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * channels;
      const float* x = first.x + at;
      float* to = y + at;
      if (second.x == nullptr) {
        for (int64_t c = 0; c < channels; ++c) {
          to[c] = x[c] * slope[c] + offset[c];
        }
      } else {
        const float* z = second.x + at;
        for (int64_t c = 0; c < channels; ++c) {
          to[c] = x[c] * slope[c] + (z[c] * other[c] + offset[c]);
        }
      }
    }
  });
}

}  // namespace comet

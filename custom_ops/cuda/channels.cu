// SPDX-License-Identifier: Apache-2.0
// What a batch normalisation and its gradient do with each channel of a
// channels-last tensor; every tensor is read once. For the sums a lane has a
// channel, so that a warp reads 128 bytes at a time; they are in double
// precision and in an order that depends on the shape alone.

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/cuda/launch.h"
#include "custom_ops/cuda/launchers.h"
#include "custom_ops/cuda/tile.h"
#include "custom_ops/cuda/warp.h"

namespace comet {
namespace cuda {
namespace {

// Blocks that keep any device busy.
constexpr int64_t kBlocks = 2048;
constexpr int64_t kLeastRows = 64;  // of a part

struct Partition {
  int64_t groups;  // of 32 channels
  int64_t parts;
  int64_t rows;  // of a part
};

Partition MakePartition(int64_t rows, int64_t channels) {
  const int64_t groups = CeilDivide(channels, kLanes);
  const int64_t most = groups < kBlocks ? kBlocks / groups : 1;
  int64_t per_part = CeilDivide(rows, most);
  if (per_part < kLeastRows) per_part = kLeastRows;
  return {groups, rows == 0 ? 1 : CeilDivide(rows, per_part), per_part};
}

__global__ void __launch_bounds__(kThreads)
    PartialChannelSumsKernel(const float* dy, const float* x, int64_t rows,
                             int64_t channels, int64_t groups,
                             int64_t rows_of_part, double* partials) {
  struct Warps {
    double sums[kWarpsPerBlock][kLanes];
    double products[kWarpsPerBlock][kLanes];
  };
  COMET_SHARED(Warps, shared);
  const int lane = LaneIndex();
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t part = blockIdx.x / groups;
  const int64_t channel = (blockIdx.x % groups) * kLanes + lane;
  const int64_t first = part * rows_of_part;
  const int64_t end = first + rows_of_part < rows ? first + rows_of_part : rows;
  double sum = 0;
  double product = 0;
  if (channel < channels) {
#pragma unroll 4
    for (int64_t row = first + warp; row < end; row += kWarpsPerBlock) {
      const int64_t i = row * channels + channel;
      const double gradient = dy[i];
      sum += gradient;
      product += gradient * static_cast<double>(x[i]);
    }
  }
  shared.sums[warp][lane] = sum;
  shared.products[warp][lane] = product;
  __syncthreads();
  if (warp != 0 || channel >= channels) return;
  for (int w = 1; w < kWarpsPerBlock; ++w) {
    sum += shared.sums[w][lane];
    product += shared.products[w][lane];
  }
  partials[(2 * part) * channels + channel] = sum;
  partials[(2 * part + 1) * channels + channel] = product;
}

__global__ void __launch_bounds__(kThreads)
    TotalChannelSumsKernel(const double* partials, int64_t parts,
                           int64_t channels, float* sums, float* products) {
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (channel >= channels) return;
  double sum = 0;
  double product = 0;
  for (int64_t part = 0; part < parts; ++part) {
    sum += partials[(2 * part) * channels + channel];
    product += partials[(2 * part + 1) * channels + channel];
  }
  sums[channel] = static_cast<float>(sum);
  products[channel] = static_cast<float>(product);
}

// A thread has a channel and goes down the rows, so that it reads what belongs
// to the channel once.
__global__ void __launch_bounds__(kThreads)
    ChannelLineKernel(const float* x, const float* slope, const float* z,
                      const float* other, const float* offset, int64_t rows,
                      int64_t channels, int64_t rows_at_once, float* y) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread >= rows_at_once * channels) return;
  const int64_t channel = thread % channels;
  const float a = slope[channel];
  const float b = z == nullptr ? 0.0f : other[channel];
  const float c = offset[channel];
#pragma unroll 4
  for (int64_t row = thread / channels; row < rows; row += rows_at_once) {
    const int64_t i = row * channels + channel;
    y[i] = x[i] * a + (z == nullptr ? c : z[i] * b + c);
  }
}

}  // namespace

size_t ChannelSumsWorkspaceBytes(int64_t rows, int64_t channels) {
  if (channels == 0) return 0;
  const Partition partition = MakePartition(rows, channels);
  return static_cast<size_t>(2 * partition.parts * channels) * sizeof(double);
}

int LaunchChannelSums(void* stream, const float* dy, const float* x,
                      int64_t rows, int64_t channels, void* workspace,
                      float* sums, float* products) {
  if (channels == 0) return 0;
  const Partition partition = MakePartition(rows, channels);
  auto* partials = static_cast<double*>(workspace);
  const int error = Launch(stream, partition.parts * partition.groups, kThreads,
                           &PartialChannelSumsKernel, dy, x, rows, channels,
                           partition.groups, partition.rows, partials);
  if (error != 0) return error;
  return Launch(stream, CeilDivide(channels, kThreads), kThreads,
                &TotalChannelSumsKernel, partials, partition.parts, channels,
                sums, products);
}

int LaunchChannelLine(void* stream, const float* x, const float* slope,
                      const float* z, const float* other, const float* offset,
                      int64_t rows, int64_t channels, float* y) {
  if (rows == 0 || channels == 0) return 0;
  constexpr int64_t kRowsOfThread = 8;
  const int64_t rows_at_once = CeilDivide(rows, kRowsOfThread);
  return Launch(stream, CeilDivide(rows_at_once * channels, kThreads), kThreads,
                &ChannelLineKernel, x, slope, z, other, offset, rows, channels,
                rows_at_once, y);
}

}  // namespace cuda
}  // namespace comet

// SPDX-License-Identifier: Apache-2.0
// What decoding needs of a stream's header, checked.
#ifndef COMET_CUDA_STREAM_HEADER_H_
#define COMET_CUDA_STREAM_HEADER_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/codec/stream.h"
#include "custom_ops/cuda/bound.h"

namespace comet {
namespace cuda {

// What the kernels need of a stream's header.
struct StreamHeader {
  bool valid;
  Geometry geometry;
  Rounding rounding;
  float step;
  uint64_t seed;
  int64_t tiles_start;
  uint64_t checksum;
};

__device__ inline StreamHeader ReadHeader(const uint8_t* data, int64_t bytes,
                                          DType dtype, int64_t n) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  StreamHeader h = {};
  if (bytes < kHeaderBytes + kPaddingBytes) return h;
  constexpr uint64_t kMagic = 'C' | 'M' << 8 | 'E' << 16 | 'T' << 24;
  const uint64_t fixed = kMagic | uint64_t{kFormatVersion} << 32 |
                         static_cast<uint64_t>(dtype) << 40;
  const uint64_t rounding = (words[0] ^ fixed) >> 48;
  const auto row_length = static_cast<int64_t>(words[2]);
  const float bound = FloatFromBits(static_cast<uint32_t>(words[3]));
  h.step = FloatFromBits(static_cast<uint32_t>(words[3] >> 32));
  h.seed = words[4];
  h.checksum = words[7];
  if ((words[0] ^ fixed) << 16 != 0 || rounding > 1 ||
      words[1] != static_cast<uint64_t>(n) || row_length < 1 ||
      row_length > kMaxElements || words[5] > static_cast<uint64_t>(n) ||
      words[6] != static_cast<uint64_t>(bytes) || !ValidBound(bound)) {
    return h;
  }
  h.rounding = static_cast<Rounding>(rounding);
  if (FloatBits(h.step) != FloatBits(StepFor(dtype, h.rounding, bound))) {
    return h;
  }
  h.geometry = MakeGeometry(n, row_length);
  h.tiles_start = TilesStart(h.geometry.tiles);
  h.valid = h.tiles_start <= bytes - kPaddingBytes;
  return h;
}

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_STREAM_HEADER_H_

// SPDX-License-Identifier: Apache-2.0
// What becomes of the codes of a stream: values, or a gradient.
#ifndef COMET_CUDA_READ_POLICIES_H_
#define COMET_CUDA_READ_POLICIES_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/checksum.h"
#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cuda/decode.h"
#include "custom_ops/cuda/element.h"
#include "custom_ops/cuda/stream_header.h"
#include "custom_ops/cuda/tile.h"

namespace comet {
namespace cuda {

// Restores the values.
template <DType kType>
class RestoreValues {
 public:
  __device__ RestoreValues(const StreamHeader& header, int64_t tile, int lane,
                           Storage<kType>* out)
      : step_(header.step),
        dither_(header.rounding == Rounding::kDither),
        keys_(dither_ ? Mix(header.seed) : 0, tile, lane),
        out_(out) {}

  __device__ void Codes(const Column& column, int block,
                        const LaneValues& lane) {
    Storage<kType> elements[kBlockRows];
    if (dither_) {
      int32_t offsets[kBlockRows];
      keys_.Offsets(block, offsets);
      Restore<Rounding::kDither>(lane, offsets, elements);
    } else {
      constexpr int32_t kNone[kBlockRows] = {};
      Restore<Rounding::kNearest>(lane, kNone, elements);
    }
    StoreBlock(out_, column, block, elements);
  }

  __device__ void Raw(const Column& column, int block,
                      const Storage<kType> elements[kBlockRows]) {
    StoreBlock(out_, column, block, elements);
  }

 private:
  template <Rounding kRounding>
  __device__ void Restore(const LaneValues& lane,
                          const int32_t offsets[kBlockRows],
                          Storage<kType> elements[kBlockRows]) const {
    if (lane.steps) {
#pragma unroll
      for (int r = 0; r < kBlockRows; ++r) {
        elements[r] = FromFloat<kType>(
            RestoreStep(lane.values[r], step_, offsets[r], kRounding),
            kRounding);
      }
      return;
    }
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) {
      const int32_t code = lane.values[r];
      const Storage<kType> element = FromFloat<kType>(
          RestoreStep(StepFromCode(code), step_, offsets[r], kRounding),
          kRounding);
      elements[r] = code == 0 ? Storage<kType>{0} : element;
    }
  }

  float step_;
  bool dither_;
  DitherKeys keys_;
  Storage<kType>* out_;
};

// Lets a gradient through where the values are positive.
template <DType kType>
class GateGradient {
 public:
  __device__ GateGradient(bool any_nonzero, float slope,
                          const Storage<kType>* dy, Storage<kType>* dx)
      : any_nonzero_(any_nonzero), slope_(slope), dy_(dy), dx_(dx) {}

  __device__ void Codes(const Column& column, int block,
                        const LaneValues& lane) {
    uint32_t positive = 0;
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) {
      const int32_t value = lane.values[r];
      // A step is positive from 0 on, and never that of a zero.
      const bool is = any_nonzero_ ? lane.steps || value != 0
                                   : value > (lane.steps ? -1 : 0);
      positive |= (is ? 1u : 0u) << r;
    }
    Gate(column, block, positive);
  }

  __device__ void Raw(const Column& column, int block,
                      const Storage<kType> elements[kBlockRows]) {
    uint32_t positive = 0;
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) {
      const float x = ToFloat<kType>(elements[r]);
      positive |= (x > 0.0f && !IsExactZero(x) ? 1u : 0u) << r;
    }
    Gate(column, block, positive);
  }

 private:
  __device__ void Gate(const Column& column, int block, uint32_t positive) {
    Storage<kType> values[kBlockRows];
    LoadBlock(dy_, column, block, values);
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) {
      if ((positive >> r & 1u) == 0) {
        values[r] = ScaleElement<kType>(values[r], slope_);
      }
    }
    StoreBlock(dx_, column, block, values);
  }

  bool any_nonzero_;
  float slope_;
  const Storage<kType>* dy_;
  Storage<kType>* dx_;
};

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_READ_POLICIES_H_

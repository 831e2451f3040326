// SPDX-License-Identifier: Apache-2.0
// A warp's view of one block on the way back: from the bytes of any kind to the
// codes of the lane's 8 rows. Nothing is read that was not checked to be there.
#ifndef COMET_CUDA_DECODE_H_
#define COMET_CUDA_DECODE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cuda/tile.h"
#include "custom_ops/cuda/warp.h"
#include "custom_ops/cuda/window.h"

namespace comet {
namespace cuda {

// All functions return false, in all lanes, for bytes that mean nothing.

__device__ inline bool ReadPlanes(Window* window, int index, int lane,
                                  uint32_t values[kBlockRows]) {
  int planes;
  int full;
  if (!PlanesFromIndex(index, &planes, &full)) return false;
  if (full < 0) {
    if (!window->Has(1)) return false;
    full = static_cast<int>(window->Byte(0));
    window->Skip(1);
    if (full > planes) return false;
  }
  const int flags_at = kLanes * full;
  const int masks_at = flags_at + (planes - full + 1) / 2;
  if (!window->Has(masks_at)) return false;

  // Lane p reads the mask of plane p.
  uint32_t flags = 0;
  if (lane >= full && lane < planes) {
    const int k = lane - full;
    flags = window->Byte(flags_at + k / 2) >> (k % 2 * 4) & 15u;
  }
  const uint32_t mask_bytes = static_cast<uint32_t>(__popc(flags));
  const int bytes_at =
      masks_at + static_cast<int>(__reduce_add_sync(kAllLanes, mask_bytes));
  if (!window->Has(bytes_at)) return false;
  uint32_t mask = 0;
  int at = masks_at + static_cast<int>(ExclusiveSum(mask_bytes, lane, planes));
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if ((flags >> k & 1u) != 0) mask |= window->Byte(at++) << (8 * k);
  }
  const int end =
      bytes_at + static_cast<int>(__reduce_add_sync(
                     kAllLanes, static_cast<unsigned>(__popc(mask))));
  if (!window->Has(end)) return false;

#pragma unroll
  for (int r = 0; r < kBlockRows; ++r) values[r] = 0;
  int next = bytes_at;  // where the next suppressed plane's bytes are
  for (int first = 0; first < planes; first += 8) {
    Bytes8 own = {0, 0};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int p = first + k;
      if (p >= planes) break;
      if (p < full) {
        SetByte(&own, k, window->Byte(kLanes * p + lane));
        continue;
      }
      const uint32_t lanes = __shfl_sync(kAllLanes, mask, p);
      if ((lanes >> lane & 1u) != 0) {
        SetByte(&own, k, window->Byte(next + __popc(lanes & LanesBelow(lane))));
      }
      next += __popc(lanes);
    }
    AddPlanes(own, first / 8, values);
  }
  window->Skip(end);
  return true;
}

__device__ inline bool ReadBitmap(Window* window, bool full, int lane,
                                  uint32_t* bitmap) {
  if (full) {
    if (!window->Has(kLanes)) return false;
    *bitmap = window->Byte(lane);
    window->Skip(kLanes);
    return true;
  }
  if (!window->Has(1)) return false;
  const uint32_t flags = window->Byte(0) & 15u;
  const int bytes_at = 1 + __popc(flags);
  if (!window->Has(bytes_at)) return false;
  uint32_t mask = 0;
  int at = 1;
  for (int k = 0; k < 4; ++k) {
    if ((flags >> k & 1u) != 0) mask |= window->Byte(at++) << (8 * k);
  }
  const int end = bytes_at + __popc(mask);
  if (!window->Has(end)) return false;
  *bitmap = (mask >> lane & 1u) != 0
                ? window->Byte(bytes_at + __popc(mask & LanesBelow(lane)))
                : 0;
  window->Skip(end);
  return true;
}

__device__ inline bool ReadSparse(Window* window, uint8_t header, int lane,
                                  int32_t codes[kBlockRows]) {
  uint32_t bitmap;
  if (!ReadBitmap(window, (header & kSparseFullBitmap) != 0, lane, &bitmap)) {
    return false;
  }
  const int magnitude_planes = header >> 2 & 15;
  const int planes = magnitude_planes + ((header & kSparseSigns) != 0 ? 1 : 0);
  const uint32_t own = static_cast<uint32_t>(__popc(bitmap));
  const uint32_t before = ExclusiveSum(own, lane, kLanes);
  const int count =
      static_cast<int>(__shfl_sync(kAllLanes, before + own, kLanes - 1));
  const int bytes = (count * planes + 7) / 8;
  if (!window->Has(bytes)) return false;
  uint32_t values[kBlockRows] = {};
  const ByteCompressor compressor(bitmap);
  const uint32_t kept = (1u << own) - 1u;
  for (int first = 0; first < planes; first += 8) {
    Bytes8 packed = {0, 0};
    const int last = planes < first + 8 ? planes : first + 8;
    for (int p = first; p < last; ++p) {
      if (own == 0) continue;
      SetByte(&packed, p - first,
              window->Bits(p * count + static_cast<int>(before)) & kept);
    }
    AddPlanes({compressor.Expand(packed.low), compressor.Expand(packed.high)},
              first / 8, values);
  }
  window->Skip(bytes);
#pragma unroll
  for (int r = 0; r < kBlockRows; ++r) {
    const bool negative = (values[r] >> magnitude_planes & 1u) != 0;
    const auto q =
        static_cast<int32_t>(values[r] & ((1u << magnitude_planes) - 1u));
    const int32_t code = CodeFromStep(negative ? ~q : q);
    codes[r] = (bitmap >> r & 1u) != 0 ? code : 0;
  }
  return true;
}

// What one lane has of a block that was read.
struct LaneValues {
  int32_t values[kBlockRows];
  bool steps;  // the values are steps of elements that are all no zeros, else
               // they are codes

  __device__ int32_t Last() const {
    const int32_t last = values[kBlockRows - 1];
    return steps ? CodeFromStep(last) : last;
  }
};

// Reads the payload of a block of any kind but ZERO and RAW. `above` is the
// code of the row above.
__device__ inline bool ReadCodes(Window* window, uint8_t header, int32_t above,
                                 int lane, LaneValues* block) {
  const uint8_t kind = header & kKindMask;
  int32_t* codes = block->values;
  block->steps = kind == kDeltaSteps;
  if (kind == kSparse) return ReadSparse(window, header, lane, codes);
  uint32_t values[kBlockRows];
  if (!ReadPlanes(window, header & ~kKindMask, lane, values)) return false;
  if (kind == kDirectCodes) {
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) codes[r] = UnZigZag(values[r]);
    return true;
  }
  int32_t previous = block->steps ? StepFromCode(above) : above;
#pragma unroll
  for (int r = 0; r < kBlockRows; ++r) {
    previous = WrapAdd(previous, UnZigZag(values[r]));
    codes[r] = previous;
  }
  return true;
}

// Reads the lane's elements of a RAW block; absent ones become zero.
template <DType kType>
__device__ inline bool ReadRaw(Window* window, uint32_t present, int lane,
                               Storage<kType> elements[kBlockRows]) {
  constexpr int kBytes = static_cast<int>(sizeof(Storage<kType>));
  const int total =
      kBytes * static_cast<int>(__reduce_add_sync(
                   kAllLanes, static_cast<unsigned>(__popc(present))));
  if (!window->Has(total)) return false;
  int at = 0;
#pragma unroll
  for (int r = 0; r < kBlockRows; ++r) {
    const bool here = (present >> r & 1u) != 0;
    elements[r] = here ? static_cast<Storage<kType>>(
                             window->Bits(8 * (at + kBytes * lane)))
                       : Storage<kType>{0};
    at += kBytes * __popc(__ballot_sync(kAllLanes, here));
  }
  window->Skip(total);
  return true;
}

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_DECODE_H_

// SPDX-License-Identifier: Apache-2.0
// The bytes of a block of each kind, from a warp's codes.
#ifndef COMET_CUDA_WRITE_H_
#define COMET_CUDA_WRITE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cuda/encode.h"
#include "custom_ops/cuda/stage.h"
#include "custom_ops/cuda/tile.h"
#include "custom_ops/cuda/warp.h"

namespace comet {
namespace cuda {

// The nonzero mask bytes and then the nonzero bytes of planes `full` and up;
// `mask` as PlaneMasks() gives it.
__device__ inline void WritePlanes(const uint32_t values[kBlockRows],
                                   int planes, int full, int lane,
                                   Stage* stage) {
  const Bytes8 lowest = PlanesOf(values, 0);
  const uint32_t all_masks = PlaneMasks(values, lowest, planes, lane);
  if (planes >= 8) {
    full = CostOfPlanes(all_masks, planes, lane).full;
    if (lane == 0) stage->SetByte(0, static_cast<uint8_t>(full));
    stage->Advance(1);
  }
  const uint32_t mask = lane >= full && lane < planes ? all_masks : 0;
  const uint32_t flags = NonzeroBytes(mask);
  const uint32_t mask_bytes = static_cast<uint32_t>(__popc(flags));

  const int flags_at = kLanes * full;
  const int masks_at = flags_at + (planes - full + 1) / 2;
  const int bytes_at =
      masks_at + static_cast<int>(__reduce_add_sync(kAllLanes, mask_bytes));
  // The lane above the last plane has no flags.
  const uint32_t flags_above = __shfl_down_sync(kAllLanes, flags, 1);
  if (lane >= full && lane < planes && (lane - full) % 2 == 0) {
    stage->SetByte(flags_at + (lane - full) / 2,
                   static_cast<uint8_t>(flags | flags_above << 4));
  }
  int at = masks_at + static_cast<int>(ExclusiveSum(mask_bytes, lane, planes));
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if ((flags >> k & 1u) == 0) continue;
    stage->SetByte(at++, static_cast<uint8_t>(mask >> (8 * k)));
  }
  int next = bytes_at;  // where the next suppressed plane's bytes go
  for (int first = 0; first < planes; first += 8) {
    const Bytes8 bytes = first == 0 ? lowest : PlanesOf(values, first / 8);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int p = first + k;
      if (p >= planes) break;
      const uint32_t byte = ByteOf(bytes, k);
      if (p < full) {
        stage->SetByte(kLanes * p + lane, static_cast<uint8_t>(byte));
        continue;
      }
      const uint32_t lanes = __ballot_sync(kAllLanes, byte != 0);
      if (byte != 0) {
        stage->SetByte(next + __popc(lanes & LanesBelow(lane)),
                       static_cast<uint8_t>(byte));
      }
      next += __popc(lanes);
    }
  }
  stage->Advance(next);
}

__device__ inline void WriteSparse(const LaneCodes& codes, uint8_t header,
                                   int lane, Stage* stage) {
  const uint32_t bitmap = codes.nonzero;
  if ((header & kSparseFullBitmap) != 0) {
    stage->SetByte(lane, static_cast<uint8_t>(bitmap));
    stage->Advance(kLanes);
  } else {
    const uint32_t mask = __ballot_sync(kAllLanes, bitmap != 0);
    const uint32_t flags = NonzeroBytes(mask);
    if (lane == 0) stage->SetByte(0, static_cast<uint8_t>(flags));
    if (lane < 4 && (flags >> lane & 1u) != 0) {
      stage->SetByte(1 + __popc(flags & LanesBelow(lane)),
                     static_cast<uint8_t>(mask >> (8 * lane)));
    }
    if (bitmap != 0) {
      stage->SetByte(1 + __popc(flags) + __popc(mask & LanesBelow(lane)),
                     static_cast<uint8_t>(bitmap));
    }
    stage->Advance(1 + __popc(flags) + __popc(mask));
  }

  const bool signs = (header & kSparseSigns) != 0;
  const int magnitude_planes = header >> 2 & 15;
  const int planes = magnitude_planes + (signs ? 1 : 0);
  uint32_t values[kBlockRows];
#pragma unroll
  for (int r = 0; r < kBlockRows; ++r) {
    const int32_t s = StepFromCode(codes.codes[r]);
    const uint32_t sign = signs && s < 0 ? 1u : 0u;
    values[r] = static_cast<uint32_t>(s ^ s >> 31) | sign << magnitude_planes;
  }
  const uint32_t own = static_cast<uint32_t>(__popc(bitmap));
  const uint32_t before = ExclusiveSum(own, lane, kLanes);
  const int count =
      static_cast<int>(__shfl_sync(kAllLanes, before + own, kLanes - 1));
  const int bytes = (count * planes + 7) / 8;
  stage->ClearBytes(bytes, lane);
  const ByteCompressor compressor(bitmap);
  for (int first = 0; first < planes; first += 8) {
    const Bytes8 all = PlanesOf(values, first / 8);
    const Bytes8 kept = {compressor.Compress(all.low),
                         compressor.Compress(all.high)};
    const int end = planes < first + 8 ? planes : first + 8;
    for (int p = first; p < end; ++p) {
      stage->OrBits(p * count + static_cast<int>(before),
                    ByteOf(kept, p - first));
    }
  }
  stage->Advance(bytes);
}

template <DType kType>
__device__ inline void WriteRaw(const Storage<kType>* elements,
                                uint32_t present, int lane, Stage* stage) {
  constexpr int kBytes = static_cast<int>(sizeof(Storage<kType>));
  int at = 0;
#pragma unroll
  for (int r = 0; r < kBlockRows; ++r) {
    const bool here = (present >> r & 1u) != 0;
    if (here) {
      for (int k = 0; k < kBytes; ++k) {
        stage->SetByte(at + kBytes * lane + k,
                       static_cast<uint8_t>(elements[r] >> (8 * k)));
      }
    }
    at += kBytes * __popc(__ballot_sync(kAllLanes, here));
  }
  stage->Advance(at);
}

// Writes the payload of a block of any kind but ZERO and RAW.
__device__ inline void WriteCodes(const LaneCodes& codes, uint8_t header,
                                  int32_t above, bool whole, int lane,
                                  Stage* stage) {
  const uint8_t kind = header & kKindMask;
  if (kind == kSparse) {
    WriteSparse(codes, header, lane, stage);
    return;
  }
  uint32_t residuals[kBlockRows];
  if (kind == kDirectCodes) {
    DirectResiduals(codes, residuals);
  } else {
    DeltaResiduals(codes, above, kind == kDeltaSteps, whole, residuals);
  }
  int planes;
  int full;
  PlanesFromIndex(header & ~kKindMask, &planes, &full);
  WritePlanes(residuals, planes, full, lane, stage);
}

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_WRITE_H_

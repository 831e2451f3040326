// SPDX-License-Identifier: Apache-2.0
// A warp's view of one block on the way in: its codes, and the smallest kind of
// block that holds them.
#ifndef COMET_CUDA_ENCODE_H_
#define COMET_CUDA_ENCODE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/cuda/quick.h"
#include "custom_ops/cuda/tile.h"
#include "custom_ops/cuda/warp.h"

namespace comet {
namespace cuda {

// What one lane holds of a block: the codes of its 8 rows.
struct LaneCodes {
  int32_t codes[kBlockRows];
  uint32_t magnitudes;  // OR of q over the rows
  int32_t all;          // OR of the codes
  uint32_t nonzero;     // bit r: row r is present and no exact zero
  uint32_t present;     // bit r: row r is present
  bool accepted;        // every present element is within the bound

  __device__ explicit LaneCodes(uint32_t present_rows)
      : magnitudes(0),
        all(0),
        nonzero(0),
        present(present_rows),
        accepted(true) {}

  __device__ void Set(int row, int32_t code, uint32_t magnitude, bool zero) {
    codes[row] = zero ? 0 : code;
    all |= codes[row];
    magnitudes |= magnitude;
    if (!zero) nonzero |= 1u << row;
  }
};

// As the format defines it. An absent element was read as zero, which is code 0
// and accepted.
template <DType kType, Rounding kRounding>
__device__ __noinline__ LaneCodes
QuantiseExactly(const Storage<kType> elements[kBlockRows], uint32_t present,
                const int32_t offsets[kBlockRows], const Quantiser& quantiser) {
  LaneCodes lane(present);
#pragma unroll
  for (int r = 0; r < kBlockRows; ++r) {
    const QuantisedElement e = QuantiseElement<kType, kRounding>(
        ToFloat<kType>(elements[r]), offsets[r], quantiser);
    const int32_t s = StepFromCode(e.code);
    lane.Set(r, e.code, static_cast<uint32_t>(s ^ s >> 31), e.code == 0);
    lane.accepted &= e.accepted;
  }
  return lane;
}

// The codes of a block. Where the usual case has an equal but cheaper way (see
// quick.h) that is taken first; the exact one decides what it does not accept.
// Without `kVerify` the block is known to be within its bound.
template <DType kType, Rounding kRounding, bool kVerify>
__device__ inline LaneCodes QuantiseBlock(
    const Storage<kType> elements[kBlockRows], uint32_t present,
    const int32_t offsets[kBlockRows], const Quantiser& quantiser, bool quick) {
  if (QuickQuantiser<kType, kRounding>::kExists && quick) {
    LaneCodes lane(present);
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) {
      const QuickCode e =
          QuickQuantiser<kType, kRounding>::template Quantise<kVerify>(
              ToFloat<kType>(elements[r]), offsets[r], quantiser);
      lane.Set(r, e.code, e.magnitude, e.zero);
      lane.accepted &= e.accepted;
    }
    if (__all_sync(kAllLanes, lane.accepted)) return lane;
  }
  return QuantiseExactly<kType, kRounding>(elements, present, offsets,
                                           quantiser);
}

// The residuals of DELTA_C, or of DELTA_S if `steps`; `above` is the code of
// the row above the block. `whole`: nothing of the block is absent in any lane.
__device__ inline void DeltaResiduals(const LaneCodes& lane, int32_t above,
                                      bool steps, bool whole,
                                      uint32_t residuals[kBlockRows]) {
  if (steps) {
    int32_t previous = StepFromCode(above);
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) {
      const int32_t s = StepFromCode(lane.codes[r]);
      residuals[r] = ZigZag(WrapSub(s, previous));
      previous = s;
    }
  } else {
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) {
      residuals[r] =
          ZigZag(WrapSub(lane.codes[r], r == 0 ? above : lane.codes[r - 1]));
    }
  }
  if (whole) return;
#pragma unroll
  for (int r = 0; r < kBlockRows; ++r) {
    if ((lane.present >> r & 1u) == 0) residuals[r] = 0;
  }
}

__device__ inline void DirectResiduals(const LaneCodes& lane,
                                       uint32_t residuals[kBlockRows]) {
#pragma unroll
  for (int r = 0; r < kBlockRows; ++r) {
    residuals[r] = ZigZag(lane.codes[r]);
  }
}

__device__ inline int PlaneCount(const uint32_t values[kBlockRows]) {
  uint32_t all = 0;
#pragma unroll
  for (int r = 0; r < kBlockRows; ++r) all |= values[r];
  return BitLengthOf(__reduce_or_sync(kAllLanes, all));
}

// In lane p the mask of plane p: which lanes' bytes of it are not zero.
// `lowest` are planes 0..7, made once for all who need them.
__device__ inline uint32_t PlaneMasks(const uint32_t values[kBlockRows],
                                      const Bytes8& lowest, int planes,
                                      int lane) {
  uint32_t mine = 0;
  for (int first = 0; first < planes; first += 8) {
    const Bytes8 bytes = first == 0 ? lowest : PlanesOf(values, first / 8);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (first + k >= planes) break;
      const uint32_t mask = __ballot_sync(kAllLanes, ByteOf(bytes, k) != 0);
      if (lane == first + k) mine = mask;
    }
  }
  return mine;
}

struct PlanesCost {
  int bytes;  // of the payload
  int full;   // planes stored in full
};

// The cheapest number of full planes; `mask` as PlaneMasks() gives it.
__device__ inline PlanesCost CostOfPlanes(uint32_t mask, int planes, int lane) {
  const uint32_t own =
      static_cast<uint32_t>(__popc(NonzeroBytes(mask)) + __popc(mask));
  const uint32_t suppressed = SuffixSum(lane < planes ? own : 0, lane, planes);
  // Lane f weighs storing f planes in full. The number of planes is under 32.
  const uint32_t flags = static_cast<uint32_t>(planes - lane + 1) / 2;
  const uint32_t bytes = 32u * static_cast<uint32_t>(lane) + flags + suppressed;
  const uint32_t key = bytes << 5 | static_cast<uint32_t>(lane);
  const uint32_t best =
      __reduce_min_sync(kAllLanes, lane <= planes ? key : ~0u);
  PlanesCost cost;
  cost.full = static_cast<int>(best & 31u);
  cost.bytes = static_cast<int>(best >> 5) + (planes >= 8 ? 1 : 0);
  return cost;
}

__device__ inline PlanesCost BestCost(const uint32_t values[kBlockRows],
                                      int planes, int lane) {
  return CostOfPlanes(PlaneMasks(values, PlanesOf(values, 0), planes, lane),
                      planes, lane);
}

// What SPARSE needs to know of a block; the same in all lanes.
struct SparseShape {
  int magnitude_planes;
  bool signs;
  int count;  // of nonzeros

  __device__ int planes() const { return magnitude_planes + (signs ? 1 : 0); }
  __device__ int bytes() const { return (count * planes() + 7) / 8; }
};

__device__ inline SparseShape ShapeOfSparse(const LaneCodes& lane) {
  SparseShape shape;
  shape.magnitude_planes =
      BitLengthOf(__reduce_or_sync(kAllLanes, lane.magnitudes));
  shape.signs = __any_sync(kAllLanes, lane.all < 0) != 0;
  shape.count = static_cast<int>(__reduce_add_sync(
      kAllLanes, static_cast<unsigned>(__popc(lane.nonzero))));
  return shape;
}

// Bytes of a suppressed bitmap with this mask.
__device__ inline int SuppressedBytes(uint32_t mask) {
  return 1 + __popc(NonzeroBytes(mask)) + __popc(mask);
}

struct BlockChoice {
  uint8_t header;
  int bytes;     // of the payload
  int nonzeros;  // elements that are no exact zeros
};

// The smallest kind of a block, by the order of README.md's "Choice of kind".
template <DType kType>
__device__ inline BlockChoice ChooseKind(const LaneCodes& lane, int32_t above,
                                         bool whole, int lane_index) {
  BlockChoice best = {kZeroHeader, 0, 0};
  const uint32_t nonzero_lanes = __ballot_sync(kAllLanes, lane.nonzero != 0);
  if (nonzero_lanes == 0) return best;
  const SparseShape shape = ShapeOfSparse(lane);
  const int present =
      whole ? kBlockElements
            : static_cast<int>(__reduce_add_sync(
                  kAllLanes, static_cast<unsigned>(__popc(lane.present))));
  const int raw_bytes = present * static_cast<int>(sizeof(Storage<kType>));
  best = {kRawHeader, raw_bytes, shape.count};
  if (!__all_sync(kAllLanes, lane.accepted)) return best;

  const bool has_zeros = shape.count != present;
  uint32_t residuals[kBlockRows];
  DeltaResiduals(lane, above, !has_zeros, whole, residuals);
  const int planes = PlaneCount(residuals);
  const PlanesCost delta = BestCost(residuals, planes, lane_index);
  best.header = static_cast<uint8_t>((has_zeros ? kDeltaCodes : kDeltaSteps) |
                                     PlanesIndex(planes, delta.full));
  best.bytes = delta.bytes;

  if (has_zeros && shape.magnitude_planes <= kMaxSparsePlanes) {
    const int suppressed = SuppressedBytes(nonzero_lanes);
    const bool full = kLanes <= suppressed;
    const int bytes = shape.bytes() + (full ? kLanes : suppressed);
    if (bytes < best.bytes) {
      best.header = static_cast<uint8_t>(kSparse | shape.magnitude_planes << 2 |
                                         (shape.signs ? kSparseSigns : 0) |
                                         (full ? kSparseFullBitmap : 0));
      best.bytes = bytes;
    }
  }
  if (shape.magnitude_planes + 2 <= planes) {
    DirectResiduals(lane, residuals);
    const int direct_planes = PlaneCount(residuals);
    const PlanesCost direct = BestCost(residuals, direct_planes, lane_index);
    if (direct.bytes < best.bytes) {
      best.header = static_cast<uint8_t>(
          kDirectCodes | PlanesIndex(direct_planes, direct.full));
      best.bytes = direct.bytes;
    }
  }
  if (raw_bytes < best.bytes) {
    best.header = kRawHeader;
    best.bytes = raw_bytes;
  }
  return best;
}

// The code that the next block's first row is compared with.
__device__ inline int32_t CodeBelow(const LaneCodes& codes, uint8_t header) {
  return header == kRawHeader ? 0 : codes.codes[kBlockRows - 1];
}

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_ENCODE_H_

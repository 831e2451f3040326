// SPDX-License-Identifier: Apache-2.0
// The table of kernels that each instruction set provides. A kernel works on a
// unit: up to kUnitStrips adjacent strips of one band, so that rows are read in
// long runs while every tile keeps its own output.
#ifndef COMET_CPU_CODEC_KERNELS_H_
#define COMET_CPU_CODEC_KERNELS_H_

#include <cstdint>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"

namespace comet {

constexpr int kUnitStrips = 8;
// Room for one tile and for vector stores that run past its end.
constexpr int kTileCapacity = kMaxTileBytes + 176;

struct TileUnit {
  int64_t band;
  int64_t first_strip;
  int strips;
};

struct EncodeJob {
  Geometry geometry;
  DType dtype;
  Rounding rounding;
  Quantiser quantiser;
  uint64_t mixed_seed;
  const uint8_t* x;
};

struct EncodedUnit {
  uint16_t sizes[kUnitStrips];
  int64_t nonzeros;
  uint64_t checksum;
};

struct DecodeJob {
  Geometry geometry;
  DType dtype;
  Rounding rounding;
  Quantiser quantiser;
  uint64_t mixed_seed;
  uint8_t* out;
  // Sign gradient only.
  const uint8_t* dy;
  float slope;
};

struct TileBytes {
  const uint8_t* data;  // readable for 64 bytes past the end
  int size;
};

struct FiniteRange {
  float low;
  float high;  // below `low` when no element is finite
};

struct CodecKernels {
  const char* name;
  // Writes tile k of the unit to workspace + k * kTileCapacity.
  void (*encode)(const EncodeJob& job, const TileUnit& unit, uint8_t* workspace,
                 EncodedUnit* result);
  // Both return false for bytes that are no valid tile, and add the tiles'
  // checksums to *checksum.
  bool (*decode)(const DecodeJob& job, const TileUnit& unit,
                 const TileBytes* tiles, uint64_t* checksum);
  bool (*sign_gradient)(const DecodeJob& job, const TileUnit& unit,
                        const TileBytes* tiles, uint64_t* checksum);
  FiniteRange (*range)(DType dtype, const uint8_t* x, int64_t n);
};

const CodecKernels& PortableKernels();
// nullptr where the library or the processor has no such kernels.
const CodecKernels* Avx2Kernels();
const CodecKernels* Avx512Kernels();

}  // namespace comet

#endif  // COMET_CPU_CODEC_KERNELS_H_

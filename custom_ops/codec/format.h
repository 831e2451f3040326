// SPDX-License-Identifier: Apache-2.0
// Constants and geometry of the stream format (README.md).
#ifndef COMET_CODEC_FORMAT_H_
#define COMET_CODEC_FORMAT_H_

#include <cstdint>

#include "custom_ops/codec/host_device.h"

namespace comet {

enum class DType : uint8_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };
enum class Rounding : uint8_t { kNearest = 0, kDither = 1 };

constexpr uint8_t kFormatVersion = 2;
constexpr int kHeaderBytes = 64;
constexpr int kPaddingBytes = 64;
constexpr int kLanes = 32;
constexpr int kBlockRows = 8;
constexpr int kBlockElements = kLanes * kBlockRows;
constexpr int kTileBlocks = 16;
constexpr int kTileRows = kTileBlocks * kBlockRows;
constexpr int kTilesPerOffset = 64;
// A tile of RAW float32 blocks.
constexpr int kMaxTileBytes = kTileBlocks * (1 + 4 * kBlockElements);

// Block headers.
constexpr uint8_t kZeroHeader = 0x3E;
constexpr uint8_t kRawHeader = 0x3F;
constexpr uint8_t kDeltaCodes = 0x00;
constexpr uint8_t kDeltaSteps = 0x40;
constexpr uint8_t kDirectCodes = 0x80;
constexpr uint8_t kSparse = 0xC0;
constexpr uint8_t kKindMask = 0xC0;
constexpr uint8_t kSparseSigns = 0x02;
constexpr uint8_t kSparseFullBitmap = 0x01;
constexpr int kMaxPlanes = 25;
constexpr int kMaxSparsePlanes = 15;
constexpr int kFirstWideIndex = 36;  // header index of 8 planes

COMET_INLINE int ElementBytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

// Header index of `planes` planes of which `full` are stored in full. From 8
// planes on, `full` is a byte of the payload instead.
COMET_INLINE int PlanesIndex(int planes, int full) {
  return planes < 8 ? planes * (planes + 1) / 2 + full
                    : kFirstWideIndex + planes - 8;
}

// Inverse of PlanesIndex. `full` is -1 where the payload has it; returns false
// for an index that means nothing.
COMET_INLINE bool PlanesFromIndex(int index, int* planes, int* full) {
  if (index >= kFirstWideIndex) {
    *planes = index - kFirstWideIndex + 8;
    *full = -1;
    return *planes <= kMaxPlanes;
  }
  int p = 0;
  while ((p + 1) * (p + 2) / 2 <= index) ++p;
  *planes = p;
  *full = index - p * (p + 1) / 2;
  return true;
}

// How a flat tensor falls into rows, strips, bands, tiles.
struct Geometry {
  int64_t n = 0;
  int64_t row_length = 1;
  int64_t rows = 0;
  int64_t strips = 0;
  int64_t bands = 0;
  int64_t tiles = 0;
};

COMET_INLINE Geometry MakeGeometry(int64_t n, int64_t row_length) {
  Geometry g;
  g.n = n;
  g.row_length = row_length;
  g.rows = n / row_length + (n % row_length != 0);
  g.strips = row_length / kLanes + (row_length % kLanes != 0);
  g.bands = g.rows / kTileRows + (g.rows % kTileRows != 0);
  g.tiles = n == 0 ? 0 : g.bands * g.strips;
  return g;
}

COMET_INLINE int BandRows(const Geometry& g, int64_t band) {
  const int64_t left = g.rows - band * kTileRows;
  return left < kTileRows ? static_cast<int>(left) : kTileRows;
}

COMET_INLINE int BandBlocks(const Geometry& g, int64_t band) {
  return (BandRows(g, band) + kBlockRows - 1) / kBlockRows;
}

COMET_INLINE int StripLanes(const Geometry& g, int64_t strip) {
  const int64_t left = g.row_length - strip * kLanes;
  return left < kLanes ? static_cast<int>(left) : kLanes;
}

// Lanes of `row` in `strip` that lie inside the tensor (0..32).
COMET_INLINE int PresentLanes(const Geometry& g, int64_t row, int64_t strip) {
  if (row >= g.rows) return 0;
  const int lanes = StripLanes(g, strip);
  const int64_t left = g.n - row * g.row_length - strip * kLanes;
  return left < lanes ? (left < 0 ? 0 : static_cast<int>(left)) : lanes;
}

COMET_INLINE int64_t OffsetCount(int64_t tiles) {
  return tiles / kTilesPerOffset + (tiles % kTilesPerOffset != 0);
}

// Where the first tile starts.
COMET_INLINE int64_t TilesStart(int64_t tiles) {
  return kHeaderBytes + 8 * OffsetCount(tiles) + 2 * tiles;
}

}  // namespace comet

#endif  // COMET_CODEC_FORMAT_H_

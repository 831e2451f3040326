// SPDX-License-Identifier: Apache-2.0
// How the tiles of a tensor group into units of work.
#ifndef COMET_CPU_CODEC_UNITS_H_
#define COMET_CPU_CODEC_UNITS_H_

#include <algorithm>
#include <cstdint>

#include "custom_ops/cpu/codec_kernels.h"

namespace comet {

// Units are numbered band by band, each band's strips in groups.
inline int64_t UnitsPerBand(const Geometry& g) {
  return (g.strips + kUnitStrips - 1) / kUnitStrips;
}

inline int64_t UnitCount(const Geometry& g) {
  return g.tiles == 0 ? 0 : g.bands * UnitsPerBand(g);
}

inline TileUnit UnitAt(const Geometry& g, int64_t unit) {
  TileUnit result;
  result.band = unit / UnitsPerBand(g);
  result.first_strip = unit % UnitsPerBand(g) * kUnitStrips;
  result.strips = static_cast<int>(
      std::min<int64_t>(kUnitStrips, g.strips - result.first_strip));
  return result;
}

inline int64_t FirstTile(const Geometry& g, const TileUnit& unit) {
  return unit.band * g.strips + unit.first_strip;
}

}  // namespace comet

#endif  // COMET_CPU_CODEC_UNITS_H_

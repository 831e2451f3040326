// SPDX-License-Identifier: Apache-2.0
// Every instruction set writes the same bytes and restores the same values.
#include <cmath>
#include <random>

#include "custom_ops/cpu/codec_ieee.h"
#include "custom_ops/cpu/codec_kernels.h"
#include "tests/cpp/codec_test_util.h"

namespace comet {
namespace {

// Encodes and decodes one unit of up to 8 strips with one set of kernels.
struct UnitResult {
  std::vector<uint8_t> tiles;
  std::vector<uint16_t> sizes;
  int64_t nonzeros;
  uint64_t checksum;
  std::vector<uint8_t> values;
  std::vector<uint8_t> gradient;
};

UnitResult RunUnit(const CodecKernels& kernels, EncodeJob job,
                   const std::vector<uint8_t>& dy, float slope) {
  const ScopedIeee ieee;
  const TileUnit unit{0, 0, static_cast<int>(job.geometry.strips)};
  std::vector<uint8_t> workspace(static_cast<size_t>(kTileCapacity) *
                                 unit.strips);
  EncodedUnit encoded;
  kernels.encode(job, unit, workspace.data(), &encoded);
  UnitResult result;
  result.nonzeros = encoded.nonzeros;
  result.checksum = encoded.checksum;
  TileBytes tiles[kUnitStrips];
  for (int k = 0; k < unit.strips; ++k) {
    const uint8_t* tile = workspace.data() + k * kTileCapacity;
    tiles[k] = {tile, encoded.sizes[k]};
    result.sizes.push_back(encoded.sizes[k]);
    result.tiles.insert(result.tiles.end(), tile, tile + encoded.sizes[k]);
  }
  result.values.assign(dy.size(), 0xA5);
  result.gradient = dy;
  DecodeJob decode{job.geometry,   job.dtype,
                   job.rounding,   job.quantiser,
                   job.mixed_seed, result.values.data(),
                   nullptr,        0.0f};
  uint64_t checksum = 0;
  COMET_CHECK(kernels.decode(decode, unit, tiles, &checksum));
  COMET_CHECK(checksum == encoded.checksum);
  decode.out = result.gradient.data();
  decode.dy = dy.data();
  decode.slope = slope;
  checksum = 0;
  COMET_CHECK(kernels.sign_gradient(decode, unit, tiles, &checksum));
  COMET_CHECK(checksum == encoded.checksum);
  return result;
}

// Data whose character changes from block to block.
float Sample(std::mt19937* random, int64_t block) {
  std::normal_distribution<float> normal;
  const float v = normal(*random);
  switch (block % 9) {
    case 0:
      return v;
    case 1:
      return v > 1.0f ? v : 0.0f;
    case 2:
      return v > -0.5f ? std::abs(v) : -0.0f;
    case 3:
      return 1.0f + 0.01f * v;
    case 4:
      return 1000.0f * v;
    case 5:
      return (*random)() % 50 == 0 ? v : 0.0f;
    case 6:
      return (*random)() % 40 == 0
                 ? FloatFromBits(static_cast<uint32_t>((*random)()))
                 : v;
    case 7:
      return 1e5f * v;
    default:
      return 0.0f;
  }
}

void Compare(DType dtype, Rounding rounding, int64_t n, int64_t row_length,
             float bound, uint32_t seed) {
  std::mt19937 random(seed);
  const int size = ElementBytes(dtype);
  std::vector<uint8_t> x(static_cast<size_t>(n * size));
  std::vector<uint8_t> dy(x.size());
  const uint32_t salt = random();
  for (int64_t k = 0; k < n; ++k) {
    const int64_t block = salt + k / (8 * row_length) * 5 + k % row_length / 32;
    const float v = Sample(&random, block);
    if (dtype == DType::kFloat32) {
      StoreFloat(&x, k, v);
    } else {
      const uint16_t h = dtype == DType::kFloat16
                             ? FloatToHalf(v, Rounding::kDither)
                             : static_cast<uint16_t>(FloatBits(v) >> 16);
      std::memcpy(&x[static_cast<size_t>(2 * k)], &h, 2);
    }
  }
  for (auto& b : dy) b = static_cast<uint8_t>(random());
  EncodeJob job;
  job.geometry = MakeGeometry(n, row_length);
  job.dtype = dtype;
  job.rounding = rounding;
  job.quantiser = MakeQuantiser(dtype, rounding, bound);
  job.mixed_seed = Mix(seed);
  job.x = x.data();
  const float slope =
      rounding == Rounding::kNearest && seed % 2 != 0 ? 0.3f : 0.0f;
  const UnitResult expected = RunUnit(PortableKernels(), job, dy, slope);
  for (const CodecKernels* kernels : {Avx2Kernels(), Avx512Kernels()}) {
    if (kernels == nullptr) continue;
    const UnitResult got = RunUnit(*kernels, job, dy, slope);
    COMET_CHECK(got.sizes == expected.sizes);
    COMET_CHECK(got.tiles == expected.tiles);
    COMET_CHECK(got.nonzeros == expected.nonzeros);
    COMET_CHECK(got.checksum == expected.checksum);
    COMET_CHECK(got.values == expected.values);
    COMET_CHECK(got.gradient == expected.gradient);
  }
}

void CompareRange(DType dtype, uint32_t seed) {
  std::mt19937 random(seed);
  const int64_t n = 1 + random() % 200;
  std::vector<uint8_t> x(static_cast<size_t>(n * ElementBytes(dtype)));
  for (auto& b : x) b = static_cast<uint8_t>(random());
  const FiniteRange expected = PortableKernels().range(dtype, x.data(), n);
  for (const CodecKernels* kernels : {Avx2Kernels(), Avx512Kernels()}) {
    if (kernels == nullptr) continue;
    const FiniteRange got = kernels->range(dtype, x.data(), n);
    COMET_CHECK(got.low == expected.low && got.high == expected.high);
  }
}

}  // namespace
}  // namespace comet

int main() {
  using comet::DType;
  using comet::Rounding;
  uint32_t seed = 0;
  for (int round = 0; round < 3; ++round) {
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const Rounding rounding : {Rounding::kNearest, Rounding::kDither}) {
        for (const float bound :
             {0.05f, 0.0078125f, 1e-3f, 2e-5f, 1e-7f, 20.0f, 1e-34f, 1e30f}) {
          comet::Compare(dtype, rounding, 128 * 256, 256, bound, ++seed);
          comet::Compare(dtype, rounding, 120 * 90 + 7, 90, bound, ++seed);
          comet::Compare(dtype, rounding, 77, 13, bound, ++seed);
        }
      }
      comet::CompareRange(dtype, ++seed);
    }
  }
  std::printf("ok\n");
  return 0;
}

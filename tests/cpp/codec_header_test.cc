// SPDX-License-Identifier: Apache-2.0
// Every block header that exists, with every number of full planes: each
// instruction set reads it without leaving its buffers and restores the same
// values, or all refuse it.
#include <algorithm>
#include <random>

#include "custom_ops/cpu/codec_ieee.h"
#include "custom_ops/cpu/codec_kernels.h"
#include "tests/cpp/codec_test_util.h"

namespace comet {
namespace {

using Bytes = std::vector<uint8_t>;

void AppendRandom(std::mt19937* random, int count, Bytes* out) {
  for (int k = 0; k < count; ++k) {
    out->push_back(static_cast<uint8_t>((*random)()));
  }
}

// A payload for the header; `full` of its planes are stored in full, the others
// as empty ones. Empty where the header cannot have it.
bool MakePayload(std::mt19937* random, uint8_t header, int full, Bytes* out) {
  out->clear();
  if (header == kZeroHeader) return full == 0;
  if (header == kRawHeader) {
    AppendRandom(random, 4 * kBlockElements, out);
    return full == 0;
  }
  if ((header & kKindMask) == kSparse) {
    if (full != 0) return false;
    int nonzeros = 0;
    if (header & kSparseFullBitmap) {
      AppendRandom(random, kLanes, out);
      for (uint8_t byte : *out) nonzeros += __builtin_popcount(byte);
    } else {
      // All four bytes of the mask, each with two lanes of one element.
      out->push_back(0xF);
      out->insert(out->end(), 4, 0x81);
      out->insert(out->end(), 8, 0x10);
      nonzeros = 8;
    }
    const int planes = ((header >> 2) & 0xF) + ((header & kSparseSigns) != 0);
    AppendRandom(random, (nonzeros * planes + 7) / 8, out);
    return true;
  }
  int planes, fixed;
  if (!PlanesFromIndex(header & 0x3F, &planes, &fixed)) {
    AppendRandom(random, 64, out);
    return full == 0;
  }
  if (full > planes || (fixed >= 0 && full != fixed)) return false;
  if (fixed < 0) out->push_back(static_cast<uint8_t>(full));
  AppendRandom(random, kLanes * full, out);
  out->insert(out->end(), static_cast<size_t>((planes - full + 1) / 2), 0);
  return true;
}

struct Decoded {
  bool valid;
  Bytes values;
  Bytes gradient;
};

Decoded Decode(const CodecKernels& kernels, const Bytes& tile, int size,
               int64_t n, Rounding rounding) {
  // An exact heap copy, so that the sanitizer sees what is read past it.
  const size_t bytes = static_cast<size_t>(size);
  const std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes + kPaddingBytes]());
  std::copy_n(tile.begin(), bytes, copy.get());
  const TileBytes tiles[kUnitStrips] = {{copy.get(), size}};
  const size_t raw = static_cast<size_t>(4 * n);
  Decoded result{false, Bytes(raw, 0xA5), Bytes(raw, 0x3C)};
  DecodeJob job{MakeGeometry(n, kLanes),
                DType::kFloat32,
                rounding,
                MakeQuantiser(DType::kFloat32, rounding, 0.01f),
                Mix(3),
                result.values.data(),
                nullptr,
                0.0f};
  const ScopedIeee ieee;
  uint64_t checksum = 0;
  const TileUnit unit{0, 0, 1};
  result.valid = kernels.decode(job, unit, tiles, &checksum);
  job.out = result.gradient.data();
  job.dy = result.gradient.data();
  COMET_CHECK(kernels.sign_gradient(job, unit, tiles, &checksum) ==
              result.valid);
  return result;
}

// Returns whether the tile is valid.
bool Compare(const Bytes& tile, int size, int64_t n, Rounding rounding) {
  const Decoded expected = Decode(PortableKernels(), tile, size, n, rounding);
  for (const CodecKernels* kernels : {Avx2Kernels(), Avx512Kernels()}) {
    if (kernels == nullptr) continue;
    const Decoded got = Decode(*kernels, tile, size, n, rounding);
    COMET_CHECK(got.valid == expected.valid);
    if (!got.valid) continue;
    COMET_CHECK(got.values == expected.values);
    COMET_CHECK(got.gradient == expected.gradient);
  }
  return expected.valid;
}

// Returns the number of valid tiles.
int TestHeader(std::mt19937* random, uint8_t header, int full) {
  Bytes payload;
  if (!MakePayload(random, header, full, &payload)) return 0;
  // One block, then the same after one of 7 full planes, so that what is above
  // is neither zero nor the same everywhere.
  constexpr int kSeven = 7;
  Bytes one{header};
  one.insert(one.end(), payload.begin(), payload.end());
  Bytes two{static_cast<uint8_t>(PlanesIndex(kSeven, kSeven)), header};
  AppendRandom(random, kLanes * kSeven, &two);
  two.insert(two.end(), payload.begin(), payload.end());
  int valid = 0;
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kDither}) {
    for (const Bytes* tile : {&one, &two}) {
      const int64_t n = kBlockElements * (tile == &one ? 1 : 2);
      const int size = static_cast<int>(tile->size());
      valid += Compare(*tile, size, n, rounding);
      // Cut off everywhere near the ends, and one byte too long.
      for (int k = 1; k < 70; k += 3) {
        if (size - k > 0) {
          COMET_CHECK(!Compare(*tile, size - k, n, rounding));
        }
        if (k < size) Compare(*tile, k, n, rounding);
      }
      Bytes longer = *tile;
      longer.push_back(0);
      COMET_CHECK(!Compare(longer, size + 1, n, rounding));
    }
  }
  return valid;
}

// The largest code that is not RAW, of another sign from row to row. Planes of
// the codes are fewer than planes of the differences here.
void TestWidestCodes() {
  constexpr int64_t kCount = 4 * kBlockElements;
  constexpr float kBound = 0.25f;
  std::vector<uint8_t> x(4 * kCount);
  for (int64_t k = 0; k < kCount; ++k) {
    const float size = (static_cast<float>(kMagnitudeLimit) - 0.5f) *
                       StepFor(DType::kFloat32, Rounding::kNearest, kBound);
    // A zero in each block, for codes that have room for it.
    const bool zero = k % kBlockElements == 0;
    StoreFloat(&x, k, zero ? 0.0f : k / kLanes % 2 == 0 ? size : -size);
  }
  CompressOptions options;
  options.n = kCount;
  options.row_length = kLanes;
  options.error_bound = kBound;
  std::vector<uint8_t> stream;
  COMET_CHECK(CompressTo(options, x.data(), Serial, &stream).ok);
  // The second block: the first has zeros above.
  const uint8_t header = stream[static_cast<size_t>(TilesStart(1)) + 1];
  COMET_CHECK(header == (kDirectCodes | PlanesIndex(24, 24)));
  std::vector<uint8_t> y(x.size());
  COMET_CHECK(Decompress(stream.data(), static_cast<int64_t>(stream.size()),
                         options.dtype, kCount, Serial, y.data())
                  .ok);
  for (int64_t k = 0; k < kCount; ++k) {
    COMET_CHECK(Allowed(options.dtype, options.rounding,
                        ElementAt(options.dtype, x.data(), k),
                        ElementAt(options.dtype, y.data(), k), kBound));
  }
}

}  // namespace
}  // namespace comet

int main() {
  std::mt19937 random(5);
  for (int header = 0; header < 256; ++header) {
    int valid = 0;
    for (int full = 0; full <= comet::kMaxPlanes; ++full) {
      valid += comet::TestHeader(&random, static_cast<uint8_t>(header), full);
    }
    const bool sparse = (header & comet::kKindMask) == comet::kSparse;
    const bool special =
        header == comet::kZeroHeader || header == comet::kRawHeader;
    int planes, fixed;
    const bool exists = sparse || special ||
                        comet::PlanesFromIndex(header & 0x3F, &planes, &fixed);
    // One block and two, both roundings, and each number of full planes.
    const int pairs =
        !sparse && !special && exists && fixed < 0 ? planes + 1 : 1;
    COMET_CHECK(valid == (exists ? 4 * pairs : 0));
  }
  comet::TestWidestCodes();
  std::printf("ok\n");
  return 0;
}

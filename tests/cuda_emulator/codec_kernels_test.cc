// SPDX-License-Identifier: Apache-2.0
//
// The CUDA codec against the CPU codec: the same bytes, the same values, the
// same verdict on damaged streams, under every schedule.

#include <cmath>

#include "codec_test_case.h"
#include "custom_ops/cuda/launchers.h"
#include "kernels_test_util.h"

namespace comet {
namespace {

int64_t streams_compared = 0;
int64_t header_counts[256] = {};

// The input's scalars, in device memory.
struct Scalars {
  DeviceValue<float> error_bound;
  DeviceValue<bool> relative;
  DeviceValue<int64_t> seed;

  explicit Scalars(const Case& c)
      : error_bound(c.error_bound),
        relative(c.relative),
        seed(static_cast<int64_t>(c.seed)) {}

  cuda::CompressInput Input(const Case& c, const DeviceMemory& x) {
    return {c.dtype,      c.rounding,        x.data(),       c.n,
            c.row_length, error_bound.get(), relative.get(), seed.get()};
  }
};

cuda::CompressSummary MeasureOnGpu(const Case& c,
                                   const cuda::CompressInput& input,
                                   DeviceMemory* workspace) {
  DeviceValue<cuda::CompressSummary> summary({});
  const int error = cuda::LaunchCompressSize(nullptr, input, workspace->data(),
                                             summary.get());
  COMET_CHECK(error == 0 && Finish() == 0, c.Name());
  return summary.value();
}

void CheckCompress(const Case& c, const DeviceMemory& x,
                   const DeviceMemory& expected, int64_t nonzeros,
                   float absolute_bound) {
  Scalars scalars(c);
  const cuda::CompressInput input = scalars.Input(c, x);
  DeviceMemory workspace(cuda::CompressWorkspaceBytes(c.n, c.row_length));
  const cuda::CompressSummary summary = MeasureOnGpu(c, input, &workspace);
  COMET_CHECK(summary.valid == 1, c.Name());
  COMET_CHECK(summary.error_bound == absolute_bound, c.Name());
  COMET_CHECK(summary.nonzeros == nonzeros, c.Name());
  COMET_CHECK(summary.stream_bytes == static_cast<int64_t>(expected.size()),
              c.Name());
  DeviceMemory stream(static_cast<size_t>(summary.stream_bytes));
  DeviceMemory info_memory(4 * sizeof(double));
  const double* info = info_memory.as<const double>();
  const int error =
      cuda::LaunchCompressPack(nullptr, input, workspace.data(), stream.data(),
                               info_memory.as<double>());
  COMET_CHECK(error == 0 && Finish() == 0, c.Name());
  COMET_CHECK(Same(stream, expected), c.Name());
  COMET_CHECK(info[0] == static_cast<double>(x.size()), c.Name());
  COMET_CHECK(info[1] == static_cast<double>(stream.size()), c.Name());
  COMET_CHECK(c.n == 0 || info[2] == static_cast<double>(nonzeros) /
                                         static_cast<double>(c.n),
              c.Name());
  COMET_CHECK(info[3] == static_cast<double>(absolute_bound), c.Name());
  ++streams_compared;
}

void CheckDecompress(const Case& c, const DeviceMemory& stream) {
  DeviceMemory expected(static_cast<size_t>(c.n * ElementBytes(c.dtype)));
  const auto bytes = static_cast<int64_t>(stream.size());
  const Status status =
      Decompress(stream.data(), bytes, c.dtype, c.n, Serial, expected.data());
  COMET_CHECK(status.ok, c.Name() + status.message);
  DeviceMemory out(expected.size());
  DeviceMemory workspace(cuda::DecodeWorkspaceBytes());
  DeviceValue<int32_t> verdict_memory(-1);
  const int error = cuda::LaunchDecompress(nullptr, c.dtype, stream.data(),
                                           bytes, c.n, workspace.data(),
                                           out.data(), verdict_memory.get());
  COMET_CHECK(error == 0 && Finish() == 0, c.Name());
  const int32_t verdict = verdict_memory.value();
  COMET_CHECK(verdict == 0, c.Name() + " verdict " + std::to_string(verdict));
  COMET_CHECK(Same(out, expected), c.Name());
}

void CheckSignGradient(const Case& c, const DeviceMemory& stream, float slope,
                       bool in_place) {
  const DeviceMemory dy =
      MakeTensor(c.dtype, c.n, c.row_length, Content::kNoise, 77);
  DeviceMemory expected(dy.size());
  const auto bytes = static_cast<int64_t>(stream.size());
  const Status status = SignGradient(stream.data(), bytes, c.dtype, c.n, slope,
                                     dy.data(), Serial, expected.data());
  DeviceMemory dx(dy.data(), dy.size());
  DeviceMemory other(dy.data(), dy.size());
  DeviceMemory workspace(cuda::DecodeWorkspaceBytes());
  DeviceValue<int32_t> verdict_memory(-1);
  const int error = cuda::LaunchSignGradient(
      nullptr, c.dtype, stream.data(), bytes, c.n, slope, workspace.data(),
      in_place ? dx.data() : other.data(), dx.data(), verdict_memory.get());
  COMET_CHECK(error == 0 && Finish() == 0, c.Name());
  const int32_t verdict = verdict_memory.value();
  COMET_CHECK(status.ok == (verdict == 0),
              c.Name() + status.message + std::to_string(verdict));
  if (status.ok) COMET_CHECK(Same(dx, expected), c.Name());
}

void CountHeaders(const Case& c, const DeviceMemory& stream) {
  const Geometry g = MakeGeometry(c.n, c.row_length);
  const auto* sizes = reinterpret_cast<const uint16_t*>(
      stream.data() + kHeaderBytes + 8 * OffsetCount(g.tiles));
  int64_t at = TilesStart(g.tiles);
  for (int64_t t = 0; t < g.tiles; ++t) {
    for (int b = 0; b < BandBlocks(g, t / g.strips); ++b) {
      ++header_counts[stream.data()[at + b]];
    }
    at += sizes[t];
  }
}

void CheckCase(const Case& c, const std::vector<Schedule>& all) {
  const DeviceMemory x =
      MakeTensor(c.dtype, c.n, c.row_length, c.content,
                 static_cast<uint32_t>(c.n + 31 * c.row_length));
  int64_t nonzeros = 0;
  float absolute_bound = 0;
  const DeviceMemory stream = CompressOnCpu(c, x, &nonzeros, &absolute_bound);
  CountHeaders(c, stream);
  for (const Schedule& schedule : all) {
    SetSchedule(schedule);
    CheckCompress(c, x, stream, nonzeros, absolute_bound);
    CheckDecompress(c, stream);
  }
  CheckSignGradient(c, stream, 0.0f, c.n % 2 == 0);
  CheckSignGradient(c, stream, 0.25f, c.n % 2 != 0);
}

// Sizes around the limits of blocks, tiles and strips, with partial last rows.
void TestShapes(int64_t largest) {
  struct Size {
    int64_t n, row_length;
  };
  constexpr Size kSizes[] = {{0, 32},           {1, 1},
                             {1, 32},           {7, 8},
                             {31, 32},          {32, 32},
                             {33, 32},          {255, 32},
                             {256, 32},         {257, 32},
                             {4095, 32},        {4096, 32},
                             {4097, 32},        {300, 300},
                             {301, 300},        {40 * 9, 40},
                             {65 * 7 + 64, 65}, {129, 1},
                             {1025, 8},         {24 * 130, 24},
                             {33 * 129, 33},    {96 * 131 + 50, 96},
                             {5, 1000}};
  uint64_t seed = 1;
  for (const Size& size : kSizes) {
    if (size.n > largest) continue;
    for (DType dtype : kTypes) {
      for (Rounding rounding : kRoundings) {
        ++seed;
        const Content content =
            seed % 3 == 0 ? Content::kSpecial : Content::kMixed;
        CheckCase({dtype, rounding, size.n, size.row_length, 0.01f,
                   seed % 2 == 0, content, seed},
                  Schedules(size.n < 5000 ? 1 : 0));
      }
    }
  }
}

// Every kind of content at bounds from fine to coarse.
void TestContents() {
  constexpr float kBounds[] = {1e-6f, 1e-3f, 0.03f, 0.5f};
  uint64_t seed = 1000;
  for (Content content : kContents) {
    for (float bound : kBounds) {
      ++seed;
      CheckCase({kTypes[seed % 3], kRoundings[seed / 3 % 2], 48 * 100 + 7, 48,
                 bound, false, content, seed},
                Schedules(1));
      CheckCase({DType::kFloat32, Rounding::kNearest, 32 * 40, 32, bound, true,
                 content, seed},
                Schedules(0));
    }
  }
}

// More tiles than the offset table has to a group, and more than one turn of
// the loops that the kernels make.
void TestManyTiles() {
  for (int64_t n : {32 * 8 * 70 + 5, 32 * 8 * 300}) {
    CheckCase({DType::kFloat32, Rounding::kNearest, n, n / 8, 0.05f, true,
               Content::kSparse, 5},
              Schedules(0));
  }
}

void TestBadBounds() {
  const DeviceMemory x =
      MakeTensor(DType::kFloat32, 100, 32, Content::kNoise, 1);
  for (bool relative : {false, true}) {
    for (float bound : {0.0f, -1.0f, NAN, INFINITY, -INFINITY}) {
      const Case c = {DType::kFloat32, Rounding::kNearest, 100, 32, bound,
                      relative,        Content::kNoise,    0};
      Scalars scalars(c);
      DeviceMemory workspace(cuda::CompressWorkspaceBytes(100, 32));
      COMET_CHECK(MeasureOnGpu(c, scalars.Input(c, x), &workspace).valid == 0,
                  c.Name());
    }
  }
}

void CheckCoverage() {
  int64_t kinds[4] = {};
  for (int h = 0; h < 256; ++h) {
    if (h != kZeroHeader && h != kRawHeader) kinds[h >> 6] += header_counts[h];
  }
  std::printf(
      "blocks: zero %ld raw %ld delta_c %ld delta_s %ld direct %ld "
      "sparse %ld; streams compared: %ld\n",
      static_cast<long>(header_counts[kZeroHeader]),
      static_cast<long>(header_counts[kRawHeader]), static_cast<long>(kinds[0]),
      static_cast<long>(kinds[1]), static_cast<long>(kinds[2]),
      static_cast<long>(kinds[3]), static_cast<long>(streams_compared));
  for (int64_t count : kinds) COMET_CHECK(count > 0, "a kind never occurred");
  COMET_CHECK(header_counts[kZeroHeader] > 0, "no ZERO block occurred");
  COMET_CHECK(header_counts[kRawHeader] > 0, "no RAW block occurred");
  int64_t wide = 0;
  for (int kind = 0; kind < 3; ++kind) {
    for (int i = kFirstWideIndex; i < kZeroHeader; ++i) {
      wide += header_counts[kind << 6 | i];
    }
  }
  COMET_CHECK(wide > 0, "no block of 8 or more planes occurred");
}

}  // namespace
}  // namespace comet

// With the argument "small" only as much as a slow tool can stand.
int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "small") == 0) {
    comet::TestShapes(500);
    std::printf("codec kernels: small tests passed\n");
    return 0;
  }
  comet::TestShapes(1 << 20);
  comet::TestContents();
  comet::TestManyTiles();
  comet::TestBadBounds();
  comet::CheckCoverage();
  std::printf("codec kernels: all tests passed\n");
  return 0;
}

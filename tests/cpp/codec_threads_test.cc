// SPDX-License-Identifier: Apache-2.0
// The same bytes and values from any number of threads and any split of the
// work; running out of scratch is an error, not a crash.
#include "custom_ops/cpu/codec_threads.h"

#include <random>

#include "tests/cpp/codec_test_util.h"

namespace comet {
namespace {

ParallelFor On(ThreadPool* pool) {
  return [pool](int64_t units, int64_t cycles,
                const std::function<void(int64_t, int64_t)>& fn) {
    pool->Run(units, cycles, fn);
  };
}

// One unit a call, last one first.
void Backwards(int64_t units, int64_t,
               const std::function<void(int64_t, int64_t)>& fn) {
  for (int64_t u = units; u-- > 0;) fn(u, u + 1);
}

void Check(Rounding rounding, int64_t n, int64_t row_length) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n)), dy(x.size());
  for (float& v : x) v = std::max(normal(random), 0.0f);
  for (float& v : dy) v = normal(random);
  CompressOptions options;
  options.n = n;
  options.row_length = row_length;
  options.error_bound = 0.02f;
  options.rounding = rounding;
  options.seed = 77;
  std::vector<uint8_t> expected;
  COMET_CHECK(CompressTo(options, x.data(), Serial, &expected).ok);
  const int64_t bytes = static_cast<int64_t>(expected.size());
  std::vector<float> y(x.size()), dx(x.size());
  COMET_CHECK(
      Decompress(expected.data(), bytes, options.dtype, n, Serial, y.data())
          .ok);
  COMET_CHECK(SignGradient(expected.data(), bytes, options.dtype, n, 0.0f,
                           dy.data(), Serial, dx.data())
                  .ok);
  float range = 0.0f;
  COMET_CHECK(ValueRange(options.dtype, x.data(), n, Serial, &range).ok);
  ThreadPool one(1), two(2), seven(7);
  for (const ParallelFor& parallel_for :
       {On(&one), On(&two), On(&seven), ParallelFor(Backwards)}) {
    std::vector<uint8_t> stream;
    COMET_CHECK(CompressTo(options, x.data(), parallel_for, &stream).ok);
    COMET_CHECK(stream == expected);
    std::vector<float> got(x.size(), -1.0f);
    COMET_CHECK(Decompress(stream.data(), bytes, options.dtype, n, parallel_for,
                           got.data())
                    .ok);
    COMET_CHECK(std::memcmp(got.data(), y.data(), 4 * y.size()) == 0);
    COMET_CHECK(SignGradient(stream.data(), bytes, options.dtype, n, 0.0f,
                             dy.data(), parallel_for, got.data())
                    .ok);
    COMET_CHECK(std::memcmp(got.data(), dx.data(), 4 * dx.size()) == 0);
    float other = 0.0f;
    COMET_CHECK(
        ValueRange(options.dtype, x.data(), n, parallel_for, &other).ok);
    COMET_CHECK(other == range);
  }
  for (const int allowed : {0, 1}) {
    Compressor compressor;
    std::vector<std::unique_ptr<uint8_t[]>> chunks;
    const Status status =
        compressor.Encode(options, x.data(), On(&two), [&](size_t size) {
          if (static_cast<int>(chunks.size()) >= allowed) {
            return static_cast<uint8_t*>(nullptr);
          }
          chunks.emplace_back(new uint8_t[size]);
          return chunks.back().get();
        });
    COMET_CHECK(!status.ok);
    COMET_CHECK(status.message.find("memory") != std::string::npos);
  }
}

}  // namespace
}  // namespace comet

int main() {
  using comet::Rounding;
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kDither}) {
    comet::Check(rounding, 300000, 32);
    comet::Check(rounding, 128 * 640 * 3 + 77, 640);
    comet::Check(rounding, 200001, 28);
  }
  std::printf("ok (%s)\n", comet::CodecIsa());
  return 0;
}

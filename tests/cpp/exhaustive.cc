// SPDX-License-Identifier: Apache-2.0
// All 2^32 float32 patterns at several bounds: each element alone through the
// quantiser, and all of them through streams. A separate command; it takes
// minutes. Arguments: the bounds to use instead of the usual ones.
#include <atomic>
#include <cinttypes>
#include <cmath>
#include <thread>

#include "tests/cpp/codec_test_util.h"

namespace comet {
namespace {

constexpr int64_t kPart = 1 << 20;
constexpr int64_t kParts = (int64_t{1} << 32) / kPart;

struct Tally {
  std::atomic<int64_t> alone{0};    // nonzero elements stored as a code
  std::atomic<int64_t> failed{0};   // violations
  std::atomic<int64_t> streams{0};  // bytes of all streams
};

// Violations among restored elements. Almost all are beyond doubt in float32
// arithmetic, which a loop without branches settles; the others are looked at
// exactly.
template <Rounding kRounding>
int64_t Violations(const std::vector<float>& x, const std::vector<float>& y,
                   float bound) {
  constexpr size_t kRun = 256;
  const float surely = bound * (1.0f - 0x1p-16f);
  int64_t failed = 0;
  for (size_t begin = 0; begin < x.size(); begin += kRun) {
    uint32_t doubtful = 0;
    for (size_t k = begin; k < begin + kRun; ++k) {
      const uint32_t from = FloatBits(x[k]);
      const uint32_t to = FloatBits(y[k]);
      const uint32_t error = FloatBits(x[k] - y[k]) & 0x7FFFFFFFu;
      const uint32_t signs = kRounding == Rounding::kNearest ? from ^ to : 0;
      const uint32_t changed = from != to ? 1 : 0;
      const uint32_t outside = (error < FloatBits(surely) ? 0 : 1) |
                               ((from & 0x7F800000u) == 0 ? 1 : 0) |
                               ((to & 0x7F800000u) == 0 ? 1 : 0) | signs >> 31;
      doubtful |= changed & outside;
    }
    if (doubtful == 0) continue;
    for (size_t k = begin; k < begin + kRun; ++k) {
      failed += !Allowed(DType::kFloat32, kRounding, x[k], y[k], bound);
    }
  }
  return failed;
}

template <Rounding kRounding>
void CheckPart(int64_t part, const Quantiser& q, Tally* tally) {
  constexpr DType kType = DType::kFloat32;
  // Neighbouring patterns share a block in even parts; in odd ones blocks mix
  // the whole part.
  thread_local std::vector<float> x(kPart), y(kPart);
  for (int64_t k = 0; k < kPart; ++k) {
    const int64_t low = part % 2 == 0 ? k : k * 4097 % kPart;
    x[static_cast<size_t>(k)] =
        FloatFromBits(static_cast<uint32_t>(part * kPart + low));
  }
  // Each element alone.
  int64_t alone = 0;
  for (uint32_t k = 0; k < kPart; ++k) {
    const int32_t u = DitherOffset(static_cast<uint32_t>(Mix(part)), 2 * k + 1);
    int32_t rejected = 0;
    const int32_t code = QuantiseInto<kType, kRounding>(x[k], u, q, &rejected);
    const float restored =
        code == 0 ? 0.0f
                  : RestoreStep(StepFromCode(code), q.step, u, kRounding);
    y[k] = rejected != 0 ? x[k] : restored;
    alone += (rejected | (code == 0 ? 1 : 0)) == 0;
  }
  int64_t failed = Violations<kRounding>(x, y, q.error_bound);
  // Through a stream.
  CompressOptions options;
  options.n = kPart;
  options.row_length = 64;
  options.error_bound = q.error_bound;
  options.rounding = kRounding;
  options.seed = static_cast<uint64_t>(part);
  thread_local std::vector<uint8_t> stream;
  COMET_CHECK(CompressTo(options, x.data(), Serial, &stream).ok);
  COMET_CHECK(Decompress(stream.data(), static_cast<int64_t>(stream.size()),
                         kType, kPart, Serial, y.data())
                  .ok);
  failed += Violations<kRounding>(x, y, q.error_bound);
  tally->alone += alone;
  tally->failed += failed;
  tally->streams += static_cast<int64_t>(stream.size());
}

template <Rounding kRounding>
bool CheckAll(float bound) {
  const Quantiser q = MakeQuantiser(DType::kFloat32, kRounding, bound);
  Tally tally;
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t part = next++; part < kParts; part = next++) {
      CheckPart<kRounding>(part, q, &tally);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned k = 1; k < std::thread::hardware_concurrency(); ++k) {
    threads.emplace_back(work);
  }
  work();
  for (std::thread& thread : threads) thread.join();
  std::printf("bound %-14.8g %-7s violations %" PRId64 ", coded %" PRId64
              ", stream bytes %" PRId64 "\n",
              static_cast<double>(bound),
              kRounding == Rounding::kNearest ? "nearest" : "dither",
              tally.failed.load(), tally.alone.load(), tally.streams.load());
  std::fflush(stdout);
  return tally.failed == 0;
}

}  // namespace
}  // namespace comet

int main(int argc, char** argv) {
  std::vector<float> bounds = {0.03f, 0.25f, 1e-3f, comet::kSmallestNormal,
                               7e37f};
  if (argc > 1) bounds.clear();
  for (int k = 1; k < argc; ++k)
    bounds.push_back(std::strtof(argv[k], nullptr));
  bool passed = true;
  for (const float bound : bounds) {
    passed &= comet::CheckAll<comet::Rounding::kNearest>(bound);
    passed &= comet::CheckAll<comet::Rounding::kDither>(bound);
  }
  std::printf("%s (%s)\n", passed ? "ok" : "FAILED", comet::CodecIsa());
  return passed ? 0 : 1;
}

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

template <Rounding kRounding>
void CheckPart(int64_t part, const Quantiser& q, Tally* tally) {
  constexpr DType kType = DType::kFloat32;
  // Neighbouring patterns share a block in even parts; in odd ones blocks mix
  // elements that lie 2^20 apart.
  std::vector<float> x(kPart), y(kPart);
  for (int64_t k = 0; k < kPart; ++k) {
    const int64_t pattern =
        part % 2 == 0 ? part * kPart + k : (part * kPart + k * 4097 % kPart);
    x[static_cast<size_t>(k)] = FloatFromBits(static_cast<uint32_t>(pattern));
  }
  int64_t alone = 0;
  int64_t failed = 0;
  for (int64_t k = 0; k < kPart; ++k) {
    const float value = x[static_cast<size_t>(k)];
    const float f = DitherOffset(
        DitherHash(static_cast<uint32_t>(part), static_cast<uint32_t>(k)),
        false);
    const QuantisedElement e = QuantiseElement<kType, kRounding>(value, f, q);
    if (!e.accepted) continue;
    const float restored =
        e.code == 0 ? 0.0f
                    : RestoreStep(StepFromCode(e.code), q.step, f, kRounding);
    failed += !Allowed(kType, kRounding, value, restored, q.error_bound);
    alone += e.code != 0;
  }
  CompressOptions options;
  options.n = kPart;
  options.row_length = 64;
  options.error_bound = q.error_bound;
  options.rounding = kRounding;
  options.seed = static_cast<uint64_t>(part);
  std::vector<uint8_t> stream;
  COMET_CHECK(CompressTo(options, x.data(), Serial, &stream).ok);
  COMET_CHECK(Decompress(stream.data(), static_cast<int64_t>(stream.size()),
                         kType, kPart, Serial, y.data())
                  .ok);
  for (size_t k = 0; k < x.size(); ++k) {
    failed += !Allowed(kType, kRounding, x[k], y[k], q.error_bound);
  }
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

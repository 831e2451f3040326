// SPDX-License-Identifier: Apache-2.0
//
// Damaged streams: the CUDA codec refuses what the CPU codec refuses, reads
// nothing outside of them, and leaves NaN behind.

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "codec_test_case.h"
#include "custom_ops/codec/checksum.h"
#include "custom_ops/cuda/launchers.h"
#include "kernels_test_util.h"

namespace comet {
namespace {

bool AllNan(DType dtype, const DeviceMemory& out) {
  const int64_t n = static_cast<int64_t>(out.size()) / ElementBytes(dtype);
  for (int64_t i = 0; i < n; ++i) {
    float value;
    if (dtype == DType::kFloat32) {
      value = reinterpret_cast<const float*>(out.data())[i];
    } else {
      const uint16_t bits = reinterpret_cast<const uint16_t*>(out.data())[i];
      value =
          dtype == DType::kFloat16 ? HalfToFloat(bits) : BFloat16ToFloat(bits);
    }
    if (!std::isnan(value)) return false;
  }
  return true;
}

// Both codecs must refuse the stream, or both take it.
void CheckVerdict(const Case& c, const DeviceMemory& stream,
                  const std::string& what) {
  const auto bytes = static_cast<int64_t>(stream.size());
  DeviceMemory expected(static_cast<size_t>(c.n * ElementBytes(c.dtype)));
  const Status status =
      Decompress(stream.data(), bytes, c.dtype, c.n, Serial, expected.data());
  DeviceMemory out(expected.size());
  DeviceMemory workspace(cuda::DecodeWorkspaceBytes());
  DeviceValue<int32_t> verdict_memory(-1);
  const int error = cuda::LaunchDecompress(nullptr, c.dtype, stream.data(),
                                           bytes, c.n, workspace.data(),
                                           out.data(), verdict_memory.get());
  COMET_CHECK(error == 0 && Finish() == 0, c.Name() + what);
  const int32_t verdict = verdict_memory.value();
  COMET_CHECK(status.ok == (verdict == 0), c.Name() + what + " verdict " +
                                               std::to_string(verdict) + " " +
                                               status.message);
  if (status.ok) {
    COMET_CHECK(Same(out, expected), c.Name() + what);
  } else {
    COMET_CHECK(AllNan(c.dtype, out), c.Name() + what);
  }
}

void TestDamage() {
  SetSchedule(Schedules(0)[0]);
  std::mt19937 random(9);
  for (DType dtype : kTypes) {
    const Case c = {dtype,           Rounding::kNearest,
                    40 * 150 + 3,    40,
                    0.02f,           false,
                    Content::kMixed, 0};
    const DeviceMemory x = MakeTensor(dtype, c.n, c.row_length, c.content, 3);
    int64_t nonzeros;
    float bound;
    const DeviceMemory good = CompressOnCpu(c, x, &nonzeros, &bound);
    for (int k = 0; k < 250; ++k) {
      DeviceMemory bad(good.data(), good.size());
      // Half of the damage falls on header and tables.
      const size_t limit = k % 2 == 0 ? 200 : good.size();
      const int count = k % 5 == 0 ? 8 : 1;
      for (int j = 0; j < count; ++j) {
        bad.data()[random() % limit] ^=
            static_cast<uint8_t>(k % 3 == 0 ? random() : 1u << random() % 8);
      }
      CheckVerdict(c, bad, " damage " + std::to_string(k));
    }
    for (size_t cut :
         {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{127},
          size_t{128}, good.size() - 64, good.size() - 1}) {
      CheckVerdict(c, DeviceMemory(good.data(), cut),
                   " cut to " + std::to_string(cut));
    }
    Case wrong = c;
    wrong.n -= 1;
    CheckVerdict(wrong, good, " wrong n");
    wrong = c;
    wrong.dtype = dtype == DType::kFloat32 ? DType::kFloat16 : DType::kFloat32;
    CheckVerdict(wrong, good, " wrong dtype");
  }
}

// Damage that the checksum would catch is made good again, so that the tile
// decoder itself sees nonsense.
void TestForgedTiles() {
  SetSchedule(Schedules(0).back());
  std::mt19937 random(19);
  const Case c = {DType::kFloat32, Rounding::kNearest, 32 * 128, 32, 0.02f,
                  false,           Content::kMixed,    0};
  const DeviceMemory x = MakeTensor(c.dtype, c.n, c.row_length, c.content, 4);
  int64_t nonzeros;
  float bound;
  const DeviceMemory good = CompressOnCpu(c, x, &nonzeros, &bound);
  const size_t start = static_cast<size_t>(TilesStart(1));
  const size_t size = good.size() - start - kPaddingBytes;
  for (int k = 0; k < 600; ++k) {
    DeviceMemory bad(good.data(), good.size());
    for (int j = 0; j <= k % 3; ++j) {
      // Mostly block headers and the bytes that say what follows.
      const size_t at = k % 4 == 0 ? random() % size : random() % 80;
      bad.data()[start + at] = static_cast<uint8_t>(random());
    }
    const uint64_t checksum =
        HeaderChecksum(bad.data()) +
        TileChecksum(
            ChecksumSum(bad.data() + start, static_cast<uint32_t>(size)), 0);
    std::memcpy(bad.data() + 56, &checksum, sizeof checksum);
    CheckVerdict(c, bad, " forgery " + std::to_string(k));
  }
}

}  // namespace
}  // namespace comet

int main() {
  comet::TestDamage();
  comet::TestForgedTiles();
  std::printf("damaged streams: all tests passed\n");
  return 0;
}

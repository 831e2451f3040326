// SPDX-License-Identifier: Apache-2.0
//
// One compression to test, and the reference's stream for it.

#ifndef COMET_TF_TESTS_CUDA_EMULATOR_CODEC_TEST_CASE_H_
#define COMET_TF_TESTS_CUDA_EMULATOR_CODEC_TEST_CASE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/codec/format.h"
#include "custom_ops/cpu/codec.h"
#include "kernels_test_util.h"

namespace comet {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr Rounding kRoundings[] = {Rounding::kNearest, Rounding::kDither};

struct Case {
  DType dtype;
  Rounding rounding;
  int64_t n;
  int64_t row_length;
  float error_bound;
  bool relative;
  Content content;
  uint64_t seed;

  std::string Name() const {
    return "dtype=" + std::to_string(static_cast<int>(dtype)) +
           " rounding=" + std::to_string(static_cast<int>(rounding)) +
           " n=" + std::to_string(n) +
           " row_length=" + std::to_string(row_length) +
           " bound=" + std::to_string(error_bound) +
           (relative ? " relative" : "") +
           " content=" + std::to_string(static_cast<int>(content)) +
           " seed=" + std::to_string(seed);
  }
};

inline DeviceMemory CompressOnCpu(const Case& c, const DeviceMemory& x,
                                  int64_t* nonzeros, float* absolute_bound) {
  CompressOptions options;
  options.dtype = c.dtype;
  options.n = c.n;
  options.row_length = c.row_length;
  options.rounding = c.rounding;
  options.seed = c.seed;
  options.error_bound = c.error_bound;
  if (c.relative) {
    float range = 0;
    const Status status = ValueRange(c.dtype, x.data(), c.n, Serial, &range);
    COMET_CHECK(status.ok, c.Name() + status.message);
    options.error_bound = RelativeBound(c.error_bound, range);
  }
  std::vector<std::unique_ptr<uint8_t[]>> chunks;
  Compressor compressor;
  const Status status =
      compressor.Encode(options, x.data(), Serial, [&](size_t bytes) {
        chunks.emplace_back(new uint8_t[bytes]);
        return chunks.back().get();
      });
  COMET_CHECK(status.ok, c.Name() + status.message);
  DeviceMemory stream(static_cast<size_t>(compressor.stream_bytes()));
  compressor.Write(stream.data(), Serial);
  *nonzeros = compressor.nonzeros();
  *absolute_bound = options.error_bound;
  return stream;
}

}  // namespace comet

#endif  // COMET_TF_TESTS_CUDA_EMULATOR_CODEC_TEST_CASE_H_

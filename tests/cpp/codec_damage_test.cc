// SPDX-License-Identifier: Apache-2.0
// Damaged streams give an error, whatever the damage: every single bit flip,
// every truncation, random bytes, the wrong type or size. Streams sit in heap
// buffers of their exact size, so the sanitizer sees any over-read.
#include <random>

#include "tests/cpp/codec_test_util.h"

namespace comet {
namespace {

struct Sample {
  CompressOptions options;
  std::vector<uint8_t> stream;
};

Sample MakeSample(DType dtype, Rounding rounding, int64_t n,
                  int64_t row_length) {
  std::mt19937 random(static_cast<uint32_t>(n));
  std::normal_distribution<float> normal;
  const int size = ElementBytes(dtype);
  std::vector<uint8_t> x(static_cast<size_t>(n * size));
  for (int64_t k = 0; k < n; ++k) {
    // All kinds of blocks: dense, sparse, zero, raw.
    float v = normal(random);
    switch (k / (8 * row_length) % 5) {
      case 1:
        v = v > 1.2f ? v : 0.0f;
        break;
      case 2:
        v = 0.0f;
        break;
      case 3:
        v = v * 1e12f;
        break;
      case 4:
        v = 3.0f + 0.05f * v;
        break;
    }
    if (dtype == DType::kFloat32) {
      StoreFloat(&x, k, v);
    } else {
      const uint16_t bits = FloatToHalf(v, Rounding::kDither);
      std::memcpy(&x[static_cast<size_t>(2 * k)], &bits, 2);
    }
  }
  Sample sample;
  sample.options.dtype = dtype;
  sample.options.n = n;
  sample.options.row_length = row_length;
  sample.options.error_bound = 0.05f;
  sample.options.rounding = rounding;
  sample.options.seed = 9;
  COMET_CHECK(CompressTo(sample.options, x.data(), Serial, &sample.stream).ok);
  return sample;
}

// Decompresses an exact copy; returns whether it went well.
bool Decodes(const uint8_t* stream, size_t bytes, DType dtype, int64_t n,
             std::string* message = nullptr) {
  const std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes]);
  if (bytes != 0) std::memcpy(copy.get(), stream, bytes);
  const std::unique_ptr<uint8_t[]> out(
      new uint8_t[static_cast<size_t>(n * ElementBytes(dtype))]);
  const Status status = Decompress(copy.get(), static_cast<int64_t>(bytes),
                                   dtype, n, Serial, out.get());
  COMET_CHECK(status.ok == status.message.empty());
  if (message != nullptr) *message = status.message;
  const Status sign =
      SignGradient(copy.get(), static_cast<int64_t>(bytes), dtype, n, 0.0f,
                   out.get(), Serial, out.get());
  COMET_CHECK(sign.ok == status.ok);
  return status.ok;
}

void CheckFlips(const Sample& sample) {
  std::vector<uint8_t> stream = sample.stream;
  const DType dtype = sample.options.dtype;
  COMET_CHECK(Decodes(stream.data(), stream.size(), dtype, sample.options.n));
  for (size_t k = 0; k < stream.size(); ++k) {
    for (int bit = 0; bit < 8; ++bit) {
      stream[k] ^= static_cast<uint8_t>(1 << bit);
      COMET_CHECK(
          !Decodes(stream.data(), stream.size(), dtype, sample.options.n));
      stream[k] ^= static_cast<uint8_t>(1 << bit);
    }
  }
}

void CheckTruncations(const Sample& sample) {
  for (size_t bytes = 0; bytes < sample.stream.size(); ++bytes) {
    COMET_CHECK(!Decodes(sample.stream.data(), bytes, sample.options.dtype,
                         sample.options.n));
  }
  std::vector<uint8_t> longer = sample.stream;
  longer.push_back(0);
  COMET_CHECK(!Decodes(longer.data(), longer.size(), sample.options.dtype,
                       sample.options.n));
}

void CheckRandom(const Sample& sample) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::vector<uint8_t> stream = sample.stream;
    const int changes = 1 + static_cast<int>(random() % 8);
    for (int k = 0; k < changes; ++k) {
      // A run of bytes anywhere; half the time in header and tables.
      const size_t limit = random() % 2 ? stream.size() : 80;
      size_t at = random() % limit;
      for (size_t run = random() % 6 + 1; run > 0 && at < stream.size();
           --run) {
        stream[at++] = static_cast<uint8_t>(random());
      }
    }
    if (stream == sample.stream) continue;
    COMET_CHECK(!Decodes(stream.data(), stream.size(), sample.options.dtype,
                         sample.options.n));
  }
  std::vector<uint8_t> noise(4096);
  for (auto& b : noise) b = static_cast<uint8_t>(random());
  COMET_CHECK(!Decodes(noise.data(), noise.size(), DType::kFloat32, 100));
}

void CheckExpectations(const Sample& sample) {
  const std::vector<uint8_t>& s = sample.stream;
  const int64_t n = sample.options.n;
  std::string message;
  COMET_CHECK(!Decodes(s.data(), s.size(), DType::kBFloat16, n, &message));
  COMET_CHECK(message.find("type") != std::string::npos);
  COMET_CHECK(
      !Decodes(s.data(), s.size(), sample.options.dtype, n + 1, &message));
  COMET_CHECK(message.find(std::to_string(n)) != std::string::npos);
  std::vector<uint8_t> newer = s;
  newer[4] = kFormatVersion + 1;
  COMET_CHECK(
      !Decodes(newer.data(), newer.size(), sample.options.dtype, n, &message));
  COMET_CHECK(message.find("version " + std::to_string(newer[4])) !=
              std::string::npos);
}

}  // namespace
}  // namespace comet

int main() {
  using comet::DType;
  using comet::Rounding;
  const comet::Sample samples[] = {
      comet::MakeSample(DType::kFloat32, Rounding::kNearest, 1600, 40),
      comet::MakeSample(DType::kFloat16, Rounding::kDither, 1280, 32),
      comet::MakeSample(DType::kFloat32, Rounding::kNearest, 0, 32),
  };
  for (const comet::Sample& sample : samples) {
    comet::CheckFlips(sample);
    comet::CheckTruncations(sample);
    comet::CheckRandom(sample);
    comet::CheckExpectations(sample);
  }
  std::printf("ok (%s)\n", comet::CodecIsa());
  return 0;
}

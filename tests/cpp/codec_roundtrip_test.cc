// SPDX-License-Identifier: Apache-2.0
// Round trips of many shapes and kinds of data: every element is within the
// bound, every element is written, nothing beside the buffers is touched.
#include <cmath>
#include <random>

#include "tests/cpp/codec_test_util.h"

namespace comet {
namespace {

enum class Data { kZeros, kRelu, kSmooth, kNoise, kWild, kConstant, kSigned };
constexpr int kDataKinds = 7;

float Sample(Data data, int64_t k, std::mt19937* random) {
  std::normal_distribution<float> normal;
  switch (data) {
    case Data::kZeros:
      return 0.0f;
    case Data::kRelu: {
      const float v = normal(*random);
      return v > 0.4f ? v : 0.0f;
    }
    case Data::kSmooth:
      return std::sin(0.01f * static_cast<float>(k / 32)) + 2.0f;
    case Data::kNoise:
      return normal(*random);
    case Data::kWild:
      return FloatFromBits(static_cast<uint32_t>((*random)()));
    case Data::kConstant:
      return -0.75f;
    case Data::kSigned:
      return (*random)() % 4 == 0 ? normal(*random) : -0.0f;
  }
  return 0.0f;
}

void RoundTrip(DType dtype, Rounding rounding, int64_t n, int64_t row_length,
               float bound, Data data) {
  const int size = ElementBytes(dtype);
  std::mt19937 random(static_cast<uint32_t>(n + 7 * row_length));
  // Exact-size heap buffers, so that the sanitizer sees any over-read; their
  // starts are odd, so that nothing can rely on alignment.
  const size_t bytes = static_cast<size_t>(n * size);
  std::unique_ptr<uint8_t[]> input(new uint8_t[bytes + 1]);
  uint8_t* x = input.get() + 1;
  for (int64_t k = 0; k < n; ++k) {
    const float v = Sample(data, k, &random);
    if (dtype == DType::kFloat32) {
      std::memcpy(x + 4 * k, &v, 4);
    } else {
      const uint16_t h = dtype == DType::kFloat16
                             ? FloatToHalf(v, Rounding::kDither)
                             : FloatToBFloat16(v, Rounding::kNearest);
      std::memcpy(x + 2 * k, &h, 2);
    }
  }
  CompressOptions options;
  options.dtype = dtype;
  options.n = n;
  options.row_length = row_length;
  options.error_bound = bound;
  options.rounding = rounding;
  options.seed = 12345;
  std::vector<uint8_t> stream;
  const Status encoded = CompressTo(options, x, Serial, &stream);
  COMET_CHECK(encoded.ok);
  const int64_t total = static_cast<int64_t>(stream.size());
  COMET_CHECK(total <= MaxStreamBytes(dtype, n, row_length));

  StreamInfo info;
  COMET_CHECK(ReadStreamInfo(stream.data(), total, &info).ok);
  COMET_CHECK(info.n == n && info.row_length == row_length);
  COMET_CHECK(info.error_bound == bound && info.bytes == total);
  std::unique_ptr<uint8_t[]> output(new uint8_t[bytes + 1]);
  uint8_t* y = output.get() + 1;
  for (const int poison : {0xAA, 0x55}) {
    std::memset(y, poison, bytes);
    const Status decoded =
        Decompress(stream.data(), total, dtype, n, Serial, y);
    COMET_CHECK(decoded.ok);
    int64_t nonzeros = 0;
    for (int64_t k = 0; k < n; ++k) {
      const float from = ElementAt(dtype, x, k);
      const float to = ElementAt(dtype, y, k);
      COMET_CHECK(Allowed(dtype, rounding, from, to, bound));
      nonzeros += !IsExactZero(from);
    }
    COMET_CHECK(nonzeros == info.nonzeros);
  }
  // The sign gradient, beside the input and in place.
  std::vector<uint8_t> dy(bytes), dx(bytes);
  for (auto& b : dy) b = static_cast<uint8_t>(random());
  COMET_CHECK(SignGradient(stream.data(), total, dtype, n, 0.0f, dy.data(),
                           Serial, dx.data())
                  .ok);
  for (int64_t k = 0; k < n; ++k) {
    const float from = ElementAt(dtype, x, k);
    const bool positive = rounding == Rounding::kDither
                              ? !IsExactZero(from)
                              : from > 0 && !IsExactZero(from);
    const bool raw = rounding == Rounding::kDither && from < 0;
    if (raw || from != from) continue;  // dither: sign kept in RAW blocks only
    const uint8_t zeros[4] = {};
    const size_t at = static_cast<size_t>(k * size);
    COMET_CHECK(std::memcmp(&dx[at], positive ? &dy[at] : zeros,
                            static_cast<size_t>(size)) == 0);
  }
  COMET_CHECK(SignGradient(stream.data(), total, dtype, n, 0.0f, dy.data(),
                           Serial, dy.data())
                  .ok);
  COMET_CHECK(dy == dx);
}

}  // namespace
}  // namespace comet

int main() {
  using comet::DType;
  using comet::Rounding;
  const int64_t shapes[][2] = {
      {0, 32},        {1, 32},        {31, 32},    {33, 32},
      {255, 32},      {256, 32},      {257, 32},   {4095, 32},
      {4096, 32},     {4097, 32},     {5, 3},      {1000, 7},
      {70 * 130, 70}, {64 * 129, 64}, {9999, 300}, {40 * 260, 40},
      {33 * 8, 33},   {1, 1000},      {999, 1},    {20000, 640}};
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Rounding rounding : {Rounding::kNearest, Rounding::kDither}) {
      for (const auto& shape : shapes) {
        for (const float bound : {0.1f, 0.0041f, 0.25f, 30.0f, 1e-6f, 2e-38f}) {
          for (int data = 0; data < comet::kDataKinds; ++data) {
            comet::RoundTrip(dtype, rounding, shape[0], shape[1], bound,
                             static_cast<comet::Data>(data));
          }
        }
      }
    }
  }
  std::printf("ok (%s)\n", comet::CodecIsa());
  return 0;
}

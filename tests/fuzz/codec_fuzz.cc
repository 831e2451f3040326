// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of the codec. The first input byte picks one of three ways:
// any bytes as a stream; any bytes as tiles, past the checksum, on every
// instruction set; any bytes as a tensor that makes the round trip.
#include <algorithm>

#include "custom_ops/codec/stream.h"
#include "custom_ops/cpu/codec_ieee.h"
#include "custom_ops/cpu/codec_kernels.h"
#include "tests/cpp/codec_test_util.h"

namespace comet {
namespace {

constexpr int64_t kMaxFuzzElements = 1 << 18;

// Takes numbers off the front of the input.
struct Input {
  const uint8_t* data;
  size_t size;

  template <class T>
  T Take() {
    T value{};
    const size_t bytes = std::min(size, sizeof value);
    std::memcpy(&value, data, bytes);
    data += bytes;
    size -= bytes;
    return value;
  }
};

// A heap copy of exactly these bytes, so that the sanitizer sees over-reads.
std::unique_ptr<uint8_t[]> Copy(const uint8_t* data, size_t size) {
  std::unique_ptr<uint8_t[]> copy(new uint8_t[size]);
  if (size != 0) std::memcpy(copy.get(), data, size);
  return copy;
}

void FuzzStream(Input input) {
  const std::unique_ptr<uint8_t[]> stream = Copy(input.data, input.size);
  const int64_t bytes = static_cast<int64_t>(input.size);
  StreamInfo info;
  if (!ReadStreamInfo(stream.get(), bytes, &info).ok) return;
  COMET_CHECK(info.bytes == bytes);
  if (info.n > kMaxFuzzElements) return;
  const size_t raw = static_cast<size_t>(info.n * ElementBytes(info.dtype));
  const std::unique_ptr<uint8_t[]> out(new uint8_t[raw]);
  (void)Decompress(stream.get(), bytes, info.dtype, info.n, Serial, out.get());
  (void)SignGradient(stream.get(), bytes, info.dtype, info.n, 0.0f, out.get(),
                     Serial, out.get());
  COMET_CHECK(!Decompress(stream.get(), bytes, info.dtype, info.n + 1, Serial,
                          out.get())
                   .ok);
}

void FuzzTiles(Input input) {
  const uint8_t kind = input.Take<uint8_t>();
  const DType dtype = static_cast<DType>(kind % 3);
  const Rounding rounding = static_cast<Rounding>(kind / 3 % 2);
  const int64_t n = 1 + input.Take<uint16_t>() % 8192;
  const int64_t row_length = 1 + input.Take<uint8_t>() % 96;
  const Geometry g = MakeGeometry(n, row_length);
  const TileUnit unit{0, 0, static_cast<int>(g.strips)};
  // All tiles share the input; each has its own exact copy and padding.
  std::unique_ptr<uint8_t[]> copies[kUnitStrips];
  TileBytes tiles[kUnitStrips];
  for (int k = 0; k < unit.strips; ++k) {
    size_t size = input.size;
    if (k + 1 < unit.strips) {
      size = std::min<size_t>(size, input.Take<uint16_t>() % 2048);
    }
    size = std::min<size_t>(std::min(size, input.size), UINT16_MAX);
    copies[k].reset(new uint8_t[size + kPaddingBytes]());
    if (size != 0) std::memcpy(copies[k].get(), input.data, size);
    tiles[k] = {copies[k].get(), static_cast<int>(size)};
    input.data += size;
    input.size -= size;
  }
  const size_t raw = static_cast<size_t>(n * ElementBytes(dtype));
  const std::unique_ptr<uint8_t[]> expected(new uint8_t[raw]());
  const std::unique_ptr<uint8_t[]> out(new uint8_t[raw]());
  DecodeJob job{
      g,      dtype,   rounding, MakeQuantiser(dtype, rounding, 0.01f),
      Mix(7), nullptr, nullptr,  0.0f};
  const ScopedIeee ieee;
  bool valid = false;
  bool first = true;
  for (const CodecKernels* kernels :
       {&PortableKernels(), Avx2Kernels(), Avx512Kernels()}) {
    if (kernels == nullptr) continue;
    uint64_t checksum = 0;
    job.out = first ? expected.get() : out.get();
    const bool ok = kernels->decode(job, unit, tiles, &checksum);
    if (!first) {
      COMET_CHECK(ok == valid);
      COMET_CHECK(!ok || std::memcmp(expected.get(), out.get(), raw) == 0);
    }
    valid = ok;
    first = false;
    job.dy = out.get();
    job.out = out.get();
    COMET_CHECK(kernels->sign_gradient(job, unit, tiles, &checksum) == ok);
  }
}

void FuzzRoundTrip(Input input) {
  CompressOptions options;
  const uint8_t kind = input.Take<uint8_t>();
  options.dtype = static_cast<DType>(kind % 3);
  options.rounding = static_cast<Rounding>(kind / 3 % 2);
  options.row_length = 1 + input.Take<uint16_t>() % 600;
  options.error_bound = input.Take<float>();
  options.seed = input.Take<uint8_t>();
  const int size = ElementBytes(options.dtype);
  options.n = static_cast<int64_t>(input.size) / size;
  const size_t raw = static_cast<size_t>(options.n * size);
  const std::unique_ptr<uint8_t[]> x = Copy(input.data, raw);
  std::vector<uint8_t> stream;
  const Status encoded = CompressTo(options, x.get(), Serial, &stream);
  const bool valid_bound = options.error_bound >= kSmallestNormal &&
                           options.error_bound <= 3.4028234e38f;
  COMET_CHECK(encoded.ok == valid_bound);
  if (!encoded.ok) return;
  const std::unique_ptr<uint8_t[]> y(new uint8_t[raw]);
  const int64_t bytes = static_cast<int64_t>(stream.size());
  COMET_CHECK(Decompress(stream.data(), bytes, options.dtype, options.n, Serial,
                         y.get())
                  .ok);
  for (int64_t k = 0; k < options.n; ++k) {
    COMET_CHECK(Allowed(
        options.dtype, options.rounding, ElementAt(options.dtype, x.get(), k),
        ElementAt(options.dtype, y.get(), k), options.error_bound));
  }
}

}  // namespace
}  // namespace comet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const comet::Input input{data + 1, size - 1};
  switch (data[0] % 3) {
    case 0:
      comet::FuzzStream(input);
      break;
    case 1:
      comet::FuzzTiles(input);
      break;
    default:
      comet::FuzzRoundTrip(input);
  }
  return 0;
}

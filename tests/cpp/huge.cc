// SPDX-License-Identifier: Apache-2.0
// A tensor of more than 2^31 elements: sizes and offsets are 64 bits wide
// everywhere. A separate command; it takes about 10 GB of memory.
#include <thread>

#include "custom_ops/cpu/codec_threads.h"
#include "tests/cpp/codec_test_util.h"

namespace {

constexpr int64_t kElements = (int64_t{1} << 31) + 12345;

// A float16 that depends on the whole index; a third of them are zeros.
uint16_t ValueAt(int64_t k) {
  const uint64_t h = comet::Mix(static_cast<uint64_t>(k));
  return h % 3 == 0 ? 0 : static_cast<uint16_t>(0x3000 + h % 0x0C00);
}

}  // namespace

int main() {
  using comet::DType;
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  comet::ThreadPool pool(threads > 0 ? threads : 1);
  const comet::ParallelFor parallel_for =
      [&](int64_t units, int64_t cycles,
          const std::function<void(int64_t, int64_t)>& fn) {
        pool.Run(units, cycles, fn);
      };
  const std::unique_ptr<uint16_t[]> x(
      new uint16_t[static_cast<size_t>(kElements)]);
  const auto for_elements =
      [&](const std::function<void(int64_t, int64_t)>& fn) {
        parallel_for(kElements, 10, fn);
      };
  for_elements([&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) x[k] = ValueAt(k);
  });
  comet::CompressOptions options;
  options.dtype = DType::kFloat16;
  options.n = kElements;
  options.row_length = 64;
  options.error_bound = 0.05f;
  std::vector<uint8_t> stream;
  const comet::Status encoded =
      comet::CompressTo(options, x.get(), parallel_for, &stream);
  COMET_CHECK(encoded.ok);
  const int64_t bytes = static_cast<int64_t>(stream.size());
  // Restored over the input, which is computed again.
  COMET_CHECK(comet::Decompress(stream.data(), bytes, options.dtype, kElements,
                                parallel_for, x.get())
                  .ok);
  std::atomic<int64_t> wrong{0};
  for_elements([&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      wrong += !comet::Allowed(options.dtype, options.rounding,
                               comet::HalfToFloat(ValueAt(k)),
                               comet::HalfToFloat(x[k]), options.error_bound);
    }
  });
  COMET_CHECK(wrong == 0);
  std::printf("ok: %lld elements in %lld bytes\n",
              static_cast<long long>(kElements), static_cast<long long>(bytes));
  return 0;
}

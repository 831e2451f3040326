// SPDX-License-Identifier: Apache-2.0
//
// Masks, pooling and the sum of squares on the emulated GPU against the CPU's.

#include <algorithm>
#include <cmath>

#include "custom_ops/cpu/channels.h"
#include "custom_ops/cpu/mask.h"
#include "custom_ops/cpu/pooling.h"
#include "custom_ops/cpu/reduce.h"
#include "custom_ops/cuda/launchers.h"
#include "kernels_test_util.h"

namespace comet {
namespace {

// Calls body(dtype, T{}) for every element type.
template <typename Body>
void ForEachType(Body body) {
  body(DType::kFloat32, float{});
  body(DType::kFloat16, Half{});
  body(DType::kBFloat16, BFloat16{});
}

template <typename Body>
void ForEachSchedule(Body body) {
  for (const Schedule& schedule : Schedules(1)) {
    SetSchedule(schedule);
    body();
  }
}

template <typename T>
void CheckMasks(DType dtype, int64_t n, float lower, float upper) {
  const std::string name = "dtype=" + std::to_string(static_cast<int>(dtype)) +
                           " n=" + std::to_string(n) +
                           " upper=" + std::to_string(upper);
  DeviceMemory x = MakeTensor(dtype, n, 32, Content::kSpecial, 5);
  const DeviceMemory dy = MakeTensor(dtype, n, 32, Content::kNoise, 6);
  DeviceMemory expected(static_cast<size_t>(MaskBytes(n)));
  PackMask(x.as<const T>(), n, lower, upper, Serial, expected.data());
  ForEachSchedule([&] {
    DeviceMemory mask(expected.size());
    COMET_CHECK(cuda::LaunchPackMask(nullptr, dtype, x.data(), n, lower, upper,
                                     mask.data()) == 0 &&
                    Finish() == 0,
                name);
    COMET_CHECK(Same(mask, expected), name);
    for (float slope : {0.0f, 0.3f}) {
      DeviceMemory expected_dx(dy.size());
      MaskGradient(mask.data(), reinterpret_cast<const T*>(dy.data()), n, slope,
                   Serial, expected_dx.as<T>());
      DeviceMemory dx(dy.data(), dy.size());  // in place
      COMET_CHECK(
          cuda::LaunchMaskGradient(nullptr, dtype, mask.data(), dx.data(), n,
                                   slope, dx.data()) == 0 &&
              Finish() == 0,
          name);
      COMET_CHECK(Same(dx, expected_dx), name);
    }
  });
}

void TestMasks() {
  for (int64_t n :
       {0, 1, 7, 8, 9, 31, 32, 33, 1023, 1024, 1025, 8192, 8200, 40000}) {
    ForEachType([&](DType dtype, auto zero) {
      using T = decltype(zero);
      CheckMasks<T>(dtype, n, 0.0f, INFINITY);
      CheckMasks<T>(dtype, n, 0.0f, 1.0f);
    });
  }
}

// --- Pooling ---

PoolGeometry MakePool(int64_t batch, int64_t channels, PoolGeometry::Dims input,
                      PoolGeometry::Dims window, PoolGeometry::Dims strides,
                      bool same) {
  PoolGeometry g;
  g.batch = batch;
  g.channels = channels;
  g.input = input;
  g.window = window;
  g.strides = strides;
  for (size_t d = 0; d < 3; ++d) {
    if (same) {
      g.output[d] = (input[d] + strides[d] - 1) / strides[d];
      g.padding[d] = std::max<int64_t>(0, (g.output[d] - 1) * strides[d] +
                                              window[d] - input[d]) /
                     2;
    } else {
      g.output[d] = (input[d] - window[d]) / strides[d] + 1;
    }
  }
  return g;
}

cuda::PoolShape ShapeOf(const PoolGeometry& g) {
  cuda::PoolShape s = {};
  s.batch = g.batch;
  s.channels = g.channels;
  for (size_t d = 0; d < 3; ++d) {
    s.input[d] = g.input[d];
    s.output[d] = g.output[d];
    s.window[d] = g.window[d];
    s.strides[d] = g.strides[d];
    s.padding[d] = g.padding[d];
  }
  return s;
}

template <typename T>
void CheckPool(DType dtype, const PoolGeometry& g) {
  const std::string name = "dtype=" + std::to_string(static_cast<int>(dtype)) +
                           " channels=" + std::to_string(g.channels) +
                           " input=" + std::to_string(g.input[1]) + "x" +
                           std::to_string(g.input[2]);
  const int64_t inputs =
      g.batch * g.input[0] * g.input[1] * g.input[2] * g.channels;
  const int64_t outputs = g.OutputPixels() * g.channels;
  // Ties are common in rectified data, and the first one must win.
  DeviceMemory x = MakeTensor(dtype, inputs, 32, Content::kRectified, 7);
  for (int64_t i = 0; i < inputs; i += 61) {
    SetElement(dtype, &x, i, Narrow(dtype, i % 2 == 0 ? NAN : INFINITY));
  }
  DeviceMemory dy = MakeTensor(dtype, outputs, 32, Content::kNoise, 8);
  DeviceMemory expected(static_cast<size_t>(g.PositionBytes()));
  PackPoolPositions(g, x.as<const T>(), Serial, expected.data());
  DeviceMemory expected_dx(x.size());
  PoolGradient(g, expected.data(), dy.as<const T>(), Serial,
               expected_dx.as<T>());
  const cuda::PoolShape shape = ShapeOf(g);
  ForEachSchedule([&] {
    DeviceMemory positions(expected.size());
    COMET_CHECK(cuda::LaunchPackPoolPositions(nullptr, dtype, shape, x.data(),
                                              positions.data()) == 0 &&
                    Finish() == 0,
                name);
    COMET_CHECK(Same(positions, expected), name);
    DeviceMemory dx(x.size());
    COMET_CHECK(
        cuda::LaunchPoolGradient(nullptr, dtype, shape, positions.data(),
                                 dy.data(), dx.data()) == 0 &&
            Finish() == 0,
        name);
    COMET_CHECK(Same(dx, expected_dx), name);
  });
}

void TestPooling() {
  const PoolGeometry pools[] = {
      MakePool(2, 3, {1, 8, 8}, {1, 2, 2}, {1, 2, 2}, false),
      MakePool(1, 16, {1, 9, 7}, {1, 3, 3}, {1, 2, 2}, true),
      MakePool(1, 33, {1, 5, 6}, {1, 3, 2}, {1, 1, 1}, true),
      MakePool(2, 5, {1, 1, 17}, {1, 1, 4}, {1, 1, 3}, false),
      MakePool(1, 2, {4, 5, 4}, {2, 3, 2}, {1, 2, 2}, true),
      MakePool(1, 9, {1, 6, 6}, {1, 2, 2}, {1, 3, 3}, true),
      MakePool(1, 8, {1, 20, 20}, {1, 18, 17}, {1, 1, 2}, false),
      MakePool(2, 4, {1, 3, 3}, {1, 1, 1}, {1, 2, 2}, false),
      MakePool(1, 0, {1, 4, 4}, {1, 2, 2}, {1, 2, 2}, false),
  };
  for (const PoolGeometry& g : pools) {
    ForEachType(
        [&](DType dtype, auto zero) { CheckPool<decltype(zero)>(dtype, g); });
  }
}

// --- Sum of squares ---

template <typename T>
void CheckSum(DType dtype, int64_t n) {
  DeviceMemory x = MakeTensor(dtype, n, 32, Content::kNoise, 9);
  const double expected = SumOfSquares(x.as<const T>(), n, Serial);
  ForEachSchedule([&] {
    DeviceMemory workspace(cuda::SumOfSquaresWorkspaceBytes());
    for (bool enabled : {true, false}) {
      DeviceValue<float> result(NAN);
      DeviceValue<bool> flag(enabled);
      COMET_CHECK(cuda::LaunchSumOfSquares(
                      nullptr, dtype, enabled ? x.data() : nullptr, n,
                      flag.get(), workspace.data(), result.get()) == 0 &&
                      Finish() == 0,
                  std::to_string(n));
      const float sum = result.value();
      // Both add in double, so the order shows in the last bit at most.
      const double want = enabled ? expected : 0.0;
      COMET_CHECK(std::abs(sum - want) <= 1.2e-7 * want,
                  std::to_string(n) + " gave " + std::to_string(sum));
    }
  });
}

void TestSumOfSquares() {
  for (int64_t n : {0, 1, 255, 2049, 70000}) {
    ForEachType(
        [&](DType dtype, auto zero) { CheckSum<decltype(zero)>(dtype, n); });
  }
}

// --- Channel sums ---

void TestChannelSums() {
  constexpr int64_t kRows[] = {0, 1, 63, 64, 65, 3000};
  constexpr int64_t kChannels[] = {0, 1, 31, 32, 33, 300};
  for (int64_t rows : kRows) {
    for (int64_t channels : kChannels) {
      const int64_t n = rows * channels;
      DeviceMemory dy = MakeTensor(DType::kFloat32, n, 32, Content::kNoise, 9);
      DeviceMemory x = MakeTensor(DType::kFloat32, n, 32, Content::kNoise, 7);
      std::vector<float> sums(channels), products(channels);
      ChannelSums(dy.as<const float>(), x.as<const float>(), rows, channels,
                  Serial, sums.data(), products.data());
      ForEachSchedule([&] {
        DeviceMemory workspace(cuda::ChannelSumsWorkspaceBytes(rows, channels));
        DeviceMemory found_sums(channels * sizeof(float));
        DeviceMemory found_products(channels * sizeof(float));
        COMET_CHECK(
            cuda::LaunchChannelSums(nullptr, dy.as<const float>(),
                                    x.as<const float>(), rows, channels,
                                    workspace.data(), found_sums.as<float>(),
                                    found_products.as<float>()) == 0 &&
                Finish() == 0,
            "");
        for (int64_t c = 0; c < channels; ++c) {
          // The CPU adds 32 rows at a time in single precision.
          const float slack = 1e-4f * static_cast<float>(rows);
          COMET_CHECK(std::abs(found_sums.as<float>()[c] - sums[c]) <= slack,
                      std::to_string(rows));
          COMET_CHECK(
              std::abs(found_products.as<float>()[c] - products[c]) <= slack,
              std::to_string(rows));
        }
      });
    }
  }
}

void TestChannelLine() {
  for (int64_t rows : {0, 1, 2, 700}) {
    for (int64_t channels : {1, 3, 64}) {
      const int64_t n = rows * channels;
      DeviceMemory x = MakeTensor(DType::kFloat32, n, 32, Content::kNoise, 3);
      DeviceMemory z = MakeTensor(DType::kFloat32, n, 32, Content::kNoise, 4);
      DeviceMemory a =
          MakeTensor(DType::kFloat32, channels, 32, Content::kNoise, 5);
      DeviceMemory b =
          MakeTensor(DType::kFloat32, channels, 32, Content::kNoise, 6);
      DeviceMemory c =
          MakeTensor(DType::kFloat32, channels, 32, Content::kNoise, 7);
      for (bool two : {false, true}) {
        const ChannelLineInput inputs[2] = {
            {x.as<const float>(), a.as<const float>()},
            {two ? z.as<const float>() : nullptr, b.as<const float>()}};
        std::vector<float> want(n);
        ChannelLine(inputs[0], inputs[1], c.as<const float>(), rows, channels,
                    Serial, want.data());
        ForEachSchedule([&] {
          DeviceMemory y(n * sizeof(float));
          COMET_CHECK(cuda::LaunchChannelLine(
                          nullptr, inputs[0].x, inputs[0].slope, inputs[1].x,
                          inputs[1].slope, c.as<const float>(), rows, channels,
                          y.as<float>()) == 0 &&
                          Finish() == 0,
                      "");
          COMET_CHECK(n == 0 || std::memcmp(y.as<float>(), want.data(),
                                            n * sizeof(float)) == 0,
                      std::to_string(n));
        });
      }
    }
  }
}

void TestHostFunction() {
  int calls = 0;
  COMET_CHECK(
      cuda::EnqueueHostFunction(
          nullptr, [](void* p) { ++*static_cast<int*>(p); }, &calls) == 0 &&
          Finish() == 0,
      "");
  COMET_CHECK(calls == 1, "");
  COMET_CHECK(std::string(cuda::ErrorText(1)) == "invalid argument", "");
}

}  // namespace
}  // namespace comet

int main() {
  comet::TestMasks();
  comet::TestPooling();
  comet::TestSumOfSquares();
  comet::TestChannelSums();
  comet::TestChannelLine();
  comet::TestHostFunction();
  std::printf("tensor kernels: all tests passed\n");
  return 0;
}

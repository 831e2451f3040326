// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/cpu/reduce.h"

#include <algorithm>
#include <vector>

namespace comet {
namespace {

// Elements of one partial sum. Fixed, so that the order of additions does not
// depend on the threads.
constexpr int64_t kGrain = 1 << 15;
// Independent sums side by side, for the adders' latency.
constexpr int kLanesOfSum = 16;

template <typename T>
double GrainSum(const T* x, int64_t n) {
  double sums[kLanesOfSum] = {};
  int64_t i = 0;
  for (; i + kLanesOfSum <= n; i += kLanesOfSum) {
    for (int k = 0; k < kLanesOfSum; ++k) {
      const double value = ToFloat(x[i + k]);
      sums[k] += value * value;
    }
  }
  double sum = 0;
  for (; i < n; ++i) {
    const double value = ToFloat(x[i]);
    sum += value * value;
  }
  for (double lane : sums) sum += lane;
  return sum;
}

}  // namespace

template <typename T>
double SumOfSquares(const T* x, int64_t n, const ParallelFor& parallel_for) {
  const int64_t grains = (n + kGrain - 1) / kGrain;
  std::vector<double> sums(grains);
  parallel_for(grains, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      sums[g] = GrainSum(x + g * kGrain, std::min(kGrain, n - g * kGrain));
    }
  });
  double sum = 0;
  for (double partial : sums) sum += partial;
  return sum;
}

template double SumOfSquares<float>(const float*, int64_t, const ParallelFor&);
template double SumOfSquares<Half>(const Half*, int64_t, const ParallelFor&);
template double SumOfSquares<BFloat16>(const BFloat16*, int64_t,
                                       const ParallelFor&);

}  // namespace comet

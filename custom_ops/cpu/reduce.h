// SPDX-License-Identifier: Apache-2.0
// Sums over a whole tensor, the same for any number of threads.
#ifndef COMET_CPU_REDUCE_H_
#define COMET_CPU_REDUCE_H_

#include <cstdint>

#include "custom_ops/cpu/codec.h"
#include "custom_ops/cpu/element.h"

namespace comet {

// The sum of x^2, added up in double precision. T: float, Half, BFloat16.
template <typename T>
double SumOfSquares(const T* x, int64_t n, const ParallelFor& parallel_for);

}  // namespace comet

#endif  // COMET_CPU_REDUCE_H_

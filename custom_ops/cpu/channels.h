// SPDX-License-Identifier: Apache-2.0
// What a batch normalisation and its gradient do with each channel of a
// channels-last tensor, in one pass each.
#ifndef COMET_CPU_CHANNELS_H_
#define COMET_CPU_CHANNELS_H_

#include <cstdint>

#include "custom_ops/cpu/codec.h"

namespace comet {

// Of each channel of `rows` x `channels` elements: the sum of dy to sums, that
// of dy * x to products. The same for any number of threads.
void ChannelSums(const float* dy, const float* x, int64_t rows,
                 int64_t channels, const ParallelFor& parallel_for, float* sums,
                 float* products);

// One term of a line: x * slope, with a slope a channel. No term without x.
struct ChannelLineInput {
  const float* x;
  const float* slope;
};

// y = first.x * first.slope + second.x * second.slope + offset, where the sum
// of the second term and the offset is taken first. y may be either x.
void ChannelLine(const ChannelLineInput& first, const ChannelLineInput& second,
                 const float* offset, int64_t rows, int64_t channels,
                 const ParallelFor& parallel_for, float* y);

}  // namespace comet

#endif  // COMET_CPU_CHANNELS_H_

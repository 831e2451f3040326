// SPDX-License-Identifier: Apache-2.0
// The CPU codec: compress, decompress, and read signs of compressed tensors.
// Free of any framework: threads and memory come from the caller.
#ifndef COMET_CPU_CODEC_H_
#define COMET_CPU_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "custom_ops/codec/format.h"
#include "custom_ops/codec/status.h"
#include "custom_ops/codec/stream.h"

namespace comet {

// Runs fn(begin, end) over parts of [0, units), maybe in parallel, and returns
// when all are done.
using ParallelFor =
    std::function<void(int64_t units, int64_t cycles_per_unit,
                       const std::function<void(int64_t, int64_t)>& fn)>;

// Hands out scratch in chunks of at most 132 KiB; nullptr when out of memory.
// Calls never overlap. The caller frees the chunks after Compressor::Write.
using AllocateScratch = std::function<uint8_t*(size_t bytes)>;

struct CompressOptions {
  DType dtype = DType::kFloat32;
  int64_t n = 0;
  int64_t row_length = kLanes;
  float error_bound = 0.0f;
  Rounding rounding = Rounding::kNearest;
  uint64_t seed = 0;
};

// Largest minus smallest finite element, which relative bounds refer to. If
// that is 0 the largest magnitude; never below the smallest normal float.
Status ValueRange(DType dtype, const void* x, int64_t n,
                  const ParallelFor& parallel_for, float* range);

// The absolute bound of a fraction of a value range, kept a valid bound.
float RelativeBound(float fraction, float range);

// The row length that suits a channels-last tensor of this shape.
int64_t RowLength(const int64_t* dims, int rank);

// Encodes in one pass over the input into scratch; the exact size is then
// known, and Write copies the stream to where it is wanted.
class Compressor {
 public:
  Compressor();
  ~Compressor();
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  Status Encode(const CompressOptions& options, const void* x,
                const ParallelFor& parallel_for,
                const AllocateScratch& allocate);
  int64_t stream_bytes() const;
  int64_t nonzeros() const;
  void Write(uint8_t* stream, const ParallelFor& parallel_for);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// No stream of such a tensor is longer.
int64_t MaxStreamBytes(DType dtype, int64_t n, int64_t row_length);

using StreamInfo = StreamHeader;

// Reads and validates the header and the tables.
Status ReadStreamInfo(const uint8_t* stream, int64_t bytes, StreamInfo* info);

// Restores all elements. After an error the output's content is undefined.
Status Decompress(const uint8_t* stream, int64_t bytes, DType expect_dtype,
                  int64_t expect_n, const ParallelFor& parallel_for, void* out);

// Gradient of the ReLU family from the signs of the compressed output:
// dx = positive ? dy : slope * dy (+0 where slope is 0). dx may alias dy. A
// nonzero slope needs exact signs, that is a stream rounded to nearest.
Status SignGradient(const uint8_t* stream, int64_t bytes, DType dtype,
                    int64_t n, float slope, const void* dy,
                    const ParallelFor& parallel_for, void* dx);

// Name of the instruction set in use: "portable", "avx2" or "avx512". The
// environment variable COMET_ISA selects one of these by name.
const char* CodecIsa();

}  // namespace comet

#endif  // COMET_CPU_CODEC_H_

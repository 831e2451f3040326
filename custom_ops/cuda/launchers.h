// SPDX-License-Identifier: Apache-2.0
// What the GPU does for the ops: plain C++, no CUDA and no framework header.
//
// `stream` is a cudaStream_t. Every call only enqueues work on it; it never
// waits and never allocates. Pointers are to device memory unless a comment
// says otherwise, and a workspace belongs to the call until the stream has
// passed it. Streams and workspaces must lie at a multiple of 16 bytes; tensors
// need only the alignment of their elements. All calls return 0 or a code for
// ErrorText().
#ifndef COMET_CUDA_LAUNCHERS_H_
#define COMET_CUDA_LAUNCHERS_H_

#include <cstddef>
#include <cstdint>

#include "custom_ops/codec/format.h"

namespace comet {
namespace cuda {

const char* ErrorText(int error);

// The calling thread's device, by CUDA's number.
int GetDevice(int* device);
int SetDevice(int device);

// Calls `function(argument)` on a thread of the driver once the stream has
// come here. `function` must not call CUDA.
int EnqueueHostFunction(void* stream, void (*function)(void*), void* argument);

// --- Compress ---

struct CompressInput {
  DType dtype;
  Rounding rounding;
  const void* x;
  int64_t n;
  int64_t row_length;
  const float* error_bound;  // a bound, or a fraction of the value range
  const bool* relative;
  const int64_t* seed;
};

// What the size pass finds.
struct CompressSummary {
  int64_t stream_bytes;
  int64_t nonzeros;
  float error_bound;  // the absolute bound, or the input if that is not valid
  int32_t valid;      // 0: the bound is not finite, not positive or too small
};

size_t CompressWorkspaceBytes(int64_t n, int64_t row_length);

// Finds the size of the stream and copies the summary to `summary`, which is
// page-locked host memory.
int LaunchCompressSize(void* stream, const CompressInput& input,
                       void* workspace, CompressSummary* summary);

// Writes the stream that LaunchCompressSize() measured with the same input and
// workspace. `out` has the measured size; `info` gets raw bytes, stream bytes,
// fraction of nonzeros, absolute bound.
int LaunchCompressPack(void* stream, const CompressInput& input,
                       void* workspace, uint8_t* out, double* info);

// --- Decompress ---

// Why a stream was refused; bits.
enum DecodeError : int32_t {
  kBadHeader = 1,  // not a stream of this type and size
  kBadTables = 2,  // the tile sizes do not add up
  kBadTile = 4,    // a tile's bytes mean nothing
  kBadChecksum = 8,
  kSignsUnknown = 16,  // a slope needs signs, which a dithered stream lacks
};

size_t DecodeWorkspaceBytes();

// Restores the `n` elements of a stream of `bytes` bytes. A damaged stream
// makes every element NaN; the bits of DecodeError, 0 if there was none, are
// copied to `error`, which is page-locked host memory.
int LaunchDecompress(void* stream, DType dtype, const uint8_t* data,
                     int64_t bytes, int64_t n, void* workspace, void* out,
                     int32_t* error);

// dx = positive ? dy : slope * dy, by the signs of a stream. dx may be dy.
int LaunchSignGradient(void* stream, DType dtype, const uint8_t* data,
                       int64_t bytes, int64_t n, float slope, void* workspace,
                       const void* dy, void* dx, int32_t* error);

// --- Masks ---

// Bit i of `mask` says whether lower < x[i] < upper; an infinite `upper` is no
// limit. Writes ceil(n / 8) bytes.
int LaunchPackMask(void* stream, DType dtype, const void* x, int64_t n,
                   float lower, float upper, uint8_t* mask);

// dx = bit ? dy : slope * dy, +0 where slope is 0. dx may be dy.
int LaunchMaskGradient(void* stream, DType dtype, const uint8_t* mask,
                       const void* dy, int64_t n, float slope, void* dx);

// --- Pooling ---

// Channels-last, always three spatial dimensions; those that are missing come
// first, with size 1. As PoolGeometry of custom_ops/cpu/pooling.h, which also
// says how positions are packed.
struct PoolShape {
  int64_t batch;
  int64_t channels;
  int64_t input[3];
  int64_t output[3];
  int64_t window[3];
  int64_t strides[3];
  int64_t padding[3];
};

int LaunchPackPoolPositions(void* stream, DType dtype, const PoolShape& shape,
                            const void* x, uint8_t* positions);

int LaunchPoolGradient(void* stream, DType dtype, const PoolShape& shape,
                       const uint8_t* positions, const void* dy, void* dx);

// --- Sum of squares ---

size_t SumOfSquaresWorkspaceBytes();

// Writes the sum of squares of x, or 0 without reading x if *enabled is false.
int LaunchSumOfSquares(void* stream, DType dtype, const void* x, int64_t n,
                       const bool* enabled, void* workspace, float* sum);

// --- Channels ---

size_t ChannelSumsWorkspaceBytes(int64_t rows, int64_t channels);

// Of each channel of `rows` x `channels` elements: the sum of dy to sums, that
// of dy * x to products.
int LaunchChannelSums(void* stream, const float* dy, const float* x,
                      int64_t rows, int64_t channels, void* workspace,
                      float* sums, float* products);

// y = x * slope + (z * other + offset), or without z where that is null, with
// one slope, other and offset a channel. y may be x or z.
int LaunchChannelLine(void* stream, const float* x, const float* slope,
                      const float* z, const float* other, const float* offset,
                      int64_t rows, int64_t channels, float* y);

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_LAUNCHERS_H_

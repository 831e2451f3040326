// SPDX-License-Identifier: Apache-2.0
// A C interface to the CUDA codec for the timings in Python. Functions return 0
// or a CUDA error code; all pointers but `summary` and `error` are to device
// memory.

#include <cstdint>

#include "custom_ops/cuda/launchers.h"

#define COMET_GPU_API extern "C" __attribute__((visibility("default")))

namespace {

using comet::DType;
using comet::Rounding;

}  // namespace

typedef struct {
  int32_t dtype;
  int32_t rounding;
  const void* x;
  int64_t n;
  int64_t row_length;
  const float* error_bound;
  const bool* relative;
  const int64_t* seed;
} CometGpuInput;

static comet::cuda::CompressInput InputOf(const CometGpuInput* input) {
  return {static_cast<DType>(input->dtype),
          static_cast<Rounding>(input->rounding),
          input->x,
          input->n,
          input->row_length,
          input->error_bound,
          input->relative,
          input->seed};
}

COMET_GPU_API const char* comet_gpu_error_text(int32_t error) {
  return comet::cuda::ErrorText(error);
}

COMET_GPU_API int64_t comet_gpu_compress_workspace(int64_t n,
                                                   int64_t row_length) {
  return static_cast<int64_t>(
      comet::cuda::CompressWorkspaceBytes(n, row_length));
}

// `summary`: 24 bytes of page-locked host memory; int64 stream bytes, int64
// nonzeros, float32 absolute bound, int32 whether the bound was valid.
COMET_GPU_API int32_t comet_gpu_compress_size(void* stream,
                                              const CometGpuInput* input,
                                              void* workspace, void* summary) {
  return comet::cuda::LaunchCompressSize(
      stream, InputOf(input), workspace,
      static_cast<comet::cuda::CompressSummary*>(summary));
}

COMET_GPU_API int32_t comet_gpu_compress_pack(void* stream,
                                              const CometGpuInput* input,
                                              void* workspace, uint8_t* out,
                                              double* info) {
  return comet::cuda::LaunchCompressPack(stream, InputOf(input), workspace, out,
                                         info);
}

COMET_GPU_API int64_t comet_gpu_decode_workspace(void) {
  return static_cast<int64_t>(comet::cuda::DecodeWorkspaceBytes());
}

COMET_GPU_API int32_t comet_gpu_decompress(void* stream, int32_t dtype,
                                           const uint8_t* data, int64_t bytes,
                                           int64_t n, void* workspace,
                                           void* out, int32_t* error) {
  return comet::cuda::LaunchDecompress(stream, static_cast<DType>(dtype), data,
                                       bytes, n, workspace, out, error);
}

COMET_GPU_API int32_t comet_gpu_sign_gradient(
    void* stream, int32_t dtype, const uint8_t* data, int64_t bytes, int64_t n,
    float slope, void* workspace, const void* dy, void* dx, int32_t* error) {
  return comet::cuda::LaunchSignGradient(stream, static_cast<DType>(dtype),
                                         data, bytes, n, slope, workspace, dy,
                                         dx, error);
}

COMET_GPU_API int32_t comet_gpu_pack_mask(void* stream, int32_t dtype,
                                          const void* x, int64_t n,
                                          uint8_t* mask) {
  return comet::cuda::LaunchPackMask(stream, static_cast<DType>(dtype), x, n,
                                     0.0f, __builtin_inff(), mask);
}

COMET_GPU_API int32_t comet_gpu_mask_gradient(void* stream, int32_t dtype,
                                              const uint8_t* mask,
                                              const void* dy, int64_t n,
                                              void* dx) {
  return comet::cuda::LaunchMaskGradient(stream, static_cast<DType>(dtype),
                                         mask, dy, n, 0.0f, dx);
}

COMET_GPU_API int64_t comet_gpu_sum_workspace(void) {
  return static_cast<int64_t>(comet::cuda::SumOfSquaresWorkspaceBytes());
}

COMET_GPU_API int32_t comet_gpu_sum_of_squares(void* stream, int32_t dtype,
                                               const void* x, int64_t n,
                                               const bool* enabled,
                                               void* workspace, float* sum) {
  return comet::cuda::LaunchSumOfSquares(stream, static_cast<DType>(dtype), x,
                                         n, enabled, workspace, sum);
}

COMET_GPU_API int64_t comet_gpu_channel_sums_workspace(int64_t rows,
                                                       int64_t channels) {
  return static_cast<int64_t>(
      comet::cuda::ChannelSumsWorkspaceBytes(rows, channels));
}

COMET_GPU_API int32_t comet_gpu_channel_sums(void* stream, const float* dy,
                                             const float* x, int64_t rows,
                                             int64_t channels, void* workspace,
                                             float* sums, float* products) {
  return comet::cuda::LaunchChannelSums(stream, dy, x, rows, channels,
                                        workspace, sums, products);
}

// y = x * slope + (z * slope + slope).
COMET_GPU_API int32_t comet_gpu_channel_line(void* stream, const float* x,
                                             const float* slope, const float* z,
                                             int64_t rows, int64_t channels,
                                             float* y) {
  return comet::cuda::LaunchChannelLine(stream, x, slope, z, slope, slope, rows,
                                        channels, y);
}

// Max-pooling 2 x 2 of one image of `height` x `width` x `channels`, all even.
static comet::cuda::PoolShape PoolOf(int64_t height, int64_t width,
                                     int64_t channels) {
  return {1,         channels,  {1, height, width}, {1, height / 2, width / 2},
          {1, 2, 2}, {1, 2, 2}, {0, 0, 0}};
}

COMET_GPU_API int32_t comet_gpu_pool_positions(void* stream, int32_t dtype,
                                               int64_t height, int64_t width,
                                               int64_t channels, const void* x,
                                               uint8_t* positions) {
  return comet::cuda::LaunchPackPoolPositions(stream, static_cast<DType>(dtype),
                                              PoolOf(height, width, channels),
                                              x, positions);
}

COMET_GPU_API int32_t comet_gpu_pool_gradient(void* stream, int32_t dtype,
                                              int64_t height, int64_t width,
                                              int64_t channels,
                                              const uint8_t* positions,
                                              const void* dy, void* dx) {
  return comet::cuda::LaunchPoolGradient(stream, static_cast<DType>(dtype),
                                         PoolOf(height, width, channels),
                                         positions, dy, dx);
}

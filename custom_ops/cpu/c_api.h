// SPDX-License-Identifier: Apache-2.0
// A C interface to the codec, for tests and benchmarks (ctypes). Functions that
// can fail return 0 on success; comet_error() then explains.
#ifndef COMET_CPU_C_API_H_
#define COMET_CPU_C_API_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COMET_EXPORT __attribute__((visibility("default")))

// Threads and scratch memory for calls made one at a time.
typedef struct CometContext CometContext;

typedef struct {
  int32_t dtype;     // 0 float32, 1 float16, 2 bfloat16
  int32_t rounding;  // 0 nearest, 1 dither
  int64_t n;
  int64_t row_length;
  float error_bound;
  float step;
  uint64_t seed;
  int64_t nonzeros;
  int64_t bytes;
} CometStreamInfo;

COMET_EXPORT CometContext* comet_context_new(int32_t threads);
COMET_EXPORT void comet_context_free(CometContext* context);
// Message of the context's last failed call.
COMET_EXPORT const char* comet_error(const CometContext* context);
COMET_EXPORT const char* comet_isa(void);

COMET_EXPORT int64_t comet_row_length(const int64_t* dims, int32_t rank);
COMET_EXPORT int64_t comet_max_stream_bytes(int32_t dtype, int64_t n,
                                            int64_t row_length);
COMET_EXPORT int32_t comet_value_range(CometContext* context, int32_t dtype,
                                       const void* x, int64_t n, float* range);
COMET_EXPORT float comet_relative_bound(float fraction, float range);

// Compresses info's dtype, rounding, n, row_length, error_bound and seed;
// fills in the rest. Fails when the stream exceeds `capacity`.
COMET_EXPORT int32_t comet_compress(CometContext* context,
                                    CometStreamInfo* info, const void* x,
                                    uint8_t* stream, int64_t capacity);
COMET_EXPORT int32_t comet_stream_info(CometContext* context,
                                       const uint8_t* stream, int64_t bytes,
                                       CometStreamInfo* info);
COMET_EXPORT int32_t comet_decompress(CometContext* context,
                                      const uint8_t* stream, int64_t bytes,
                                      int32_t dtype, int64_t n, void* out);
COMET_EXPORT int32_t comet_sign_gradient(CometContext* context,
                                         const uint8_t* stream, int64_t bytes,
                                         int32_t dtype, int64_t n, float slope,
                                         const void* dy, void* dx);

#ifdef __cplusplus
}
#endif

#endif  // COMET_CPU_C_API_H_

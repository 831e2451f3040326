// SPDX-License-Identifier: Apache-2.0
// The C interface over codec.h; it keeps scratch chunks from call to call.
#include "custom_ops/cpu/c_api.h"

#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/cpu/codec.h"
#include "custom_ops/cpu/codec_threads.h"

struct CometContext {
  explicit CometContext(int threads) : pool(threads) {}

  comet::ParallelFor ParallelFor() {
    return [this](int64_t units, int64_t cycles,
                  const std::function<void(int64_t, int64_t)>& fn) {
      pool.Run(units, cycles, fn);
    };
  }

  int32_t Report(const comet::Status& status) {
    if (status.ok) return 0;
    error = status.message;
    return 1;
  }

  // Chunks in the order of their first use; requests repeat from call to call.
  uint8_t* Allocate(size_t bytes) {
    if (used == chunks.size()) chunks.emplace_back(nullptr, 0);
    auto& [data, capacity] = chunks[used];
    if (capacity < bytes) {
      data.reset(new (std::nothrow) uint8_t[bytes]);
      capacity = data == nullptr ? 0 : bytes;
    }
    return data == nullptr ? nullptr : chunks[used++].first.get();
  }

  comet::ThreadPool pool;
  comet::Compressor compressor;
  std::vector<std::pair<std::unique_ptr<uint8_t[]>, size_t>> chunks;
  size_t used = 0;
  std::string error;
};

CometContext* comet_context_new(int32_t threads) {
  return new (std::nothrow) CometContext(threads);
}

void comet_context_free(CometContext* context) { delete context; }

const char* comet_error(const CometContext* context) {
  return context->error.c_str();
}

const char* comet_isa(void) { return comet::CodecIsa(); }

int64_t comet_row_length(const int64_t* dims, int32_t rank) {
  return comet::RowLength(dims, rank);
}

int64_t comet_max_stream_bytes(int32_t dtype, int64_t n, int64_t row_length) {
  return comet::MaxStreamBytes(static_cast<comet::DType>(dtype), n, row_length);
}

int32_t comet_value_range(CometContext* context, int32_t dtype, const void* x,
                          int64_t n, float* range) {
  return context->Report(comet::ValueRange(static_cast<comet::DType>(dtype), x,
                                           n, context->ParallelFor(), range));
}

float comet_relative_bound(float fraction, float range) {
  return comet::RelativeBound(fraction, range);
}

int32_t comet_compress(CometContext* context, CometStreamInfo* info,
                       const void* x, uint8_t* stream, int64_t capacity) {
  comet::CompressOptions options;
  options.dtype = static_cast<comet::DType>(info->dtype);
  options.rounding = static_cast<comet::Rounding>(info->rounding);
  options.n = info->n;
  options.row_length = info->row_length;
  options.error_bound = info->error_bound;
  options.seed = info->seed;
  context->used = 0;
  comet::Compressor& compressor = context->compressor;
  const comet::Status status =
      compressor.Encode(options, x, context->ParallelFor(),
                        [&](size_t bytes) { return context->Allocate(bytes); });
  if (!status.ok) return context->Report(status);
  if (compressor.stream_bytes() > capacity) {
    return context->Report(comet::Status::Error(
        "the stream needs " + std::to_string(compressor.stream_bytes()) +
        " bytes, the buffer has " + std::to_string(capacity)));
  }
  compressor.Write(stream, context->ParallelFor());
  return comet_stream_info(context, stream, compressor.stream_bytes(), info);
}

int32_t comet_stream_info(CometContext* context, const uint8_t* stream,
                          int64_t bytes, CometStreamInfo* info) {
  comet::StreamInfo read;
  const comet::Status status = comet::ReadStreamInfo(stream, bytes, &read);
  if (!status.ok) return context->Report(status);
  info->dtype = static_cast<int32_t>(read.dtype);
  info->rounding = static_cast<int32_t>(read.rounding);
  info->n = read.n;
  info->row_length = read.row_length;
  info->error_bound = read.error_bound;
  info->step = read.step;
  info->seed = read.seed;
  info->nonzeros = read.nonzeros;
  info->bytes = read.bytes;
  return 0;
}

int32_t comet_decompress(CometContext* context, const uint8_t* stream,
                         int64_t bytes, int32_t dtype, int64_t n, void* out) {
  return context->Report(comet::Decompress(stream, bytes,
                                           static_cast<comet::DType>(dtype), n,
                                           context->ParallelFor(), out));
}

int32_t comet_sign_gradient(CometContext* context, const uint8_t* stream,
                            int64_t bytes, int32_t dtype, int64_t n,
                            float slope, const void* dy, void* dx) {
  return context->Report(
      comet::SignGradient(stream, bytes, static_cast<comet::DType>(dtype), n,
                          slope, dy, context->ParallelFor(), dx));
}

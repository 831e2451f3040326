// SPDX-License-Identifier: Apache-2.0
// CPU kernels of the codec's ops.

#include "custom_ops/tensorflow/codec_kernels.h"

#include <utility>
#include <vector>

#include "custom_ops/tensorflow/kernel_util.h"

namespace comet {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType kValue = DType::kFloat32;
};
template <>
struct DTypeOf<Eigen::half> {
  static constexpr DType kValue = DType::kFloat16;
};
template <>
struct DTypeOf<Eigen::bfloat16> {
  static constexpr DType kValue = DType::kBFloat16;
};

const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
  }
  return "unknown";
}

// Memory for encoding that TensorFlow's allocator counts.
class Scratch {
 public:
  explicit Scratch(OpKernelContext* ctx) : ctx_(ctx) {}

  AllocateScratch Allocate() {
    return [this](size_t bytes) -> uint8_t* {
      Tensor chunk;
      const absl::Status status = ctx_->allocate_temp(
          tensorflow::DT_UINT8, TensorShape({static_cast<int64_t>(bytes)}),
          &chunk);
      if (!status.ok()) return nullptr;
      chunks_.push_back(std::move(chunk));
      return chunks_.back().flat<uint8_t>().data();
    };
  }

 private:
  OpKernelContext* ctx_;
  std::vector<Tensor> chunks_;
};

template <typename T>
class CompressCpuOp : public CompressOp {
  using CompressOp::CompressOp;

  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const bool relative = ctx->input(2).scalar<bool>()();
    const ParallelFor threads = ThreadsOf(ctx);
    CompressOptions options;
    options.dtype = DTypeOf<T>::kValue;
    options.n = x.NumElements();
    options.row_length = RowLengthOf(x.shape());
    options.rounding = rounding_;
    options.seed = static_cast<uint64_t>(ctx->input(3).scalar<int64_t>()());
    options.error_bound = ctx->input(1).scalar<float>()();
    TF_RETURN_IF_ERROR(CheckBound(options.error_bound, relative));
    if (relative) {
      float range = 0;
      const Status status =
          ValueRange(options.dtype, Elements<T>(x), options.n, threads, &range);
      if (!status.ok) return absl::InvalidArgumentError(status.message);
      options.error_bound = RelativeBound(options.error_bound, range);
    }

    Scratch scratch(ctx);
    Compressor compressor;
    const Status status =
        compressor.Encode(options, Elements<T>(x), threads, scratch.Allocate());
    // All other reasons to fail were excluded above.
    if (!status.ok) return absl::ResourceExhaustedError(status.message);
    Tensor* stream = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        0, TensorShape({compressor.stream_bytes()}), &stream));
    compressor.Write(stream->flat<uint8_t>().data(), threads);

    Tensor* info = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, TensorShape({4}), &info));
    auto values = info->flat<double>();
    values(0) = static_cast<double>(options.n) * sizeof(T);
    values(1) = static_cast<double>(compressor.stream_bytes());
    values(2) = options.n == 0 ? 0.0
                               : static_cast<double>(compressor.nonzeros()) /
                                     static_cast<double>(options.n);
    values(3) = options.error_bound;
    return absl::OkStatus();
  }
};

// Whether the header and tables are sound and of such a tensor.
absl::Status CheckStream(const char* op, DType dtype, const Tensor& stream,
                         const TensorShape& shape, StreamInfo* info) {
  const Status status =
      ReadStreamInfo(stream.flat<uint8_t>().data(), stream.NumElements(), info);
  if (!status.ok) {
    return absl::DataLossError(absl::StrCat(op, ": ", status.message));
  }
  if (info->dtype != dtype || info->n != shape.num_elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": the stream holds ", info->n, " elements of ",
                     NameOf(info->dtype), ". Received: a tensor of ",
                     NameOf(dtype), " and shape ", shape.DebugString(),
                     ", that is of ", shape.num_elements(), " elements"));
  }
  return absl::OkStatus();
}

template <typename T>
class DecompressCpuOp : public DecompressOp {
  using DecompressOp::DecompressOp;

  absl::Status Check(const Tensor& stream, const TensorShape& shape) override {
    StreamInfo info;
    return CheckStream("Decompress", DTypeOf<T>::kValue, stream, shape, &info);
  }

  absl::Status Run(OpKernelContext* ctx, const Tensor& stream,
                   Tensor* x) override {
    const Status status = Decompress(
        stream.flat<uint8_t>().data(), stream.NumElements(), DTypeOf<T>::kValue,
        x->NumElements(), ThreadsOf(ctx), MutableElements<T>(x));
    if (!status.ok) {
      return absl::DataLossError(absl::StrCat("Decompress: ", status.message));
    }
    return absl::OkStatus();
  }
};

template <typename T>
class SignGradientCpuOp : public SignGradientOp {
  using SignGradientOp::SignGradientOp;

  absl::Status Check(const Tensor& stream, const TensorShape& shape) override {
    StreamInfo info;
    TF_RETURN_IF_ERROR(
        CheckStream("SignGradient", DTypeOf<T>::kValue, stream, shape, &info));
    if (negative_slope_ != 0 && info.rounding != Rounding::kNearest) {
      return absl::InvalidArgumentError(absl::StrCat(
          "SignGradient: a `negative_slope` other than 0 needs exact signs, "
          "and so a stream compressed with rounding=\"nearest\". Received: a "
          "dithered stream, negative_slope=",
          negative_slope_));
    }
    return absl::OkStatus();
  }

  absl::Status Run(OpKernelContext* ctx, const Tensor& stream, const Tensor& dy,
                   Tensor* dx) override {
    const Status status =
        SignGradient(stream.flat<uint8_t>().data(), stream.NumElements(),
                     DTypeOf<T>::kValue, dy.NumElements(), negative_slope_,
                     Elements<T>(dy), ThreadsOf(ctx), MutableElements<T>(dx));
    if (!status.ok) {
      return absl::DataLossError(
          absl::StrCat("SignGradient: ", status.message));
    }
    return absl::OkStatus();
  }
};

COMET_REGISTER_CPU("Comet>Compress", CompressCpuOp);
COMET_REGISTER_CPU("Comet>Decompress", DecompressCpuOp);
COMET_REGISTER_CPU("Comet>SignGradient", SignGradientCpuOp);

}  // namespace
}  // namespace comet

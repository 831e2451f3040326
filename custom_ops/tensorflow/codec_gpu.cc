// SPDX-License-Identifier: Apache-2.0
// GPU kernels of the codec's ops.

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/cpu/codec.h"
#include "custom_ops/cuda/launchers.h"
#include "custom_ops/tensorflow/codec_kernels.h"
#include "custom_ops/tensorflow/gpu_util.h"
#include "tensorflow/core/platform/logging.h"

namespace comet {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// --- Verdicts on streams ---

const char* Explain(int32_t error) {
  if ((error & cuda::kBadHeader) != 0) {
    return "it is no stream of this type and number of elements";
  }
  if ((error & cuda::kSignsUnknown) != 0) {
    return "a `negative_slope` other than 0 needs exact signs, and so a stream "
           "compressed with rounding=\"nearest\"";
  }
  if ((error & cuda::kBadTables) != 0) return "its tile tables are damaged";
  if ((error & cuda::kBadTile) != 0) return "a tile is damaged";
  return "its checksum is wrong";
}

// What devices found in the streams of ops that have returned. Waiting for it,
// or a callback when it comes, would stall the device at every layer; so each
// op looks at what has arrived from earlier ones, and fails with an error it
// finds. The output of the op that read the stream is NaN then.
class Verdicts {
 public:
  // `pinned` gets the verdict; until then it holds kPending.
  static void Expect(std::string reader, Tensor pinned) {
    std::lock_guard<std::mutex> lock(Mutex());
    Expected().push_back({std::move(reader), std::move(pinned)});
  }

  static absl::Status Poll() {
    std::lock_guard<std::mutex> lock(Mutex());
    auto& expected = Expected();
    // In the order of the stream; those of several devices wait for another.
    while (!expected.empty()) {
      const int32_t error =
          *static_cast<const volatile int32_t*>(Data(expected.front().pinned));
      if (error == kPending) break;
      const std::string reader = std::move(expected.front().reader);
      expected.pop_front();
      if (error == 0) continue;
      const std::string message =
          absl::StrCat(reader, " read a compressed stream that was refused: ",
                       Explain(error), ". Its output was set to NaN.");
      LOG(ERROR) << message;
      return absl::DataLossError(message);
    }
    return absl::OkStatus();
  }

  static constexpr int32_t kPending = -1;

 private:
  struct Entry {
    std::string reader;
    Tensor pinned;
  };

  // Never destroyed: a device may still write when the process ends.
  static std::mutex& Mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::deque<Entry>& Expected() {
    static auto* expected = new std::deque<Entry>;
    return *expected;
  }
};

// Runs `launch(workspace, error)`, which leaves its verdict in `*error` when
// the device gets there.
template <typename Launch>
absl::Status Read(OpKernelContext* ctx, const char* op, Launch launch) {
  TF_RETURN_IF_ERROR(Verdicts::Poll());
  Tensor workspace, pinned;
  TF_RETURN_IF_ERROR(
      AllocateWorkspace(ctx, cuda::DecodeWorkspaceBytes(), &workspace));
  TF_RETURN_IF_ERROR(AllocatePinned(ctx, sizeof(int32_t), &pinned));
  auto* error = static_cast<int32_t*>(MutableData(&pinned));
  *error = Verdicts::kPending;
  TF_RETURN_IF_ERROR(LaunchStatus(op, launch(MutableData(&workspace), error)));
  Verdicts::Expect(absl::StrCat(op, ": ", ctx->op_kernel().name()),
                   std::move(pinned));
  return absl::OkStatus();
}

// --- Compress ---

// The stream's size is known only to the device. So that the output is exact
// and no thread waits, the op measures, gives its thread back, and goes on when
// the size has arrived in page-locked memory.
class CompressGpuOp : public AsyncOpKernel {
 public:
  explicit CompressGpuOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    std::string rounding;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rounding", &rounding));
    rounding_ = rounding == "dither" ? Rounding::kDither : Rounding::kNearest;
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    for (int i = 1; i < 4; ++i) {
      OP_REQUIRES_ASYNC(
          ctx, ctx->input(i).dims() == 0,
          absl::InvalidArgumentError(absl::StrCat(
              "Compress: `error_bound`, `relative` and `seed` must be "
              "scalars. Received shapes: error_bound ",
              ctx->input(1).shape().DebugString(), ", relative ",
              ctx->input(2).shape().DebugString(), ", seed ",
              ctx->input(3).shape().DebugString())),
          done);
    }
    OP_REQUIRES_OK_ASYNC(ctx, Verdicts::Poll(), done);
    auto call = std::make_shared<Call>();
    OP_REQUIRES_OK_ASYNC(ctx, Measure(ctx, call.get()), done);
    const int error = ThenRun(ctx, [ctx, call, done] {
      OP_REQUIRES_OK_ASYNC(ctx, Pack(ctx, call.get()), done);
      done();
    });
    OP_REQUIRES_OK_ASYNC(ctx, LaunchStatus("Compress", error), done);
  }

 private:
  // What outlives the first half of the op.
  struct Call {
    cuda::CompressInput input;
    Tensor workspace;
    Tensor summary;
    int device = 0;
  };

  absl::Status Measure(OpKernelContext* ctx, Call* call) const {
    const Tensor& x = ctx->input(0);
    const auto sizes = x.shape().dim_sizes();
    const std::vector<int64_t> dims(sizes.begin(), sizes.end());
    cuda::CompressInput& input = call->input;
    input.dtype = DTypeOf(x);
    input.rounding = rounding_;
    input.x = Data(x);
    input.n = x.NumElements();
    input.row_length = RowLength(dims.data(), static_cast<int>(dims.size()));
    input.error_bound = static_cast<const float*>(Data(ctx->input(1)));
    input.relative = static_cast<const bool*>(Data(ctx->input(2)));
    input.seed = static_cast<const int64_t*>(Data(ctx->input(3)));
    TF_RETURN_IF_ERROR(AllocateWorkspace(
        ctx, cuda::CompressWorkspaceBytes(input.n, input.row_length),
        &call->workspace));
    TF_RETURN_IF_ERROR(
        AllocatePinned(ctx, sizeof(cuda::CompressSummary), &call->summary));
    TF_RETURN_IF_ERROR(
        LaunchStatus("Compress", cuda::GetDevice(&call->device)));
    return LaunchStatus(
        "Compress",
        cuda::LaunchCompressSize(
            StreamOf(ctx), input, MutableData(&call->workspace),
            static_cast<cuda::CompressSummary*>(MutableData(&call->summary))));
  }

  static absl::Status Pack(OpKernelContext* ctx, Call* call) {
    const auto& summary =
        *static_cast<const cuda::CompressSummary*>(Data(call->summary));
    if (!summary.valid) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Compress: `error_bound` must be a finite number above zero, and "
          "of at least 2^-126 unless `relative`. Received: error_bound=",
          summary.error_bound));
    }
    // This is another thread than the one whose device TensorFlow chose.
    TF_RETURN_IF_ERROR(LaunchStatus("Compress", cuda::SetDevice(call->device)));
    Tensor* stream = nullptr;
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(0, TensorShape({summary.stream_bytes}), &stream));
    Tensor* info = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, TensorShape({4}), &info));
    return LaunchStatus(
        "Compress",
        cuda::LaunchCompressPack(StreamOf(ctx), call->input,
                                 MutableData(&call->workspace),
                                 static_cast<uint8_t*>(MutableData(stream)),
                                 static_cast<double*>(MutableData(info))));
  }

  Rounding rounding_ = Rounding::kNearest;
};

// --- Reading streams ---

class DecompressGpuOp : public DecompressOp {
  using DecompressOp::DecompressOp;

  absl::Status Run(OpKernelContext* ctx, const Tensor& stream,
                   Tensor* x) override {
    return Read(ctx, "Decompress", [&](void* workspace, int32_t* error) {
      return cuda::LaunchDecompress(StreamOf(ctx), DTypeOf(*x),
                                    static_cast<const uint8_t*>(Data(stream)),
                                    stream.NumElements(), x->NumElements(),
                                    workspace, MutableData(x), error);
    });
  }
};

class SignGradientGpuOp : public SignGradientOp {
  using SignGradientOp::SignGradientOp;

  absl::Status Run(OpKernelContext* ctx, const Tensor& stream, const Tensor& dy,
                   Tensor* dx) override {
    return Read(ctx, "SignGradient", [&](void* workspace, int32_t* error) {
      return cuda::LaunchSignGradient(
          StreamOf(ctx), DTypeOf(dy), static_cast<const uint8_t*>(Data(stream)),
          stream.NumElements(), dy.NumElements(), negative_slope_, workspace,
          Data(dy), MutableData(dx), error);
    });
  }
};

COMET_REGISTER_GPU(Name("Comet>Compress"), CompressGpuOp);
COMET_REGISTER_GPU(Name("Comet>Decompress").HostMemory("shape"),
                   DecompressGpuOp);
COMET_REGISTER_GPU(Name("Comet>SignGradient"), SignGradientGpuOp);

}  // namespace
}  // namespace comet

// SPDX-License-Identifier: Apache-2.0
// Between TensorFlow's GPU devices and the CUDA launchers. Needs no CUDA
// header.
#ifndef COMET_TENSORFLOW_GPU_UTIL_H_
#define COMET_TENSORFLOW_GPU_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/codec/format.h"
#include "custom_ops/cuda/launchers.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/threadpool.h"
#include "xla/stream_executor/stream.h"

namespace comet {

// The codec's name for a tensor's type; the ops allow no other types.
inline DType DTypeOf(const tensorflow::Tensor& tensor) {
  switch (tensor.dtype()) {
    case tensorflow::DT_HALF:
      return DType::kFloat16;
    case tensorflow::DT_BFLOAT16:
      return DType::kBFloat16;
    default:
      return DType::kFloat32;
  }
}

// The device's compute stream, as launchers take it.
inline void* StreamOf(tensorflow::OpKernelContext* ctx) {
  return ctx->op_device_context()->stream()->platform_specific_handle().stream;
}

inline const void* Data(const tensorflow::Tensor& tensor) {
  return tensor.tensor_data().data();
}

inline void* MutableData(tensorflow::Tensor* tensor) {
  return const_cast<char*>(tensor->tensor_data().data());
}

inline absl::Status LaunchStatus(const char* op, int error) {
  if (error == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      op, ": CUDA error ", error, " (", cuda::ErrorText(error),
      ") when launching a kernel. If the device has no kernel image, the op "
      "library was built for other GPU architectures: build it again."));
}

// Device memory for an op's temporary data, counted by TensorFlow's allocator.
inline absl::Status AllocateWorkspace(tensorflow::OpKernelContext* ctx,
                                      size_t bytes,
                                      tensorflow::Tensor* workspace) {
  return ctx->allocate_temp(
      tensorflow::DT_UINT8,
      tensorflow::TensorShape({static_cast<int64_t>(bytes)}), workspace);
}

// Page-locked host memory, which the GPU writes without making anyone wait.
inline absl::Status AllocatePinned(tensorflow::OpKernelContext* ctx,
                                   size_t bytes, tensorflow::Tensor* memory) {
  tensorflow::AllocatorAttributes host;
  host.set_on_host(true);
  host.set_gpu_compatible(true);
  return ctx->allocate_temp(
      tensorflow::DT_UINT8,
      tensorflow::TensorShape({static_cast<int64_t>(bytes)}), memory, host);
}

// Calls `then` on one of TensorFlow's threads once the stream has come here.
// No thread waits for that: the driver's thread only hands `then` over.
inline int ThenRun(tensorflow::OpKernelContext* ctx,
                   std::function<void()> then) {
  struct Handover {
    tensorflow::thread::ThreadPool* workers;
    std::function<void()> then;
  };
  auto handover = std::make_unique<Handover>(
      Handover{ctx->device()->tensorflow_cpu_worker_threads()->workers,
               std::move(then)});
  const int error = cuda::EnqueueHostFunction(
      StreamOf(ctx),
      [](void* argument) {
        std::unique_ptr<Handover> own(static_cast<Handover*>(argument));
        own->workers->Schedule(std::move(own->then));
      },
      handover.get());
  if (error == 0) handover.release();
  return error;
}

}  // namespace comet

// Registers a kernel class for every element type. The class looks at its
// inputs' type itself.
#define COMET_REGISTER_GPU(builder, Kernel)                                    \
  REGISTER_KERNEL_BUILDER(                                                     \
      builder.Device(tensorflow::DEVICE_GPU).TypeConstraint<float>("T"),       \
      Kernel);                                                                 \
  REGISTER_KERNEL_BUILDER(                                                     \
      builder.Device(tensorflow::DEVICE_GPU).TypeConstraint<Eigen::half>("T"), \
      Kernel);                                                                 \
  REGISTER_KERNEL_BUILDER(builder.Device(tensorflow::DEVICE_GPU)               \
                              .TypeConstraint<Eigen::bfloat16>("T"),           \
                          Kernel)

#endif  // COMET_TENSORFLOW_GPU_UTIL_H_

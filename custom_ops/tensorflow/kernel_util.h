// SPDX-License-Identifier: Apache-2.0
// Between TensorFlow's types and the framework-free kernels'.
#ifndef COMET_TENSORFLOW_KERNEL_UTIL_H_
#define COMET_TENSORFLOW_KERNEL_UTIL_H_

#include <cstdint>
#include <functional>

#include "custom_ops/cpu/codec.h"
#include "custom_ops/cpu/element.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/work_sharder.h"

namespace comet {

// The kernels' name for TensorFlow's element type.
template <typename T>
struct ElementOf;
template <>
struct ElementOf<float> {
  using Type = float;
};
template <>
struct ElementOf<Eigen::half> {
  using Type = Half;
};
template <>
struct ElementOf<Eigen::bfloat16> {
  using Type = BFloat16;
};

template <typename T>
const typename ElementOf<T>::Type* Elements(const tensorflow::Tensor& tensor) {
  return reinterpret_cast<const typename ElementOf<T>::Type*>(
      tensor.flat<T>().data());
}

template <typename T>
typename ElementOf<T>::Type* MutableElements(tensorflow::Tensor* tensor) {
  return reinterpret_cast<typename ElementOf<T>::Type*>(
      tensor->flat<T>().data());
}

// A factor as an element-wise product in that type would take it.
inline float RoundToType(float factor, tensorflow::DataType dtype) {
  if (dtype == tensorflow::DT_HALF) {
    return static_cast<float>(static_cast<Eigen::half>(factor));
  }
  if (dtype == tensorflow::DT_BFLOAT16) {
    return static_cast<float>(static_cast<Eigen::bfloat16>(factor));
  }
  return factor;
}

// Loops on the threads that TensorFlow gives the op's device.
inline ParallelFor ThreadsOf(tensorflow::OpKernelContext* ctx) {
  const auto* threads = ctx->device()->tensorflow_cpu_worker_threads();
  return [threads](int64_t units, int64_t cycles_per_unit,
                   const std::function<void(int64_t, int64_t)>& fn) {
    tensorflow::Shard(threads->num_threads, threads->workers, units,
                      cycles_per_unit, fn);
  };
}

}  // namespace comet

// Registers a CPU kernel class template for every element type.
#define COMET_REGISTER_CPU(op, Kernel)                                    \
  REGISTER_KERNEL_BUILDER(                                                \
      Name(op).Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"), \
      Kernel<float>);                                                     \
  REGISTER_KERNEL_BUILDER(Name(op)                                        \
                              .Device(tensorflow::DEVICE_CPU)             \
                              .TypeConstraint<Eigen::half>("T"),          \
                          Kernel<Eigen::half>);                           \
  REGISTER_KERNEL_BUILDER(Name(op)                                        \
                              .Device(tensorflow::DEVICE_CPU)             \
                              .TypeConstraint<Eigen::bfloat16>("T"),      \
                          Kernel<Eigen::bfloat16>)

#endif  // COMET_TENSORFLOW_KERNEL_UTIL_H_

// SPDX-License-Identifier: Apache-2.0
// What callers without CUDA's headers need of its runtime.

#include <cuda_runtime.h>

#include "custom_ops/cuda/launchers.h"

namespace comet {
namespace cuda {

const char* ErrorText(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

int GetDevice(int* device) { return cudaGetDevice(device); }

int SetDevice(int device) { return cudaSetDevice(device); }

int EnqueueHostFunction(void* stream, void (*function)(void*), void* argument) {
  return cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), function,
                            argument);
}

}  // namespace cuda
}  // namespace comet

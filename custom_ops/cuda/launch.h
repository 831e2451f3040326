// SPDX-License-Identifier: Apache-2.0
// How the .cu files start kernels and name shared memory, the same under nvcc
// and under the emulator of the tests.
#ifndef COMET_CUDA_LAUNCH_H_
#define COMET_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstdint>

// Declares a variable that the threads of a block share.
#if defined(COMET_CUDA_EMULATOR)
#define COMET_SHARED(type, name)    \
  static const char name##_key = 0; \
  type& name = *static_cast<type*>( \
      cuda_emulator::Shared(&name##_key, sizeof(type), alignof(type)))
#else
#define COMET_SHARED(type, name) __shared__ type name
#endif

namespace comet {
namespace cuda {

// Starts `kernel` on `stream` (a cudaStream_t). Returns a cudaError_t.
template <typename... Parameters, typename... Arguments>
int Launch(void* stream, int64_t blocks, int threads,
           void (*kernel)(Parameters...), Arguments... arguments) {
  constexpr int64_t kMaxBlocks = 0x7FFFFFFF;
  if (blocks > kMaxBlocks) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config = {};
  config.gridDim.x = static_cast<unsigned>(blocks);
  config.gridDim.y = config.gridDim.z = 1;
  config.blockDim.x = static_cast<unsigned>(threads);
  config.blockDim.y = config.blockDim.z = 1;
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  // Takes the error off the thread's record too.
  return error != cudaSuccess ? error : cudaGetLastError();
}

inline int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks for a kernel that loops over `units` of work, `per_block` a turn: not
// more than keep the device busy.
inline int64_t LoopBlocks(int64_t units, int64_t per_block) {
  constexpr int64_t kBlocksPerMultiprocessor = 16;
  int device = 0;
  int multiprocessors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount,
                             device) != cudaSuccess) {
    multiprocessors = 128;
  }
  const int64_t most = multiprocessors * kBlocksPerMultiprocessor;
  const int64_t wanted = CeilDivide(units, per_block);
  return wanted < 1 ? 1 : (wanted < most ? wanted : most);
}

}  // namespace cuda
}  // namespace comet

#endif  // COMET_CUDA_LAUNCH_H_

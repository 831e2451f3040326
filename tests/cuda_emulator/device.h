// SPDX-License-Identifier: Apache-2.0
//
// Where the kernel tests run: on the emulator, or with COMET_ON_GPU on a real
// GPU, whose managed memory the CPU can read too.

#ifndef COMET_TF_TESTS_CUDA_EMULATOR_DEVICE_H_
#define COMET_TF_TESTS_CUDA_EMULATOR_DEVICE_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#if defined(COMET_ON_GPU)
#include <cuda_runtime.h>
#else
#include "emulator.h"
#endif

namespace comet {

// How work may be ordered; on a GPU that is for the GPU to say.
#if defined(COMET_ON_GPU)
struct Schedule {};
inline std::vector<Schedule> Schedules(int) { return {Schedule{}}; }
inline void SetSchedule(const Schedule&) {}
inline std::string DeviceError() {
  return cudaGetErrorString(cudaGetLastError());
}
// Waits for all kernels and reports what went wrong in them.
inline int Finish() { return cudaDeviceSynchronize(); }
#else
using cuda_emulator::Schedule;
using cuda_emulator::SetSchedule;
inline std::vector<Schedule> Schedules(int random) {
  using cuda_emulator::Order;
  std::vector<Schedule> all = {{Order::kForward, 1}, {Order::kReverse, 2}};
  for (int k = 0; k < random; ++k) {
    all.push_back({Order::kRandom, static_cast<uint64_t>(3 + k)});
  }
  return all;
}
inline std::string DeviceError() { return cuda_emulator::LastError(); }
inline int Finish() { return 0; }
#endif

// Exactly `bytes` bytes at a multiple of 16, filled with garbage. On the
// emulator AddressSanitizer guards both ends, on a GPU compute-sanitizer does.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : bytes_(bytes) {
    const size_t at_least_one = bytes == 0 ? 1 : bytes;
    void* memory = nullptr;
#if defined(COMET_ON_GPU)
    const bool ok = cudaMallocManaged(&memory, at_least_one) == cudaSuccess;
#else
    const bool ok = posix_memalign(&memory, 16, at_least_one) == 0;
#endif
    if (!ok) {
      std::fprintf(stderr, "out of memory: %zu bytes\n", bytes);
      std::abort();
    }
    memory_.reset(static_cast<uint8_t*>(memory));
    std::memset(memory, 0xA5, at_least_one);
  }
  DeviceMemory(const void* from, size_t bytes) : DeviceMemory(bytes) {
    if (bytes != 0) std::memcpy(data(), from, bytes);
  }

  uint8_t* data() { return memory_.get(); }
  const uint8_t* data() const { return memory_.get(); }
  size_t size() const { return bytes_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(uint8_t* p) const {
#if defined(COMET_ON_GPU)
      cudaFree(p);
#else
      std::free(p);
#endif
    }
  };
  size_t bytes_;
  std::unique_ptr<uint8_t, Free> memory_;
};

// One value in device memory.
template <typename T>
class DeviceValue {
 public:
  explicit DeviceValue(T value) : memory_(&value, sizeof value) {}
  T* get() { return memory_.as<T>(); }
  T value() { return *get(); }

 private:
  DeviceMemory memory_;
};

inline bool Same(const DeviceMemory& a, const DeviceMemory& b) {
  return a.size() == b.size() &&
         (a.size() == 0 || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace comet

#endif  // COMET_TF_TESTS_CUDA_EMULATOR_DEVICE_H_

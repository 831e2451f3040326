// SPDX-License-Identifier: Apache-2.0
//
// Stands in for CUDA's own header of this name when a .cu file is compiled as
// plain C++ for the emulator. It has what the kernels use, with the meaning
// that the CUDA programming guide gives it, and nothing else.

#ifndef COMET_TF_TESTS_CUDA_EMULATOR_INCLUDE_CUDA_RUNTIME_H_
#define COMET_TF_TESTS_CUDA_EMULATOR_INCLUDE_CUDA_RUNTIME_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../emulator.h"

// How a source file knows that it is not compiled by nvcc.
#define COMET_CUDA_EMULATOR 1

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __launch_bounds__(...)

#define COMET_EMULATOR_SITE \
  const char *file = __builtin_FILE(), int line = __builtin_LINE()

// --- Indices ---

using dim3 = cuda_emulator::Dim3;

inline const dim3& threadIdx = cuda_emulator::indices.thread;
inline const dim3& blockIdx = cuda_emulator::indices.block;
inline const dim3& blockDim = cuda_emulator::indices.block_dim;
inline const dim3& gridDim = cuda_emulator::indices.grid_dim;
constexpr int warpSize = 32;

// --- Vector types ---

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

// --- Bits ---

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; ++i) y |= (x >> i & 1u) << (31 - i);
  return y;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i) & 15u;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (s & 7u))) & 255u;
    if ((s & 8u) != 0) byte = (byte & 128u) != 0 ? 255u : 0u;
    result |= byte << (8 * i);
  }
  return result;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  const uint64_t value = uint64_t{high} << 32 | low;
  return static_cast<unsigned>(value >> (shift & 31u));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  const uint64_t value = uint64_t{high} << 32 | low;
  return static_cast<unsigned>(value << (shift & 31u) >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a,
                                     unsigned long long b) {
  return static_cast<unsigned long long>(
      static_cast<unsigned __int128>(a) * b >> 64);
}

// --- Floating point ---

template <typename To, typename From>
inline To comet_emulator_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline unsigned __float_as_uint(float x) {
  return comet_emulator_bits<unsigned>(x);
}
inline int __float_as_int(float x) { return comet_emulator_bits<int>(x); }
inline float __uint_as_float(unsigned x) {
  return comet_emulator_bits<float>(x);
}
inline float __int_as_float(int x) { return comet_emulator_bits<float>(x); }

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
// The sum of two floats is exact in double where the kernels use directed
// rounding: their exponents lie close together, or one does not matter.
inline float comet_emulator_round(double exact, bool away) {
  const float nearest = static_cast<float>(exact);
  const float least = away ? -INFINITY : 0.0f;
  const bool too_far =
      away ? nearest > exact : std::fabs(nearest) > std::fabs(exact);
  return too_far ? std::nextafter(nearest, least) : nearest;
}
inline float __fadd_rz(float a, float b) {
  return comet_emulator_round(static_cast<double>(a) + b, false);
}
inline float __fadd_rd(float a, float b) {
  return comet_emulator_round(static_cast<double>(a) + b, true);
}
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
// Saturates and maps NaN to 0, as the hardware's conversion does.
inline int __float2int_rd(float x) {
  if (std::isnan(x)) return 0;
  const float y = std::floor(x);
  if (y >= 2147483648.0f) return INT32_MAX;
  if (y < -2147483648.0f) return INT32_MIN;
  return static_cast<int>(y);
}

// --- Memory ---

template <typename T>
inline T __ldg(const T* p) {
  return *p;
}
inline void __threadfence() {}

template <typename T>
inline T comet_emulator_fetch(T* p, T next) {
  const T before = *p;
  *p = next;
  return before;
}
inline int atomicAdd(int* p, int v) { return comet_emulator_fetch(p, *p + v); }
inline unsigned atomicAdd(unsigned* p, unsigned v) {
  return comet_emulator_fetch(p, *p + v);
}
inline unsigned long long atomicAdd(unsigned long long* p,
                                    unsigned long long v) {
  return comet_emulator_fetch(p, *p + v);
}
inline unsigned atomicOr(unsigned* p, unsigned v) {
  return comet_emulator_fetch(p, *p | v);
}
inline unsigned atomicMax(unsigned* p, unsigned v) {
  return comet_emulator_fetch(p, *p < v ? v : *p);
}
inline unsigned atomicMin(unsigned* p, unsigned v) {
  return comet_emulator_fetch(p, *p > v ? v : *p);
}

// --- Barriers and warp collectives ---

inline void __syncthreads(COMET_EMULATOR_SITE) {
  cuda_emulator::SyncThreads({file, line});
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, COMET_EMULATOR_SITE) {
  cuda_emulator::WarpCollective(cuda_emulator::Collective::kSync, mask, 0, 0,
                                {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              COMET_EMULATOR_SITE) {
  return static_cast<unsigned>(
      cuda_emulator::WarpCollective(cuda_emulator::Collective::kBallot, mask,
                                    predicate != 0, 0, {file, line}));
}
inline int __any_sync(unsigned mask, int predicate, COMET_EMULATOR_SITE) {
  return static_cast<int>(cuda_emulator::WarpCollective(
      cuda_emulator::Collective::kAny, mask, predicate != 0, 0, {file, line}));
}
inline int __all_sync(unsigned mask, int predicate, COMET_EMULATOR_SITE) {
  return static_cast<int>(cuda_emulator::WarpCollective(
      cuda_emulator::Collective::kAll, mask, predicate != 0, 0, {file, line}));
}

#define COMET_EMULATOR_REDUCE(name, kind)                                    \
  inline unsigned name(unsigned mask, unsigned value, COMET_EMULATOR_SITE) { \
    return static_cast<unsigned>(cuda_emulator::WarpCollective(              \
        cuda_emulator::Collective::kind, mask, value, 0, {file, line}));     \
  }
COMET_EMULATOR_REDUCE(__reduce_add_sync, kReduceAdd)
COMET_EMULATOR_REDUCE(__reduce_or_sync, kReduceOr)
COMET_EMULATOR_REDUCE(__reduce_and_sync, kReduceAnd)
COMET_EMULATOR_REDUCE(__reduce_xor_sync, kReduceXor)
COMET_EMULATOR_REDUCE(__reduce_min_sync, kReduceMin)
COMET_EMULATOR_REDUCE(__reduce_max_sync, kReduceMax)
#undef COMET_EMULATOR_REDUCE

template <typename T>
inline T comet_emulator_shuffle(unsigned mask, T value, int source,
                                const char* file, int line) {
  static_assert(sizeof(T) <= 8 && std::is_arithmetic<T>::value, "");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = cuda_emulator::WarpCollective(cuda_emulator::Collective::kShuffle,
                                       mask, bits, source, {file, line});
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// `width` splits the warp into segments of that many lanes; a source outside
// the lane's own segment gives back the lane's own value.
template <typename T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32,
                     COMET_EMULATOR_SITE) {
  const int first = cuda_emulator::Lane() & ~(width - 1);
  return comet_emulator_shuffle(mask, value, first + (source & (width - 1)),
                                file, line);
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                        COMET_EMULATOR_SITE) {
  const int lane = cuda_emulator::Lane();
  const int source = lane - static_cast<int>(delta);
  const bool inside = source >= (lane & ~(width - 1));
  return comet_emulator_shuffle(mask, value, inside ? source : lane, file,
                                line);
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta,
                          int width = 32, COMET_EMULATOR_SITE) {
  const int lane = cuda_emulator::Lane();
  const int source = lane + static_cast<int>(delta);
  const bool inside = source <= (lane | (width - 1));
  return comet_emulator_shuffle(mask, value, inside ? source : lane, file,
                                line);
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                         COMET_EMULATOR_SITE) {
  const int lane = cuda_emulator::Lane();
  const int source = lane ^ lane_mask;
  const bool inside = source <= (lane | (width - 1));
  return comet_emulator_shuffle(mask, value, inside ? source : lane, file,
                                line);
}

// --- The runtime's functions ---

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMisalignedAddress = 716,
  cudaErrorLaunchFailure = 719,
};
inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMisalignedAddress:
      return "misaligned address";
    default:
      return "unspecified launch failure";
  }
}
using cudaStream_t = struct CUstream_st*;
enum cudaMemcpyKind { cudaMemcpyDeviceToHost = 2 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

inline cudaError_t& comet_emulator_last_error() {
  static cudaError_t error = cudaSuccess;
  return error;
}

template <typename... Parameters, typename... Arguments>
inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
                                      void (*kernel)(Parameters...),
                                      Arguments&&... arguments) {
  auto run = [&](Parameters... parameters) {
    return cuda_emulator::Launch(config->gridDim, config->blockDim,
                                 config->dynamicSmemBytes,
                                 [&] { kernel(parameters...); });
  };
  if (run(std::forward<Arguments>(arguments)...)) return cudaSuccess;
  comet_emulator_last_error() = cudaErrorLaunchFailure;
  return cudaErrorLaunchFailure;
}

inline cudaError_t cudaGetLastError() {
  return std::exchange(comet_emulator_last_error(), cudaSuccess);
}
inline cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes,
                                   cudaStream_t) {
  if (bytes > 0) std::memset(p, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                   cudaMemcpyKind, cudaStream_t) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
// Few, so that small tests still run the loops over tiles.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 2;
  return cudaSuccess;
}
using cudaHostFn_t = void (*)(void*);
inline cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function,
                                      void* argument) {
  function(argument);
  return cudaSuccess;
}

#undef COMET_EMULATOR_SITE

#endif  // COMET_TF_TESTS_CUDA_EMULATOR_INCLUDE_CUDA_RUNTIME_H_

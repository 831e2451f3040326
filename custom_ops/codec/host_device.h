// SPDX-License-Identifier: Apache-2.0
// How the shared codec functions are declared for both g++ and nvcc.
#ifndef COMET_CODEC_HOST_DEVICE_H_
#define COMET_CODEC_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define COMET_HOST_DEVICE __host__ __device__
#else
#define COMET_HOST_DEVICE
#endif

// Internal linkage: the same header is compiled for several instruction sets,
// and the linker must not merge a function built for AVX-512 into the code that
// runs on processors without it.
#define COMET_INLINE COMET_HOST_DEVICE static inline

#endif  // COMET_CODEC_HOST_DEVICE_H_

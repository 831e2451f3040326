# SPDX-License-Identifier: Apache-2.0
"""What the op library is built from: read by BUILD and by setup.py alike.

Constants only, in the syntax that Bazel and Python share.
"""

# Compiled for the baseline CPU of the platform.
SOURCES = [
    "cpu/*.cc",
    "tensorflow/unity_*.cc",
]

# What the unity sources include.
INCLUDED_SOURCES = [
    "tensorflow/*_gpu.cc",
    "tensorflow/*_kernels.cc",
    "tensorflow/*_ops.cc",
]

# One file per instruction set; the code chooses between them at run time. It
# asks the processor for just the extensions that are switched on below.
AVX2_SOURCES = ["cpu/*_avx2.cc"]
AVX512_SOURCES = ["cpu/*_avx512.cc"]

# Kernel registrations that need the launchers of cuda/.
GPU_SOURCES = ["tensorflow/unity_gpu.cc"]
CUDA_SOURCES = ["cuda/*.cu"]

HEADERS = [
    "codec/*.h",
    "cpu/*.h",
    "cuda/*.h",
    "tensorflow/*.h",
]

# -ffp-contract=off: a fused multiply-add rounds differently, and the error
# bound is checked on the bits. Nobody reads errno or the floating-point flags,
# and not to keep them lets loops with selections vectorise.
COPTS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    "-DEIGEN_MAX_ALIGN_BYTES=64",
]

AVX2_COPTS = [
    "-mavx2",
    "-mbmi",
    "-mbmi2",
    "-mlzcnt",
    "-mpopcnt",
    "-mf16c",
]

AVX512_COPTS = AVX2_COPTS + [
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mavx512vbmi",
    "-mavx512vbmi2",
    "-mprefer-vector-width=512",
]

# -z defs turns an undefined symbol into a link error instead of a load error.
LINKOPTS = [
    "-Wl,-z,defs",
    "-l:libtensorflow_framework.so.2",
]

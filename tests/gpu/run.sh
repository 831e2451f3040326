#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks and times the CUDA codec on a machine with an NVIDIA GPU, nvcc, Python
# with NumPy, and PyTorch or CuPy. TensorFlow is not needed. Takes under five
# minutes. With --emulate it does the same on the emulator, without a GPU and at
# sizes that mean nothing, to keep the scripts themselves tested.
# Usage: tests/gpu/run.sh [--emulate] [build directory]
set -euo pipefail
cd "$(dirname "$0")/../.."
emulate=
if [ "${1:-}" = --emulate ]; then
  emulate=--emulated
  shift
fi
build=${1:-build/gpu$emulate}
mkdir -p "$build"
python=${PYTHON:-python3}
cxx=${CXX:-g++}
source tests/cpp/flags.sh
step() { printf '\n=== %s (%ss)\n' "$1" "$SECONDS"; }

step "Build"
# The CPU codec and the CUDA codec side by side, each file on a core.
compile_codec "$build" -O3 &
for source in mask pooling reduce; do
  "$cxx" "${common[@]}" -O3 -c "custom_ops/cpu/$source.cc" \
    -o "$build/cpu_$source.o" &
done
"$cxx" "${common[@]}" -O2 -c tests/gpu/gpu_c_api.cc -o "$build/gpu_c_api.o" &
if [ -n "$emulate" ]; then
  link=("$cxx" -pthread)
  device=("$cxx" "${common[@]}" -Wno-unknown-pragmas -O2 -x c++
    -Itests/cuda_emulator/include -Itests/cuda_emulator)
  for source in emulator fiber; do
    "$cxx" "${common[@]}" -O2 -c "tests/cuda_emulator/$source.cc" \
      -o "$build/cuda_$source.o" &
  done
else
  nvcc=${NVCC:-nvcc}
  link=("$nvcc" -cudart static -ccbin "$cxx")
  device=("$nvcc" -std=c++17 -O3 -fmad=false -arch=native -lineinfo -I.
    -Itests/cuda_emulator -ccbin "$cxx" -x cu -DCOMET_ON_GPU
    -Xcompiler -fPIC,-fvisibility=hidden,-ffp-contract=off)
fi
for source in custom_ops/cuda/*.cu; do
  "${device[@]}" -c "$source" -o "$build/cuda_$(basename "$source" .cu).o" &
done
if [ -z "$emulate" ]; then
  for test in codec_kernels codec_damage tensor_kernels; do
    "${device[@]}" -c "tests/cuda_emulator/${test}_test.cc" \
      -o "$build/test_$test.o" &
  done
fi
for job in $(jobs -p); do wait "$job"; done
objects=("$build"/codec*.o "$build"/cpu_*.o "$build"/cuda_*.o)
"${link[@]}" -shared "${objects[@]}" "$build/c_api.o" "$build/gpu_c_api.o" \
  -o "$build/libcomet_gpu.so"

if [ -z "$emulate" ]; then
  step "Kernels against the CPU"
  for test in codec_kernels codec_damage tensor_kernels; do
    "${link[@]}" "$build/test_$test.o" "${objects[@]}" -o "$build/$test"
    "$build/$test"
  done
  sanitizer=$(command -v compute-sanitizer ||
    ls "$(dirname "$(command -v "$nvcc")")/compute-sanitizer" 2>/dev/null ||
    true)
  if [ -n "$sanitizer" ]; then
    for tool in memcheck racecheck synccheck; do
      step "compute-sanitizer $tool"
      "$sanitizer" --tool "$tool" --error-exitcode 1 \
        "$build/codec_kernels" small
    done
  else
    echo "compute-sanitizer is not installed: not run"
  fi
fi

step "Checks and timings"
PYTHONPATH=tests/gpu:examples "$python" tests/gpu/measure.py \
  "$build/libcomet_gpu.so" "$build/timings.json" $emulate
step "Done: $build/timings.json"

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the CUDA kernels on the CPU, under the address and undefined-behaviour
# sanitizers, against the CPU codec. Needs g++ only.
# Usage: tests/cuda_emulator/run.sh [build directory]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/cuda-emulator}
mkdir -p "$build"
source tests/cpp/flags.sh
cxx=${CXX:-g++}
sanitize=(-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all
  -fno-omit-frame-pointer)
include=(-Itests/cuda_emulator/include -Itests/cuda_emulator)

# compile SOURCE FLAGS...: an object file, unless it is newer than all sources.
objects=()
compile() {
  local source=$1 object
  shift
  object="$build/$(tr / _ <<< "${source%.*}").o"
  objects+=("$object")
  if [ -f "$object" ] && [ -z "$(find custom_ops tests/cuda_emulator \
      tests/cpp/flags.sh -newer "$object" \
      \( -name '*.h' -o -name '*.sh' -o -path "$source" \) -print -quit)" ]; then
    return
  fi
  "$cxx" "${common[@]}" "$@" -c "$source" -o "$object"
}

# The reference, which has sanitized tests of its own.
compile custom_ops/cpu/codec.cc -O2
compile custom_ops/cpu/codec_parameters.cc -O2
compile custom_ops/cpu/codec_kernels_portable.cc -O2
compile tests/cuda_emulator/portable_only.cc -O2
for source in channels mask pooling reduce; do
  compile "custom_ops/cpu/$source.cc" -O2
done
# What is tested.
for source in custom_ops/cuda/*.cu; do
  compile "$source" -x c++ -Wno-unknown-pragmas "${include[@]}" \
    "${sanitize[@]}"
done
for source in emulator fiber; do
  compile "tests/cuda_emulator/$source.cc" "${include[@]}" "${sanitize[@]}"
done

for test in emulator codec_kernels codec_damage tensor_kernels; do
  "$cxx" "${common[@]}" "${include[@]}" "${sanitize[@]}" \
    "tests/cuda_emulator/${test}_test.cc" "${objects[@]}" -pthread \
    -o "$build/${test}_test"
  "$build/${test}_test"
done

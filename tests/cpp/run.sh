#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the C++ tests with warnings as errors and with the address and
# undefined-behaviour sanitizers, and runs them on every instruction set.
# Usage: tests/cpp/run.sh [build directory]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/cpp-tests}
mkdir -p "$build"
source tests/cpp/flags.sh
sanitize=(-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all
  -fno-omit-frame-pointer)

compile_codec "$build" "${sanitize[@]}"
for test in tests/cpp/codec_*_test.cc; do
  name=$(basename "$test" .cc)
  "${CXX:-g++}" "${common[@]}" "${sanitize[@]}" "$test" "$build"/codec*.o \
    "$build"/c_api.o -pthread -o "$build/$name"
  # codec_isa_test compares the instruction sets itself.
  isas=(portable avx2 avx512)
  if [ "$name" = codec_isa_test ]; then isas=(portable); fi
  for isa in "${isas[@]}"; do
    echo "$name $isa"
    COMET_ISA=$isa "$build/$name"
  done
done

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the C++ tests of the codec.
#   tests/cpp/run.sh                 the unit tests, with warnings as errors and
#                                    the address and undefined-behaviour
#                                    sanitizers, on every instruction set
#                                    of this processor
#   tests/cpp/run.sh exhaustive ...  all 2^32 float32 patterns (minutes); bounds
#                                    may follow
#   tests/cpp/run.sh huge            more than 2^31 elements (10 GB of memory)
#   tests/cpp/run.sh fuzz [SECONDS]  libFuzzer, a minute by default
# BUILD_DIR names the directory for what is built.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/cpp/flags.sh
mode=${1:-test}
shift || true
build=${BUILD_DIR:-build/cpp}/$mode

# compile_test SOURCE PROGRAM FLAGS...
compile_test() {
  local source=$1 program=$2
  shift 2
  "${CXX:-g++}" "${common[@]}" "$@" "$source" "$build"/codec*.o -pthread \
    -o "$program"
}

case $mode in
  test)
    mkdir -p "$build"
    sanitize=(-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all)
    compile_codec "$build" "${sanitize[@]}"
    # Those of this processor: a test asked for another instruction set would
    # repeat itself in the best there is.
    vector_isas=()
    for flag in avx2 avx512_vbmi2; do
      if grep -qw "$flag" /proc/cpuinfo; then vector_isas+=("${flag%_*}"); fi
    done
    for test in tests/cpp/codec_*_test.cc; do
      name=$(basename "$test" .cc)
      compile_test "$test" "$build/$name" "${sanitize[@]}"
      isas=(portable)
      # codec_isa_test compares the instruction sets itself.
      if [ "$name" != codec_isa_test ]; then isas+=("${vector_isas[@]}"); fi
      for isa in "${isas[@]}"; do
        echo "$name $isa"
        COMET_ISA=$isa "$build/$name"
      done
    done
    ;;
  exhaustive | huge)
    mkdir -p "$build"
    compile_codec "$build" -O3
    # Runs where it is built, so its own loops may use what there is.
    compile_test "tests/cpp/$mode.cc" "$build/$mode" -O3 -march=native
    "$build/$mode" "$@"
    ;;
  fuzz)
    tests/fuzz/run.sh "${1:-60}" "$build"
    ;;
  *)
    echo "tests/cpp/run.sh: unknown mode $mode; see its first lines" >&2
    exit 1
    ;;
esac

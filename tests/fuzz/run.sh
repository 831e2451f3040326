#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes the codec with libFuzzer and the address and undefined-behaviour
# sanitizers. Needs clang with its compiler-rt.
# Usage: tests/fuzz/run.sh [seconds] [build directory]
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-60}
build=${2:-build/fuzz}
if [ -z "${CXX:-}" ]; then
  CXX=$(command -v clang++ || compgen -c clang++- | sort -V | tail -1 || true)
fi
if [ -z "$CXX" ]; then
  echo "tests/fuzz/run.sh needs clang++ with libFuzzer; install clang and its" \
    "compiler-rt, or set CXX" >&2
  exit 1
fi
export CXX
source tests/cpp/flags.sh
sanitize=(-O1 -g -fsanitize=fuzzer-no-link,address,undefined
  -fno-sanitize-recover=all)
mkdir -p "$build/corpus"
compile_codec "$build" "${sanitize[@]}"
"$CXX" "${common[@]}" "${sanitize[@]}" -fsanitize=fuzzer \
  tests/fuzz/codec_fuzz.cc "$build"/codec*.o -pthread -o "$build/codec_fuzz"
# New inputs go to the first directory, the seeds are only read.
status=0
"$build/codec_fuzz" -max_total_time="$seconds" -max_len=8192 -timeout=10 \
  -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$build/" \
  "$build/corpus" tests/fuzz/corpus || status=$?
if [ "$status" != 0 ]; then
  # The finding once more at the end, where cut logs still have it, with the
  # input (base64) that goes to tests/fuzz/corpus once it is mended.
  for input in "$build"/{crash,timeout,oom,leak}-*; do
    if [ ! -e "$input" ]; then continue; fi
    echo "=== $input"
    "$build/codec_fuzz" "$input" 2>&1 |
      grep -E -A 12 'ERROR|runtime error|failed:' | head -20 || true
    base64 "$input"
  done
fi
exit "$status"

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the op library with Bazel, offline, and checks that it loads and works.
# Usage: tools/bazel_build.sh [python with TensorFlow, default .venv's]
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(realpath -s "${1:-.venv/bin/python}")

if ! command -v bazel >/dev/null; then
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "error: bazel is not installed (Debian: apt-get install" \
      "bazel-bootstrap bazel-rules-java bazel-rules-proto)" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends bazel-bootstrap bazel-rules-java \
    bazel-rules-proto >/dev/null
fi

# What Bazel would otherwise download comes from Debian's packages and from
# this repository.
options=(--override_repository=rules_cc="$PWD/tools/bazel/rules_cc")
for rules in java proto; do
  folder=/usr/share/bazel/rules/$rules
  if [[ -d $folder ]]; then
    options+=("--override_repository=rules_$rules=$folder")
  fi
done

output_base=$PWD/build/bazel
mkdir -p "$output_base"
PYTHON_BIN_PATH=$python bazel --output_base="$output_base" build \
  --symlink_prefix=/ "${options[@]}" //:comet_tf //:comet_ops

built=$(PYTHON_BIN_PATH=$python bazel --output_base="$output_base" info \
  "${options[@]}" bazel-bin 2>/dev/null)
bazel --output_base="$output_base" shutdown

"$python" - "$built/comet_tf/ops" <<'END'
import pathlib
import sys

import tensorflow as tf

from comet_tf.ops import library

ops = library.load(pathlib.Path(sys.argv[1]))
x = tf.random.normal((64, 64))
stream, info = ops.comet_compress(x, 0.01, False, 0)
x_hat = ops.comet_decompress(stream, (64, 64), T=tf.float32)
assert tf.reduce_max(tf.abs(x - x_hat)) <= 0.01
print("Bazel's library works: ratio", float(info[0] / info[1]))
END

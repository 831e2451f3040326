# SPDX-License-Identifier: Apache-2.0
# Compiler flags of the codec, sourced by the scripts that build it for tests.
common=(-std=c++17 -I. -fPIC -fvisibility=hidden -Wall -Wextra -Werror
  -ffp-contract=off -fno-math-errno -fno-trapping-math)

# compile_codec DIRECTORY FLAGS...: the codec's object files.
compile_codec() {
  local out=$1 source name
  shift
  for source in codec codec_parameters codec_kernels_portable codec_kernels_avx2 \
    codec_kernels_avx512 c_api; do
    local isa=()
    if [ "$(uname -m)" = x86_64 ]; then
      case $source in
        *_avx2) isa=(-mavx2 -mbmi -mbmi2 -mf16c -mlzcnt -mpopcnt) ;;
        *_avx512)
          isa=(-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi
            -mavx512vbmi2 -mbmi -mbmi2 -mf16c -mlzcnt -mpopcnt)
          ;;
      esac
    fi
    "${CXX:-g++}" "${common[@]}" "$@" "${isa[@]}" \
      -c "custom_ops/cpu/$source.cc" -o "$out/$source.o"
  done
}

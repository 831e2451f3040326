// SPDX-License-Identifier: Apache-2.0
// The codec kernels for x86-64 processors with AVX-512.
#include "custom_ops/cpu/codec_kernels.h"

#if defined(__AVX512VBMI2__) && defined(__AVX512VBMI__) && \
    defined(__BMI2__) && defined(__F16C__)

#include "custom_ops/cpu/codec_decode_tile.h"
#include "custom_ops/cpu/codec_encode_tile.h"
#include "custom_ops/cpu/codec_isa_avx512.h"
#include "custom_ops/cpu/codec_range.h"

namespace comet {

const CodecKernels* Avx512Kernels() {
  static const CodecKernels kernels = {
      "avx512", EncodeUnit<Avx512Isa>, DecodeUnit<Avx512Isa, ValueSink>,
      DecodeUnit<Avx512Isa, SignSink>, Range<Avx512Isa>};
  // Every processor with these has F16C, LZCNT and POPCNT too.
  bool supported = true;
  supported = supported && __builtin_cpu_supports("avx512f");
  supported = supported && __builtin_cpu_supports("avx512bw");
  supported = supported && __builtin_cpu_supports("avx512vl");
  supported = supported && __builtin_cpu_supports("avx512dq");
  supported = supported && __builtin_cpu_supports("avx512vbmi");
  supported = supported && __builtin_cpu_supports("avx512vbmi2");
  supported = supported && __builtin_cpu_supports("bmi");
  supported = supported && __builtin_cpu_supports("bmi2");
  return supported ? &kernels : nullptr;
}

}  // namespace comet

#else

namespace comet {

const CodecKernels* Avx512Kernels() { return nullptr; }

}  // namespace comet

#endif

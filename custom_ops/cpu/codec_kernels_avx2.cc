// SPDX-License-Identifier: Apache-2.0
// The codec kernels for x86-64 processors with AVX2.
#include "custom_ops/cpu/codec_kernels.h"

#if defined(__AVX2__) && defined(__BMI2__) && defined(__F16C__)

#include "custom_ops/cpu/codec_decode_tile.h"
#include "custom_ops/cpu/codec_encode_tile.h"
#include "custom_ops/cpu/codec_isa_avx2.h"
#include "custom_ops/cpu/codec_range.h"

namespace comet {

const CodecKernels* Avx2Kernels() {
  static const CodecKernels kernels = {
      "avx2", EncodeUnit<Avx2Isa>, DecodeUnit<Avx2Isa, ValueSink>,
      DecodeUnit<Avx2Isa, SignSink>, Range<Avx2Isa>};
  // Every processor with AVX2 and BMI2 has F16C, LZCNT and POPCNT too.
  const bool supported = __builtin_cpu_supports("avx2") &&
                         __builtin_cpu_supports("bmi") &&
                         __builtin_cpu_supports("bmi2");
  return supported ? &kernels : nullptr;
}

}  // namespace comet

#else

namespace comet {

const CodecKernels* Avx2Kernels() { return nullptr; }

}  // namespace comet

#endif

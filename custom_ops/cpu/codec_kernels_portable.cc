// SPDX-License-Identifier: Apache-2.0
// The codec kernels for any processor.
#include "custom_ops/cpu/codec_decode_tile.h"
#include "custom_ops/cpu/codec_encode_tile.h"
#include "custom_ops/cpu/codec_kernels.h"
#include "custom_ops/cpu/codec_range.h"

namespace comet {

const CodecKernels& PortableKernels() {
  static const CodecKernels kernels = {
      "portable", EncodeUnit<PortableIsa>, DecodeUnit<PortableIsa, ValueSink>,
      DecodeUnit<PortableIsa, SignSink>, Range<PortableIsa>};
  return kernels;
}

}  // namespace comet

// SPDX-License-Identifier: Apache-2.0
//
// The reference needs no instruction set but the portable one, and builds in a
// fraction of the time without the others.

#include "custom_ops/cpu/codec_kernels.h"

namespace comet {

const CodecKernels* Avx2Kernels() { return nullptr; }
const CodecKernels* Avx512Kernels() { return nullptr; }

}  // namespace comet

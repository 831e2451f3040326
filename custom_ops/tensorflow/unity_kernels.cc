// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of all ops, as one translation unit (a unity build):
// reading TensorFlow's headers takes far longer than compiling what follows.

#include "custom_ops/tensorflow/channel_kernels.cc"
#include "custom_ops/tensorflow/codec_kernels.cc"
#include "custom_ops/tensorflow/mask_kernels.cc"
#include "custom_ops/tensorflow/memory_kernels.cc"
#include "custom_ops/tensorflow/pooling_kernels.cc"
#include "custom_ops/tensorflow/reduce_kernels.cc"

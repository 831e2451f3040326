// SPDX-License-Identifier: Apache-2.0
// The GPU kernels of all ops, as one translation unit (a unity build):
// reading TensorFlow's headers takes far longer than compiling what follows.

#include "custom_ops/tensorflow/channel_gpu.cc"
#include "custom_ops/tensorflow/codec_gpu.cc"
#include "custom_ops/tensorflow/mask_gpu.cc"
#include "custom_ops/tensorflow/pooling_gpu.cc"
#include "custom_ops/tensorflow/reduce_gpu.cc"

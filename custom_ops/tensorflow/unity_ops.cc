// SPDX-License-Identifier: Apache-2.0
// The registrations of all ops, as one translation unit (a unity build):
// reading TensorFlow's headers takes far longer than compiling what follows.

#include "custom_ops/tensorflow/channel_ops.cc"
#include "custom_ops/tensorflow/codec_ops.cc"
#include "custom_ops/tensorflow/mask_ops.cc"
#include "custom_ops/tensorflow/memory_ops.cc"
#include "custom_ops/tensorflow/pooling_ops.cc"
#include "custom_ops/tensorflow/reduce_ops.cc"

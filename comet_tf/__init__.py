# SPDX-License-Identifier: Apache-2.0
"""Train Keras models in a fraction of the memory.

Activations are kept compressed, under a strict error bound for each element,
until the backward pass reads them.
"""

from comet_tf import memory
from comet_tf.config import CompressionConfig
from comet_tf.error_bound import AdaptiveErrorBound
from comet_tf.memory_report import memory_report
from comet_tf.ops.codec_ops import compress, decompress
from comet_tf.rules import register_rule
from comet_tf.version import __version__
from comet_tf.wrapping import unwrap_model, wrap_model

__all__ = [
    "AdaptiveErrorBound",
    "CompressionConfig",
    "__version__",
    "compress",
    "decompress",
    "memory",
    "memory_report",
    "register_rule",
    "unwrap_model",
    "wrap_model",
]

# SPDX-License-Identifier: Apache-2.0
"""Codecs by name."""

from comet_tf.codecs.base import Codec
from comet_tf.codecs.comet import CometCodec
from comet_tf.codecs.lossless import LosslessCodec
from comet_tf.config import CompressionConfig


def get(config: CompressionConfig) -> Codec:
    """Returns the codec that `config` names or holds."""
    if not isinstance(config.codec, str):
        return config.codec
    if config.codec == "lossless":
        return LosslessCodec()
    return CometCodec(rounding=config.rounding)


__all__ = ["Codec", "CometCodec", "LosslessCodec", "get"]

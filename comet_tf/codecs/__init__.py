# SPDX-License-Identifier: Apache-2.0
"""Codecs by name."""

import functools

from comet_tf.codecs.base import Codec, compress
from comet_tf.codecs.comet import CometCodec
from comet_tf.codecs.lossless import LosslessCodec
from comet_tf.config import CompressionConfig


def get(config: CompressionConfig) -> Codec:
    """Returns the codec that `config` names or holds.

    Equal configurations have one codec between them: layers that ask for the
    same thing are told by it.
    """
    if not isinstance(config.codec, str):
        return config.codec
    return _named(config)


@functools.lru_cache
def _named(config: CompressionConfig) -> Codec:
    if config.codec == "lossless":
        return LosslessCodec()
    return CometCodec(rounding=config.rounding)


__all__ = ["Codec", "CometCodec", "LosslessCodec", "compress", "get"]

# SPDX-License-Identifier: Apache-2.0
"""Choosing how much error each stored activation may carry."""

from comet_tf.error_bound.adaptive import AdaptiveErrorBound
from comet_tf.error_bound.control import BoundControl

__all__ = ["AdaptiveErrorBound", "BoundControl"]

# SPDX-License-Identifier: Apache-2.0
"""The gradient error that a control's latest numbers predict."""

from comet_tf.error_bound import theory
from comet_tf.error_bound.control import BoundControl


def predicted_error(control: BoundControl) -> float:
    """Of a layer whose input reaches its own kernel's gradient."""
    stats, info = control.read_gradient_stats(), control.read_stream_info()
    return theory.predicted_gradient_error(
        info.absolute_bound,
        stats.sum_of_squares,
        stats.channels,
        info.nonzero_fraction,
    )

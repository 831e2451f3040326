# SPDX-License-Identifier: Apache-2.0
"""What layers record, on collection steps only, for the error-bound theory."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from comet_tf.error_bound.control import BoundControl
from comet_tf.scheduling import Gradients, Tensors

Observer = Callable[[Tensors, Tensors, Gradients], Tensors]


def weight_gradient_observer(
    control: BoundControl, is_kernel: Sequence[bool]
) -> Observer:
    """Records `WeightStats` of a convolution or dense layer.

    Args:
        control: Where they are recorded.
        is_kernel: List of booleans, one a parameter: whether its gradient
            reads the layer's input.

    Returns:
        Function for `Backward.observe`. On other steps than collection steps
        it does nothing but read the control's flag.
    """

    def record(
        dys: Tensors, restored: Tensors, of_parameters: Gradients
    ) -> tf.Tensor:
        dy = tf.cast(dys[0], tf.float32)
        x = tf.cast(restored[0], tf.float32)
        kernels = [
            tf.reduce_mean(tf.abs(tf.cast(gradient, tf.float32)))
            for gradient, use in zip(of_parameters, is_kernel, strict=True)
            if use and gradient is not None
        ]
        channels = tf.cast(tf.shape(dy)[-1], tf.float32)
        control.gradient_stats.assign(
            [
                tf.reduce_sum(tf.square(dy)),
                channels,
                tf.add_n(kernels) / len(kernels),
                tf.reduce_mean(tf.square(x)),
            ]
        )
        return tf.constant(True)

    def observe(
        dys: Tensors, restored: Tensors, of_parameters: Gradients
    ) -> Tensors:
        return [
            tf.cond(
                control.collect,
                lambda: record(dys, restored, of_parameters),
                lambda: tf.constant(False),
            )
        ]

    return observe

# SPDX-License-Identifier: Apache-2.0
"""ReLU, leaky ReLU and ReLU6: their gradient reads which piece is which.

That is exact. It comes from the stream of whoever saves the output anyway, or
it is packed, one bit an element. Where the input is saved (as a batch norm's
output is, by its own input), nobody needs to save the output: it is derived
from the input and the bits.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from comet_tf import saved_tensors, scheduling, traces
from comet_tf.ops import mask_ops

Function = Callable[[tf.Tensor], tf.Tensor]


def sign(function: Function, x: tf.Tensor, slope: float) -> tf.Tensor:
    """Applies a (leaky) ReLU.

    Args:
        function: The activation.
        x: Its input.
        slope: Float. Its slope for negative inputs.

    Returns:
        Its output.
    """

    def gradients(
        dys: scheduling.Tensors, *_: Any
    ) -> tuple[scheduling.Gradients, scheduling.Gradients]:
        return [pattern.gradient(dys[0])], []

    (y,) = scheduling.with_gradient(
        lambda tensors: [function(tensors[0])],
        [x],
        [],
        scheduling.Backward([], gradients),
    )
    pattern = SignPattern(y, slope)
    _derive_by_mask(x, y, pattern.packed, slope)
    return y


def interval(function: Function, x: tf.Tensor, upper: float) -> tf.Tensor:
    """Applies a ReLU with an upper limit.

    Args:
        function: The activation.
        x: Its input.
        upper: Float. Its limit.

    Returns:
        Its output.
    """
    masks: list[tf.Tensor] = []

    def forward(tensors: scheduling.Tensors) -> list[tf.Tensor]:
        y = function(tensors[0])
        masks[:] = [mask_ops.pack_mask(y, 0.0, upper)]
        return [y]

    def gradients(
        dys: scheduling.Tensors, *_: Any
    ) -> tuple[scheduling.Gradients, scheduling.Gradients]:
        return [mask_ops.mask_gradient(masks[0], dys[0])], []

    (y,) = scheduling.with_gradient(
        forward, [x], [], scheduling.Backward([], gradients)
    )
    _derive_by_mask(x, y, lambda: masks[0], ceiling=upper)
    return y


def _derive_by_mask(
    x: tf.Tensor,
    y: tf.Tensor,
    mask: Callable[[], tf.Tensor],
    slope: float = 0.0,
    ceiling: float | None = None,
) -> None:
    """Derives a piecewise linear function's output where its input is saved.

    Which piece an element lies on comes from the mask and is exact, so that
    zeros stay zeros, and a value near zero is not pushed away from it.

    Args:
        x: The function's input.
        y: Its output: `x` where the mask is set, else `slope * x`, or
            `ceiling` where that is near.
        mask: Makes the mask, which the gradient needs as well.
        slope: Float. The slope where the mask is not set.
        ceiling: Float. The largest output, if there is one.
    """
    saved = traces.lookup(x)
    if saved is None or saved.codec is None:
        return
    packed = mask()

    def output(restored: tf.Tensor) -> tf.Tensor:
        found = mask_ops.mask_gradient(packed, restored, slope)
        if ceiling is None:
            return found
        outside = (found == 0) & (restored > ceiling / 2)
        return tf.where(outside, tf.cast(ceiling, found.dtype), found)

    traces.remember(
        y, saved_tensors.DerivedTensor(saved, output, stored=[packed])
    )


class SignPattern:
    """The sign pattern of a (leaky) ReLU's output, stored as late as possible.

    If some layer saves the output anyway, that stream has the pattern and
    nothing is stored here. Whether one does is only known when the backward
    pass is traced, so in a graph the choice is made then. In eager mode the
    output is gone by then, so one bit an element is packed at once.

    Args:
        y: Tensor. Output of the activation, the object the next layer sees.
        negative_slope: Float. The activation's slope for negative inputs.
    """

    def __init__(self, y: tf.Tensor, negative_slope: float) -> None:
        self._slope = negative_slope
        if tf.is_symbolic_tensor(y):
            self._y: tf.Tensor | None = y
            self._mask: tf.Tensor | None = None
        else:
            self._y = None
            self._mask = mask_ops.pack_mask(y)

    def packed(self) -> tf.Tensor:
        """Returns the pattern as `mask_ops.pack_mask` packs it."""
        if self._mask is None:
            assert self._y is not None
            # In the graph of the forward pass: from another graph (the
            # gradient of a called function) `y` itself would be captured. In
            # the layer's name scope, by which the memory report knows it.
            scope = self._y.op.name.rpartition("/")[0]
            with (
                self._y.graph.as_default(),
                tf.control_dependencies(None),
                tf.name_scope(f"{scope}/" if scope else ""),
            ):
                self._mask = mask_ops.pack_mask(self._y)
        return self._mask

    def gradient(self, dy: tf.Tensor) -> tf.Tensor:
        """Returns `dy` where the output is positive, else `slope * dy`."""
        if self._y is not None:
            handle = traces.lookup(self._y, self._y.graph)
            if handle is not None:
                dx = handle.sign_gradient(dy, self._slope)
                if dx is not None:
                    return dx
        return mask_ops.mask_gradient(self.packed(), dy, self._slope)

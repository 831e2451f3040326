# SPDX-License-Identifier: Apache-2.0
"""Activations that wait for the backward pass: save, share, restore.

`save(x, ...)` stores an activation now and returns a handle; the backward pass
asks the handle for its values (`restore`) or only for its sign pattern
(`sign_gradient`). Saving one tensor twice while one graph is traced gives the
same handle, so an activation that several layers read is stored once. A handle
can be *derived* from another one by a cheap function; then nothing is stored
for it.

When a stored activation may be restored is decided in `scheduling`.
"""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from comet_tf import traces
from comet_tf.codecs import Codec, compress
from comet_tf.error_bound import statistics
from comet_tf.error_bound.control import BoundControl

FLOAT_TYPES = (tf.float32, tf.float16, tf.bfloat16)

# An unknown dimension (the batch) counts as this many elements when a tensor's
# size decides whether compressing it is worth the while.
_UNKNOWN_DIMENSION = 16


Scale = Callable[[], tf.Tensor] | None


class SavedTensor:
    """An activation kept for the backward pass; see the subclasses."""

    #: Tensors that exist once the activation is stored; the forward pass waits
    #: for them before it moves on.
    stored: tuple[tf.Tensor, ...] = ()
    #: What stores the values; `None` where the tensor itself is kept.
    codec: Codec | None = None
    #: Whether the values are made from another activation's.
    derived: bool = False
    #: Whether a control's `raw_bytes` has the bytes of the tensor in it.
    counted: bool = False

    def restore(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the values, not before all of `after` is there."""
        raise NotImplementedError

    def restore_again(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the values once more, on steps that collect statistics.

        Args:
            values: What `restore` returned to the layer that collects. The
                operations depend on it: a control dependency is lost where
                TensorFlow inlines the branch that they are in.

        Returns:
            Tensor like the activation.
        """
        del values
        return self.restore(after=[])

    def draw_error(self, values: tf.Tensor) -> tf.Tensor:
        """Draws an error such as storing the activation has caused.

        Args:
            values: What `restore` returned.

        Returns:
            Tensor like `values`.
        """
        return tf.zeros_like(values)

    def sign_gradient(
        self, dy: tf.Tensor, negative_slope: float
    ) -> tf.Tensor | None:
        """Gradient of a (leaky) ReLU whose output this is, if it can tell."""
        del dy, negative_slope
        return None

    def add_consumer(self, control: BoundControl, x: tf.Tensor) -> None:
        """Notes that a further layer reads this activation.

        Args:
            control: The error bound that the layer asks for.
            x: The activation.
        """

    def serve(
        self, control: BoundControl, raw_bytes: tf.Tensor | int, scale: Scale
    ) -> None:
        """Tells a control what became of its activation without storing it.

        Args:
            control: The error bound of the layer that reads it.
            raw_bytes: Bytes that this saves; 0 when another one told of them.
            scale: Makes the factor from errors of this activation to those of
                what the layer reads; `None` for 1.
        """


class ExactTensor(SavedTensor):
    """The tensor itself: too small, or of a type that is not compressed."""

    def __init__(self, tensor: tf.Tensor) -> None:
        self._tensor = tensor

    def restore(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """See `SavedTensor.restore`."""
        if not tf.inside_function():
            return self._tensor
        # Else what is computed from it again would be the forward pass's own
        # operation to TensorFlow's optimiser: it would run early, keep its
        # result, and not be fused as in the plain model.
        with tf.control_dependencies(list(after)):
            return tf.identity(self._tensor)


class CompressedTensor(SavedTensor):
    """A codec's stream, with what is needed to restore the tensor.

    Args:
        x: Tensor to store.
        codec: Codec that stores it.
        control: The activation's error bound, and where its statistics go.
    """

    codec: Codec
    counted = True

    def __init__(
        self, x: tf.Tensor, codec: Codec, control: BoundControl
    ) -> None:
        self.control = control
        self.codec = codec
        self._dtype = x.dtype
        self.static_shape = x.shape
        self._shape = tf.shape(x, out_type=tf.int64)
        self._stream, self._info = compress(codec, x, control)
        # Read by the memory report and by the callback that adapts the bound.
        control.stream_info.assign(self._info)
        traces.note_use(control)
        self.stored = (self._stream,)

    def elements(self) -> int:
        """The number of elements on the latest step."""
        raw_bytes = self.control.read_stream_info().raw_bytes
        return round(raw_bytes / self._dtype.size)

    def restore(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """See `SavedTensor.restore`."""
        with tf.control_dependencies(list(after)):
            return self._decompress(self._shape)

    def _decompress(self, shape: tf.Tensor) -> tf.Tensor:
        values = self.codec.decompress(self._stream, shape, self._dtype)
        values.set_shape(self.static_shape)
        return values

    def restore_again(self, values: tf.Tensor) -> tf.Tensor:
        """See `SavedTensor.restore_again`."""
        return self._decompress(
            self._shape + tf.cast(statistics.zero_after(values), tf.int64)
        )

    def draw_error(self, values: tf.Tensor) -> tf.Tensor:
        """See `SavedTensor.draw_error`."""
        return statistics.draw_error(self.control, values)

    def sign_gradient(
        self, dy: tf.Tensor, negative_slope: float
    ) -> tf.Tensor | None:
        """See `SavedTensor.sign_gradient`."""
        if not self.codec.keeps_sign(negative_slope):
            return None
        return self.codec.sign_gradient(self._stream, dy, negative_slope)

    def add_consumer(self, control: BoundControl, x: tf.Tensor) -> None:
        """See `SavedTensor.add_consumer`."""
        self.serve(control, 0, None)

    def serve(
        self, control: BoundControl, raw_bytes: tf.Tensor | int, scale: Scale
    ) -> None:
        """See `SavedTensor.serve`."""
        if control is self.control:
            return
        _, _, nonzero_fraction, bound = tf.unstack(self._info)
        if scale is not None:
            bound *= tf.cast(scale(), bound.dtype)
        raw_bytes = tf.cast(raw_bytes, bound.dtype)
        stream_bytes = tf.zeros_like(bound)
        control.stream_info.assign(
            tf.stack([raw_bytes, stream_bytes, nonzero_fraction, bound])
        )
        for one, other in (
            (self.control, control.name),
            (control, self.control.name),
        ):
            traces.note_use(one, [other])
            if other not in one.shared_with:
                one.shared_with.append(other)


class DerivedTensor(SavedTensor):
    """A tensor that a cheap function makes from another saved tensor.

    Args:
        parent: The saved tensor that is really stored.
        function: Maps the parent's values to this tensor's values.
        scale: Makes the factor by which the function scales errors, where
            that is far from 1: the root mean square of its derivative. It may
            be rough; steps that collect statistics measure it.
        stored: Further tensors that the function reads, such as a mask.
        counted: Whether the parent stands for this tensor's bytes, too.
    """

    derived = True

    def __init__(
        self,
        parent: SavedTensor,
        function: Callable[[tf.Tensor], tf.Tensor],
        scale: Scale = None,
        stored: Sequence[tf.Tensor] = (),
        counted: bool = False,
    ) -> None:
        self._parent = parent
        self._function = function
        self._scale = scale
        self.counted = counted
        self.stored = (*parent.stored, *stored)
        self.codec = parent.codec

    def restore(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """See `SavedTensor.restore`."""
        return self._function(self._parent.restore(after))

    def restore_again(self, values: tf.Tensor) -> tf.Tensor:
        """See `SavedTensor.restore_again`."""
        return self._function(self._parent.restore_again(values))

    def draw_error(self, values: tf.Tensor) -> tf.Tensor:
        """See `SavedTensor.draw_error`."""
        source = self._parent.restore_again(values)
        error = self._parent.draw_error(source)
        return self._function(source + error) - values

    def add_consumer(self, control: BoundControl, x: tf.Tensor) -> None:
        """See `SavedTensor.add_consumer`."""
        raw_bytes: tf.Tensor | int = 0
        if not self.counted:
            raw_bytes = tf.size(x, tf.int64) * x.dtype.size
            self.counted = True
        self.serve(control, raw_bytes, None)

    def serve(
        self, control: BoundControl, raw_bytes: tf.Tensor | int, scale: Scale
    ) -> None:
        """See `SavedTensor.serve`."""
        self._parent.serve(control, raw_bytes, _product(self._scale, scale))


class LateTensor(SavedTensor):
    """A saved tensor that becomes known while its layer runs: `handle`."""

    handle: SavedTensor

    @property
    def codec(self) -> Codec | None:  # type: ignore[override]
        """See `SavedTensor.codec`."""
        return self.handle.codec

    @property
    def derived(self) -> bool:  # type: ignore[override]
        """See `SavedTensor.derived`."""
        return self.handle.derived

    @property
    def counted(self) -> bool:  # type: ignore[override]
        """See `SavedTensor.counted`."""
        return self.handle.counted

    def restore(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """See `SavedTensor.restore`."""
        return self.handle.restore(after)

    def restore_again(self, values: tf.Tensor) -> tf.Tensor:
        """See `SavedTensor.restore_again`."""
        return self.handle.restore_again(values)

    def draw_error(self, values: tf.Tensor) -> tf.Tensor:
        """See `SavedTensor.draw_error`."""
        return self.handle.draw_error(values)


def _product(one: Scale, other: Scale) -> Scale:
    if one is None or other is None:
        return one or other
    first, second = one, other
    return lambda: first() * second()


def worth_compressing(x: tf.Tensor, min_bytes: int) -> bool:
    """Whether `x` has a float type and is large enough to be compressed."""
    if x.dtype not in FLOAT_TYPES or x.shape.rank is None:
        return False
    elements = math.prod(
        _UNKNOWN_DIMENSION if size is None else size for size in x.shape
    )
    return elements * x.dtype.size >= min_bytes


def save(x: tf.Tensor, codec: Codec, control: BoundControl) -> SavedTensor:
    """Stores an activation for the backward pass.

    Args:
        x: Tensor of a float type, any shape.
        codec: Codec that stores it.
        control: Error bound of the layer that asks.

    Returns:
        The `SavedTensor`; the same one for the same tensor.
    """
    handle = traces.lookup(x)
    if handle is None:
        return traces.remember(x, CompressedTensor(x, codec, control))
    if handle.codec is not None and handle.codec is not codec:
        # Of another wrapped model, which asks for something else.
        return CompressedTensor(x, codec, control)
    handle.add_consumer(control, x)
    return handle

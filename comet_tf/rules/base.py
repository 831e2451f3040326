# SPDX-License-Identifier: Apache-2.0
"""What a rule works with: the wrapped layer and the arguments of its call."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from comet_tf import codecs, saved_tensors, traces
from comet_tf.config import CompressionConfig
from comet_tf.error_bound.control import BoundControl
from comet_tf.rules.slots import Slots
from comet_tf.saved_tensors import SavedTensor


class CallArguments:
    """The arguments of one layer call, with its float tensors set apart.

    Only those take part in the gradient; everything else (masks, indices,
    flags) is passed on as it is.

    Args:
        args: Tuple. Positional arguments of the call.
        kwargs: Dict. Keyword arguments of the call.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._structure = (args, kwargs)
        self._leaves = [
            tf.convert_to_tensor(leaf)
            if isinstance(leaf, tf.Variable)
            else leaf
            for leaf in keras.tree.flatten(self._structure)
        ]
        self._indices = [
            index
            for index, leaf in enumerate(self._leaves)
            if tf.is_tensor(leaf) and leaf.dtype.is_floating
        ]

    @property
    def tensors(self) -> list[tf.Tensor]:
        """The float tensors, in order."""
        return [self._leaves[index] for index in self._indices]

    @property
    def compressible(self) -> bool:
        """Whether rules can work with them.

        Those expect float tensors of 16 or 32 bits, one at least. Without any
        (counts, pixels, one-hot integers) there is nothing to differentiate.
        """
        return bool(self._indices) and all(
            isinstance(x, tf.Tensor) and x.dtype in saved_tensors.FLOAT_TYPES
            for x in self.tensors
        )

    @property
    def training(self) -> bool:
        """Whether the layer itself is told to behave as in training."""
        return bool(self._structure[1].get("training"))

    def emptied(self) -> "CallArguments":
        """Returns the same without the float tensors, for `replaced` only.

        What a gradient refers to stays in memory until the backward pass.
        """
        other = copy.copy(self)
        other._leaves = list(self._leaves)
        for index in self._indices:
            other._leaves[index] = None
        other._structure = keras.tree.pack_sequence_as(
            self._structure, other._leaves
        )
        return other

    def replaced(
        self, tensors: Sequence[tf.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns `(args, kwargs)` with other float tensors in their place."""
        leaves = list(self._leaves)
        for index, tensor in zip(self._indices, tensors, strict=True):
            leaves[index] = tensor
        return keras.tree.pack_sequence_as(self._structure, leaves)


class WrappedLayer:
    """One layer of a wrapped model: its own code, its config, its bounds.

    Args:
        layer: Keras layer.
        call: The layer's own `call`, bound.
        config: `CompressionConfig`.
        path: String. Unique within the model; names the layer in reports.
        make_control: Function `(name, kind, weights) -> BoundControl`.
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        call: Callable[..., Any],
        config: CompressionConfig,
        path: str,
        make_control: Callable[[str, str, Sequence[Any]], BoundControl],
    ) -> None:
        self.layer = layer
        self.call = call
        self.config = config
        self.path = path
        self.controls: dict[str, BoundControl] = {}
        #: Whether the backward pass can collect statistics for the bounds.
        self.observed = False
        #: Why a part of the layer is left alone; for the memory report.
        self.note = ""
        #: Why its own gradient is used, once running its code has shown that.
        self.own_gradient = ""
        #: With which values of `training` its code was tried out.
        self.tried_out: set[bool | None] = set()
        #: Whether the layer was given its own code back.
        self.released = False
        self._slots = Slots(path)
        self._codec = codecs.get(config)
        self._make_control = make_control

    def control(
        self,
        x: tf.Tensor,
        slot: str,
        kind: str,
        weights: Sequence[keras.Variable] = (),
    ) -> BoundControl | None:
        """Returns the error bound of an activation of this layer.

        Args:
            x: Tensor that is to be saved.
            slot: String. What it is to the layer, such as `"input"`.
            kind: String. `"weight_gradient"` or `"activation_gradient"`, see
                `BoundControl`.
            weights: Variables whose gradients read the activation.

        Returns:
            The `BoundControl`, the same one at every trace, or `None` when
            the tensor is not worth compressing.
        """
        if not saved_tensors.worth_compressing(x, self.config.min_bytes):
            return None
        name = self._slots.name(x, slot)
        if name not in self.controls:
            self.controls[name] = self._make_control(name, kind, weights)
        return self.controls[name]

    def save(self, x: tf.Tensor, control: BoundControl | None) -> SavedTensor:
        """Stores an activation of this layer for its backward pass.

        Args:
            x: Tensor to store.
            control: What `control` returned for it; `None` keeps it as it is.

        Returns:
            The `SavedTensor`.
        """
        if control is None:
            return saved_tensors.ExactTensor(x)
        saved = saved_tensors.save(x, self._codec, control)
        self._slots.take(control.name, saved)
        return saved

    @property
    def exact(self) -> bool:
        """Whether the layer's codec keeps tensors as they are."""
        return getattr(self._codec, "exact", False)

    def already_saved(self, x: tf.Tensor) -> SavedTensor | None:
        """The handle of `x`, where something keeps it as this layer would."""
        saved = traces.lookup(x)
        if saved is None or saved.codec is not self._codec:
            return None
        return saved

    def own_call(self, arguments: CallArguments) -> Callable[..., Any]:
        """Returns the layer's own code as a function of its float tensors."""

        def call(*tensors: tf.Tensor) -> Any:
            args, kwargs = arguments.replaced(tensors)
            return self.call(*args, **kwargs)

        return call

    def call_with(
        self,
        variables: Sequence[keras.Variable],
        values: Sequence[tf.Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        **overrides: Any,
    ) -> tuple[Any, keras.StatelessScope]:
        """Runs the layer's own code on `values` instead of its variables.

        Its code is then a function of tensors alone, which can be called
        again, on restored activations, in the backward pass.

        Args:
            variables: Variables of the layer.
            values: Tensors to read in their place.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
            **overrides: Attributes of the layer to set meanwhile.

        Returns:
            Tuple of the layer's outputs and the scope, which knows the new
            values of variables that the code assigned.
        """
        scope = keras.StatelessScope(collect_losses=True)
        for variable, value in zip(variables, values, strict=True):
            # Not through the constructor, which casts to the variable's type:
            # under mixed precision the values are already autocast.
            scope.add_update((variable, value))

        def run() -> Any:
            with scope, attributes(self.layer, **overrides):
                return self.call(*args, **kwargs)

        layer = self.layer
        if layer.compute_dtype == layer.variable_dtype:
            return run(), scope
        return _Autocast(dtype=layer.dtype_policy)(run), scope

    def parameters(self) -> tuple[list[keras.Variable], list[tf.Tensor]]:
        """Returns the trainable variables and their values as tensors."""
        variables = list(self.layer.trainable_variables)
        values = [tf.convert_to_tensor(v.value) for v in variables]
        return variables, values


class _Autocast(keras.layers.Layer):
    """Runs a function under a mixed-precision policy.

    The backward pass is outside of all layers, where Keras does not cast
    variables to the compute type; a layer of the same policy makes it do so.
    """

    def __init__(self, dtype: Any) -> None:
        # The name Keras would make of the class is none for TensorFlow.
        super().__init__(name="autocast", dtype=dtype, autocast=True)
        self._allow_non_tensor_positional_args = True

    def call(self, function: Callable[[], Any]) -> Any:
        return function()


@contextlib.contextmanager
def attributes(layer: keras.layers.Layer, **values: Any) -> Iterator[None]:
    """Sets attributes of a layer while a part of its own code runs."""
    before = {name: vars(layer)[name] for name in values if name in vars(layer)}
    try:
        # Past Keras' attribute tracking: nothing here becomes a sublayer.
        vars(layer).update(values)
        yield
    finally:
        for name in values:
            if name in before:
                vars(layer)[name] = before[name]
            else:  # It came from the class, and so it shall again.
                del vars(layer)[name]


RuleFunction = Callable[[WrappedLayer, CallArguments], Any]


@dataclasses.dataclass(frozen=True)
class Rule:
    """How a kind of layer trains from saved tensors.

    Args:
        function: Function `(wrapped, arguments) -> outputs` that replaces the
            layer's `call` while it trains.
        saves: String. What the layer keeps, for the memory report; empty for
            a layer that keeps nothing.
        unsupported: Function `layer -> reason`; a reason (a string) means
            that this layer is left alone, `None` that the rule applies.
    """

    function: RuleFunction
    saves: str
    unsupported: Callable[[keras.layers.Layer], str | None] = lambda _: None

    def apply(
        self, wrapped: WrappedLayer, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Calls a layer in training, by its rule where that can be.

        Whether it can was asked when the model was wrapped, but a layer may
        have been built or thawed since.

        Args:
            wrapped: The layer.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.

        Returns:
            What the layer returns.
        """
        arguments = CallArguments(args, kwargs)
        reason = self.unsupported(wrapped.layer)
        if reason is not None:
            wrapped.note = f"it {reason}"
        if reason is not None or not arguments.compressible:
            return wrapped.call(*args, **kwargs)
        return self.function(wrapped, arguments)

# SPDX-License-Identifier: Apache-2.0
"""Gradients by running the layer's own code again on restored inputs.

Right for every layer without state. Random numbers are drawn again from the
seeds of the forward pass, so dropout inside the layer has the same mask.
Operations whose results no gradient reads, such as the convolution itself, are
pruned from the graph, so for a convolution nothing is really computed twice.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from comet_tf import scheduling
from comet_tf.error_bound import control as error_bound
from comet_tf.rules import repeatable, statistics
from comet_tf.rules.base import CallArguments, Rule, WrappedLayer, attributes
from comet_tf.rules.outputs import Outputs


def recompute(
    wrapped: WrappedLayer,
    arguments: CallArguments,
    linear: bool = False,
    **overrides: Any,
) -> Any:
    """Calls a layer and keeps only its inputs, compressed.

    Args:
        wrapped: The layer.
        arguments: Arguments of the call.
        linear: Boolean. Whether the layer is linear in its (one) input.
        **overrides: Attributes of the layer to set while its code runs.

    Returns:
        What the layer's own code returns.
    """
    _try_out(wrapped, arguments, overrides)
    if wrapped.own_gradient:
        return _plain(wrapped, arguments, overrides)
    variables, values = wrapped.parameters()
    inputs, places = _distinct(arguments.tensors)
    count, others = len(inputs), arguments.emptied()
    masks = [getattr(x, "_keras_mask", None) for x in inputs]
    generators = _random_states(wrapped.layer)
    seeds = [tf.identity(state.value) for state in generators]
    training = wrapped.layer._get_call_context().get_value("training")
    returned: list[Outputs] = []

    def run(
        tensors: Sequence[tf.Tensor], parameters: Sequence[tf.Tensor]
    ) -> tuple[Outputs, keras.StatelessScope]:
        for tensor, mask in zip(tensors, masks, strict=True):
            _pass_mask(mask, tensor)
        args, kwargs = others.replaced([tensors[i] for i in places])
        outputs, scope = wrapped.call_with(
            [*variables, *generators],
            [*parameters, *seeds],
            args,
            kwargs,
            **overrides,
        )
        return Outputs(outputs), scope

    def forward(tensors: scheduling.Tensors) -> list[tf.Tensor]:
        outputs, scope = run(tensors, values)
        reason = _adds_losses(scope) or outputs.unusual
        if reason:
            raise _OwnGradientError(reason)
        returned[:] = [outputs]
        for x, tensor in zip(inputs, tensors, strict=True):
            if getattr(tensor, "_keras_mask", None) is None:
                # Attention takes the masks away from its inputs.
                x._keras_mask = None
        for state, seed in zip(generators, seeds, strict=True):
            following = scope.get_current_value(state)
            if following is not seed:
                state.assign(following)
        return outputs.tensors

    def gradients(
        dys: scheduling.Tensors,
        restored: scheduling.Tensors,
        parameters: scheduling.Tensors,
    ) -> tuple[scheduling.Gradients, scheduling.Gradients]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            sources = [*restored, *parameters]
            tape.watch(sources)
            if linear:
                outputs, _ = run(restored, parameters)
            else:
                outputs, _ = _Again()(
                    lambda: run(restored, parameters), training=training
                )
        computed = tape.gradient(
            outputs.tensors, sources, output_gradients=list(dys)
        )
        return computed[:count], computed[count:]

    # A bias's gradient reads no input. (Not by rank: kernels may be vectors.)
    bias = getattr(wrapped.layer, "bias", None) if linear else None
    is_kernel = [
        variable is not bias if linear else len(variable.shape) > 1
        for variable in variables
    ]
    if linear and not any(is_kernel):
        # A linear layer reads its input for its weights only, and they are
        # frozen; its own gradient keeps nothing.
        return _plain(wrapped, arguments, overrides)

    kind = (
        error_bound.WEIGHT_GRADIENT
        if linear
        else error_bound.ACTIVATION_GRADIENT
    )
    kernels = [v for v, use in zip(variables, is_kernel, strict=True) if use]
    slots = (
        ["input"]
        if len(inputs) == 1
        else [f"input{index}" for index in range(len(inputs))]
    )
    controls = [
        wrapped.control(x, slot, kind, kernels)
        for x, slot in zip(inputs, slots, strict=True)
    ]
    saved = [
        wrapped.save(x, control)
        for x, control in zip(inputs, controls, strict=True)
    ]
    if linear:
        observe = statistics.weight_gradient(
            wrapped, controls[0], saved[0], gradients, values, is_kernel
        )
    else:
        observe = statistics.passed_on(
            wrapped, controls, saved, gradients, values
        )
    try:
        tensors = scheduling.with_gradient(
            forward,
            inputs,
            values,
            scheduling.Backward(
                saved=saved,
                gradients=gradients,
                linear=linear,
                observe=observe,
            ),
        )
    except _OwnGradientError as error:
        wrapped.own_gradient = str(error)
        return _plain(wrapped, arguments, overrides)
    return returned[0].replaced(tensors)


def _try_out(
    wrapped: WrappedLayer, arguments: CallArguments, overrides: dict[str, Any]
) -> None:
    """Finds out whether code from outside of Keras may run again."""
    layer = wrapped.layer
    mode = layer._get_call_context().get_value("training")
    mode = mode if isinstance(mode, bool) else None
    if wrapped.own_gradient or mode in wrapped.tried_out:
        return
    wrapped.tried_out.add(mode)
    if not repeatable.is_foreign(layer):
        return
    inputs = arguments.tensors

    def run(tensors: Sequence[tf.Tensor]) -> keras.StatelessScope:
        for tensor, x in zip(tensors, inputs, strict=True):
            _pass_mask(getattr(x, "_keras_mask", None), tensor)
        args, kwargs = arguments.replaced(tensors)
        return wrapped.call_with([], [], args, kwargs, **overrides)[1]

    wrapped.own_gradient = repeatable.why_not(
        run, inputs, _random_states(layer), layer
    )


def _pass_mask(mask: tf.Tensor | None, tensor: tf.Tensor) -> None:
    if mask is not None:
        # Keras passes masks on as attributes of tensors.
        tensor._keras_mask = mask


class _OwnGradientError(Exception):
    """What running the layer's code showed rules out a gradient of ours."""


def _adds_losses(scope: keras.StatelessScope) -> str:
    # A loss that its code adds would need a gradient of its own.
    return "it adds losses" if scope.losses else ""


def _plain(
    wrapped: WrappedLayer, arguments: CallArguments, overrides: dict[str, Any]
) -> Any:
    """The layer's own call, with its own gradient."""
    if wrapped.own_gradient:
        wrapped.note = f"{wrapped.own_gradient}, so its own gradient is used"
    with attributes(wrapped.layer, **overrides):
        args, kwargs = arguments.replaced(arguments.tensors)
        return wrapped.call(*args, **kwargs)


def _distinct(
    tensors: Sequence[tf.Tensor],
) -> tuple[list[tf.Tensor], list[int]]:
    """Lists each tensor once, and for every argument which of them it is.

    In self-attention query, key and value are one tensor: restored once.
    """
    distinct = list({id(tensor): tensor for tensor in tensors}.values())
    index = {id(tensor): i for i, tensor in enumerate(distinct)}
    return distinct, [index[id(tensor)] for tensor in tensors]


def _random_states(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The states of a layer's random generators, those of its parts too."""
    return [
        generator.state
        for part in layer._flatten_layers()
        for generator in part._seed_generators
    ]


class _Again(keras.layers.Layer):
    """Runs code as inside a layer that was told whether it is training.

    In the backward pass no outer layer is there to tell the parts of a layer,
    such as a dropout, that are not told by an argument.
    """

    def __init__(self) -> None:
        super().__init__(name="again", autocast=False)
        self._allow_non_tensor_positional_args = True

    def call(
        self, function: Callable[[], Any], training: bool | None = None
    ) -> Any:
        """Calls `function`; Keras has noted `training` for what it calls."""
        del training
        return function()


def _has_state(layer: keras.layers.Layer) -> str | None:
    # Weights, not variables: seeds of random generators are no obstacle.
    has_state = bool(layer.non_trainable_weights) and layer.trainable
    if has_state or getattr(layer, "stateful", False):
        return "has state that its own code updates"
    return None


RECOMPUTE = Rule(recompute, "input, compressed", _has_state)

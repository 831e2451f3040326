# SPDX-License-Identifier: Apache-2.0
"""Gradients by running the layer's own code again on restored inputs.

Right for every layer without state or randomness. Operations whose results no
gradient reads, such as the convolution itself, are pruned from the graph, so
for a convolution nothing is really computed twice.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from comet_tf import scheduling
from comet_tf.error_bound import control as error_bound
from comet_tf.rules import statistics
from comet_tf.rules.base import CallArguments, Rule, WrappedLayer, attributes


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
    variables, values = wrapped.parameters()
    inputs = arguments.tensors
    structure: list[Any] = []

    def run(
        tensors: Sequence[tf.Tensor], parameters: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        args, kwargs = arguments.replaced(tensors)
        outputs, _ = wrapped.call_with(
            variables, parameters, args, kwargs, **overrides
        )
        structure[:] = [outputs]
        return keras.tree.flatten(outputs)

    def gradients(
        dys: scheduling.Tensors,
        restored: scheduling.Tensors,
        parameters: scheduling.Tensors,
    ) -> tuple[scheduling.Gradients, scheduling.Gradients]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            sources = [*restored, *parameters]
            tape.watch(sources)
            outputs = run(restored, parameters)
        computed = tape.gradient(outputs, sources, output_gradients=list(dys))
        return computed[: len(inputs)], computed[len(inputs) :]

    if linear and not values:
        # A linear layer reads its input for its weights only, and they are
        # frozen; its own gradient keeps nothing.
        with attributes(wrapped.layer, **overrides):
            args, kwargs = arguments.replaced(inputs)
            return wrapped.call(*args, **kwargs)

    kind = (
        error_bound.WEIGHT_GRADIENT
        if linear
        else error_bound.ACTIVATION_GRADIENT
    )
    kernels = [v for v in variables if len(v.shape) > 1]
    slots = (
        ["input"]
        if len(inputs) == 1
        else [f"input{index}" for index in range(len(inputs))]
    )
    controls = [
        wrapped.control(x, slot, kind, kernels)
        for x, slot in zip(inputs, slots, strict=True)
    ]
    if linear:
        is_kernel = [len(v.shape) > 1 for v in variables]
        observe = statistics.weight_gradient(
            wrapped, controls[0], gradients, values, is_kernel
        )
    else:
        observe = statistics.passed_on(wrapped, controls, gradients, values)
    outputs = scheduling.with_gradient(
        lambda tensors: run(tensors, values),
        inputs,
        values,
        scheduling.Backward(
            saved=[
                wrapped.save(x, control)
                for x, control in zip(inputs, controls, strict=True)
            ],
            gradients=gradients,
            linear=linear,
            observe=observe,
        ),
    )
    return keras.tree.pack_sequence_as(structure[0], outputs)


def _has_state(layer: keras.layers.Layer) -> str | None:
    if layer.non_trainable_variables and layer.trainable:
        return "has state that its own code updates"
    return None


RECOMPUTE = Rule(recompute, "input, compressed", _has_state)

# SPDX-License-Identifier: Apache-2.0
"""The gradient of a layer from saved tensors, and when each step may run.

The executor runs an operation as soon as its inputs are there, and a training
step is one graph. Three rules, applied here once for every layer, make that
graph use less memory than the plain one:

1. Restoring waits for the incoming gradient; else every activation would be
   restored right after it was compressed.
2. The gradient leaves for earlier layers only after everything that reads the
   restored activation is done, so that it is freed first.
3. The layer's output leaves for later layers only after its input is
   compressed, so that the input is freed first.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from comet_tf.ops.boundary_ops import gradient_boundary
from comet_tf.saved_tensors import SavedTensor, graph_trace

Tensors = Sequence[tf.Tensor]
Gradients = list[tf.Tensor | None]


@dataclasses.dataclass(frozen=True)
class Backward:
    """How a layer's gradients come from what was saved.

    Args:
        saved: The activations that the gradients read.
        gradients: Function `(dys, restored, parameters) -> (input gradients,
            parameter gradients)`; `None` stands for no gradient.
        linear: Boolean. Whether the layer is linear in its inputs: then the
            input gradients do not read the restored values, and are computed
            after those are freed.
        observe: Optional function `(dys, restored, parameter gradients) ->
            tensors`
            that records statistics; it runs before the gradient moves on.
    """

    saved: Sequence[SavedTensor]
    gradients: Callable[
        [Tensors, Tensors, Tensors], tuple[Gradients, Gradients]
    ]
    linear: bool = False
    observe: Callable[[Tensors, Tensors, Gradients], Tensors] | None = None


def after(tensor: tf.Tensor, dependencies: Tensors) -> tf.Tensor:
    """Returns `tensor`, not before all of `dependencies` is there."""
    if not dependencies:
        return tensor
    with tf.control_dependencies(list(dependencies)):
        return tf.identity(tensor)


def with_gradient(
    forward: Callable[[], Tensors],
    inputs: Tensors,
    parameters: Tensors,
    backward: Backward,
) -> list[tf.Tensor]:
    """Runs a layer's own code and gives it a gradient from saved tensors.

    Args:
        forward: Function that returns the outputs of the layer's own code.
        inputs: Tensors that `forward` reads and whose gradients `backward`
            computes.
        parameters: Tensors of the layer's trainable variables, read outside.
        backward: The gradients, from saved tensors.

    Returns:
        List of tensors equal to what `forward` returned.
    """
    inputs, parameters = list(inputs), list(parameters)

    def gradient(*dys: tf.Tensor) -> Gradients:
        input_gradients, parameter_gradients = _scheduled(
            backward, dys, parameters
        )
        return [*input_gradients, *parameter_gradients]

    if not any(map(tf.is_symbolic_tensor, [*inputs, *parameters])):
        return _with_eager_gradient(forward, inputs + parameters, gradient)
    peeled = [_peel(output) for output in forward()]
    stored = [tensor for saved in backward.saved for tensor in saved.stored]
    gradients = graph_trace(peeled[0].tensor.graph).gradients
    gradients.append(gradient)
    outputs = gradient_boundary(
        [after(output.tensor, stored) for output in peeled],
        inputs + parameters,
        key=len(gradients) - 1,
    )
    return [
        output.restore(tensor)
        for output, tensor in zip(peeled, outputs, strict=True)
    ]


@dataclasses.dataclass(frozen=True)
class _Peeled:
    """A layer's output without the additions of small terms at its end."""

    tensor: tf.Tensor
    restore: Callable[[tf.Tensor], tf.Tensor]


def _peel(output: tf.Tensor) -> _Peeled:
    """Splits the last additions (bias, batch-norm offset) off an output.

    TensorFlow's graph optimiser merges chains of additions across layers and
    so changes their rounding (`AddOpsRewriteStage` of the arithmetic
    optimiser). It must see the same chains as in the plain model, or the
    wrapped forward pass would differ in the last bit. Hence the boundary goes
    below them. Their gradient is the identity, so the layer's gradient, which
    covers the added terms too, is unchanged.
    """
    if output.op.type != "AddV2":
        return _Peeled(output, lambda tensor: tensor)
    first, second = output.op.inputs
    for term, inner, add in (
        (second, first, tf.add),
        (first, second, lambda inner, term: tf.add(term, inner)),
    ):
        if _is_small(term, inner, output):
            below = _peel(inner)
            # Stopped, since the layer's own gradient covers the term.
            restore = functools.partial(
                _add_back, below, add, tf.stop_gradient(term)
            )
            return _Peeled(below.tensor, restore)
    return _Peeled(output, lambda tensor: tensor)


def _add_back(
    below: _Peeled,
    add: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    term: tf.Tensor,
    tensor: tf.Tensor,
) -> tf.Tensor:
    return add(below.restore(tensor), term)


def _is_small(term: tf.Tensor, inner: tf.Tensor, output: tf.Tensor) -> bool:
    """Whether adding `term` leaves the shape of `inner` as it is."""
    return (
        term.shape.is_fully_defined()
        and inner.shape.rank == output.shape.rank
        and inner.shape.as_list() == output.shape.as_list()
        and term.shape.as_list() != output.shape.as_list()
    )


def _scheduled(
    backward: Backward, dys: Tensors, parameters: Tensors
) -> tuple[Gradients, Gradients]:
    """Computes the gradients in the order that frees memory soonest."""
    dys = [tf.convert_to_tensor(dy) for dy in dys]
    restored = [saved.restore(after=dys) for saved in backward.saved]
    if backward.linear and parameters and tf.inside_function():
        # The graph prunes what either call does not use.
        _, of_parameters = backward.gradients(dys, restored, parameters)
        done = [tensor for tensor in of_parameters if tensor is not None]
        done += _observed(backward, dys, restored, of_parameters)
        later = [after(dy, done) for dy in dys]
        of_inputs, _ = backward.gradients(later, restored, parameters)
        return of_inputs, of_parameters
    of_inputs, of_parameters = backward.gradients(dys, restored, parameters)
    done = [t for t in (*of_inputs, *of_parameters) if t is not None]
    done += _observed(backward, dys, restored, of_parameters)
    if len(done) > 1:
        of_inputs = [
            None if dx is None else after(dx, done) for dx in of_inputs
        ]
    return of_inputs, of_parameters


def _observed(
    backward: Backward,
    dys: Tensors,
    restored: Tensors,
    of_parameters: Gradients,
) -> list[tf.Tensor]:
    if backward.observe is None:
        return []
    return list(backward.observe(dys, restored, of_parameters))


def _with_eager_gradient(
    forward: Callable[[], Tensors],
    arguments: Tensors,
    gradient: Callable[..., Gradients],
) -> list[tf.Tensor]:
    # Inside a custom gradient nothing is recorded on the tape, which would
    # hold every tensor it saw. Eager mode leaves no registration behind.
    @tf.custom_gradient
    def boundary(*_: tf.Tensor) -> Any:
        return list(forward()), gradient

    return list(boundary(*arguments))


@tf.RegisterGradient("Comet>GradientBoundary")
def _boundary_gradient(op: Any, *dys: tf.Tensor) -> Gradients:
    graph = op.outputs[0].graph
    trace = graph_trace(graph)
    if trace.backward_start is None:
        trace.backward_start = len(graph.get_operations())
    gradients = trace.gradients[op.get_attr("key")](*dys)
    # No gradient for the outputs that came in: the path on which the layer's
    # own code computed them holds the activations that must not be kept.
    return [None] * len(dys) + list(gradients)

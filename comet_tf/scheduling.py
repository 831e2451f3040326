# SPDX-License-Identifier: Apache-2.0
"""The gradient of a layer from saved tensors, and when each step may run.

The executor runs an operation as soon as its inputs are there, and a training
step is one graph. Three rules, applied here once for every layer, make that
graph use less memory than the plain one:

1. Restoring waits for the incoming gradient; else every activation would be
   restored right after it was compressed.
2. The gradient leaves for earlier layers only after everything that reads the
   restored activation is done, so that it is freed first.
   Where branches of a network meet, one gradient reaches several layers at
   once; they take turns, in the order in which they were traced.
3. A layer runs only after its input is compressed, so that the input is freed
   as soon as the layer has run.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# What `tf.custom_gradient` is made of.
from tensorflow.python.eager import record

from comet_tf.saved_tensors import SavedTensor
from comet_tf.traces import Trace, graph_trace

Tensors = Sequence[tf.Tensor]
Gradients = list[tf.Tensor | None]
GradientsOf = Callable[[Tensors, Tensors, Tensors], tuple[Gradients, Gradients]]
Observer = Callable[[Tensors, Tensors, Gradients | None], Tensors]


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
            tensors` that records statistics; it is given `None` where the
            parameter gradients are not there yet. It runs before the gradient
            moves on.
    """

    saved: Sequence[SavedTensor]
    gradients: GradientsOf
    linear: bool = False
    observe: Observer | None = None


def after(tensor: tf.Tensor, dependencies: Tensors) -> tf.Tensor:
    """Returns `tensor`, not before all of `dependencies` is there."""
    if not dependencies:
        return tensor
    with tf.control_dependencies(list(dependencies)):
        return tf.identity(tensor)


def with_gradient(
    forward: Callable[[Tensors], Tensors],
    inputs: Tensors,
    parameters: Tensors,
    backward: Backward,
    stored: Tensors = (),
    wait: bool = True,
) -> list[tf.Tensor]:
    """Runs a layer's own code and gives it a gradient from saved tensors.

    In a graph nothing is added around the layer's operations, and its outputs
    are the very tensors that its code made: TensorFlow's graph optimiser fuses
    and reorders operations across layers, which changes the last bit, and it
    has to find what it finds in the plain model. Only the tape is told of
    another gradient.

    Args:
        forward: Function that maps tensors in place of `inputs` to the outputs
            of the layer's own code.
        inputs: Tensors whose gradients `backward` computes.
        parameters: Tensors of the layer's trainable variables, read outside.
        backward: The gradients, from saved tensors.
        stored: Further tensors, besides the saved ones, that have to be made
            from `inputs` before the layer runs.
        wait: Boolean. Whether the layer waits for what is stored (rule 3).
            Without, the next layer that reads something derived from it does.

    Returns:
        List of what `forward` returned.
    """
    inputs, parameters = list(inputs), list(parameters)
    symbolic = any(map(tf.is_symbolic_tensor, [*inputs, *parameters]))
    # In eager mode the gradient would keep the inputs alive.
    known = inputs if symbolic else []

    def gradient(*dys: tf.Tensor) -> Gradients:
        input_gradients, parameter_gradients = _scheduled(
            backward, dys, parameters
        )
        gradients = [*input_gradients, *parameter_gradients]
        if any(_cuts_tapes(saved) for saved in backward.saved):
            return _once_only([*dys, *known, *parameters], gradients)
        return gradients

    if not symbolic:
        return _with_eager_gradient(
            lambda: forward(inputs), inputs + parameters, gradient
        )
    stored = [
        *stored,
        *(tensor for saved in backward.saved for tensor in saved.stored),
    ]
    arguments = [after(x, stored) for x in inputs] if wait else inputs
    outputs = [
        tf.identity(output) if any(output is x for x in inputs) else output
        for output in forward(arguments)
    ]
    graph_trace(outputs[0].graph).gradients[outputs[0].name] = gradient
    tf.__internal__.record_gradient(_GRADIENT, inputs + parameters, (), outputs)
    return outputs


def _scheduled(
    backward: Backward, dys: Tensors, parameters: Tensors
) -> tuple[Gradients, Gradients]:
    """Computes the gradients in the order that frees memory soonest."""
    dys = [tf.convert_to_tensor(dy) for dy in dys]
    turn = _Turn()
    restored = [
        saved.restore(after=[*dys, *turn.previous]) for saved in backward.saved
    ]
    if backward.linear and parameters and tf.inside_function():
        # The graph prunes what either call does not use.
        _, of_parameters = backward.gradients(dys, restored, parameters)
        done = _of_kernels(of_parameters)
        # Statistics compute another kernel gradient, which needs room of its
        # own: more than the activation, where a convolution unfolds it.
        done += _observed(
            backward,
            [after(dy, done) for dy in dys],
            [after(values, done) for values in restored],
            of_parameters,
        )
        turn.end(done)
        later = [after(dy, done) for dy in dys]
        of_inputs, _ = backward.gradients(later, restored, parameters)
        return of_inputs, of_parameters
    # Statistics first: while they hold on to a tensor, no gradient can be
    # computed in its place.
    observed = _observed(backward, dys, restored, None)
    dys = [after(dy, observed) for dy in dys]
    restored = [after(values, observed) for values in restored]
    of_inputs, of_parameters = backward.gradients(dys, restored, parameters)
    done = [dx for dx in of_inputs if dx is not None]
    done += _of_kernels(of_parameters)
    if backward.saved:
        turn.end(done)
    if len(done) > 1:
        of_inputs = [
            None if dx is None else after(dx, done) for dx in of_inputs
        ]
    return of_inputs, of_parameters


def _of_kernels(gradients: Gradients) -> list[tf.Tensor]:
    """The parameter gradients that others wait for: not those of vectors.

    A bias's gradient reads no activation, so there is nothing to wait for; a
    normalisation's scale has its gradient as soon as the inputs have theirs.
    And nobody may wait for a bias's: where layers share one output gradient,
    TensorFlow computes their biases' gradients once, and oneDNN then makes that
    one operation with the kernel gradient of any of these layers, which may be
    waiting for its turn behind the others.
    """
    return [g for g in gradients if g is not None and g.shape.rank != 1]


class _Turn:
    """One layer's turn among those that hold restored tensors.

    Whoever is traced later waits for whoever was traced before, which cannot
    depend on it; so no circle can arise.
    """

    def __init__(self) -> None:
        self._trace: Trace | None = None
        self.previous: list[tf.Tensor] = []
        if tf.inside_function():
            self._trace = graph_trace(tf.compat.v1.get_default_graph())
            self.previous = self._trace.last_turn

    def end(self, done: list[tf.Tensor]) -> None:
        """Lets the next layer begin once `done` is there."""
        if self._trace is not None and done:
            self._trace.last_turn = done


def _observed(
    backward: Backward,
    dys: Tensors,
    restored: Tensors,
    of_parameters: Gradients | None,
) -> list[tf.Tensor]:
    if backward.observe is None:
        return []
    return list(backward.observe(dys, restored, of_parameters))


def _with_eager_gradient(
    forward: Callable[[], Tensors],
    arguments: Tensors,
    gradient: Callable[..., Gradients],
) -> list[tf.Tensor]:
    # What the tape records itself would hold every tensor that it saw;
    # `tf.custom_gradient` holds the outputs.
    with record.stop_recording():
        outputs = [tf.identity(output) for output in forward()]
    record.record_operation(_GRADIENT, outputs, list(arguments), gradient)
    return outputs


# The tape looks a gradient up under an operation's name. No operation of this
# name is in the graph; it stands for all that a layer's own code does.
_GRADIENT = "Comet>Layer"


@tf.RegisterGradient(_GRADIENT)
def _layer_gradient(op: Any, *dys: tf.Tensor) -> Gradients:
    graph = op.outputs[0].graph
    trace = graph_trace(graph)
    if trace.backward_start is None:
        trace.backward_start = len(graph.get_operations())
    return trace.gradients[op.outputs[0].name](*dys)


# A tape around the gradient does not see that it depends on what was stored:
# a stream of bytes has no gradient. It is told of this operation instead.
_SECOND_ORDER = "Comet>SecondOrder"


def _cuts_tapes(saved: SavedTensor) -> bool:
    """Whether a tape loses sight of an activation while it is saved."""
    return saved.codec is not None and not getattr(saved.codec, "exact", False)


def _once_only(sources: Tensors, gradients: Gradients) -> Gradients:
    """Makes a gradient of these gradients an error; free without a tape."""
    inputs = [*sources, *(g for g in gradients if g is not None)]
    outputs = [None if g is None else tf.identity(g) for g in gradients]
    made = [g for g in outputs if g is not None]
    tf.__internal__.record_gradient(_SECOND_ORDER, inputs, (), made)
    return outputs


@tf.RegisterGradient(_SECOND_ORDER)
def _second_order_gradient(op: Any, *dys: tf.Tensor) -> Gradients:
    del op, dys
    raise NotImplementedError(
        "A gradient of a gradient (gradient penalty, Hessian-vector product) "
        "was asked of a wrapped model. Its gradients are computed from "
        "compressed activations, which have none themselves. Call "
        "`comet_tf.unwrap_model(model)`, or wrap it with "
        "`comet_tf.CompressionConfig(codec='lossless')`."
    )

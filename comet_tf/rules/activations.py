# SPDX-License-Identifier: Apache-2.0
"""Rules for activations: as layers, as `activation=` arguments, by name.

Four kinds, by what their gradient reads:

- a sign pattern or an interval (ReLU, leaky ReLU, ReLU6): exact, see
  `piecewise_linear`;
- the output (sigmoid, tanh, elu, softmax): compressed;
- the input (everything else): compressed; the output is then derived from it,
  so a next layer that needs the output stores nothing.

A function that is not among Keras' or TensorFlow's own is trained from its
input too, if that is all it depends on (`purity`), and otherwise simply called.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from comet_tf import saved_tensors, scheduling, traces
from comet_tf.error_bound.control import ACTIVATION_GRADIENT
from comet_tf.rules import piecewise_linear, purity, statistics
from comet_tf.rules.base import CallArguments, WrappedLayer
from comet_tf.rules.recompute import recompute
from comet_tf.rules.registry import rule

Function = Callable[[tf.Tensor], tf.Tensor]
#: `(output, dy)`, or `(input, dy)`, to the gradient of the input.
ElementGradient = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

_KERAS = keras.activations
_LINEAR = {None, _KERAS.linear, tf.identity}
_SIGN_SLOPES: dict[Any, float] = {
    _KERAS.relu: 0.0,
    tf.nn.relu: 0.0,
    _KERAS.leaky_relu: 0.2,
    tf.nn.leaky_relu: 0.2,
}
_RELU6 = {_KERAS.relu6, tf.nn.relu6}


def _sigmoid_gradient(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.SigmoidGrad(y=y, dy=dy)


def _tanh_gradient(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.TanhGrad(y=y, dy=dy)


def _elu_gradient(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.EluGrad(gradients=dy, outputs=y)


def _selu_gradient(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.SeluGrad(gradients=dy, outputs=y)


def _softmax_gradient(y: tf.Tensor, dy: tf.Tensor, axis: int = -1) -> tf.Tensor:
    return (dy - tf.reduce_sum(dy * y, axis, keepdims=True)) * y


_FROM_OUTPUT: dict[Any, ElementGradient] = {
    _KERAS.sigmoid: _sigmoid_gradient,
    tf.nn.sigmoid: _sigmoid_gradient,
    _KERAS.tanh: _tanh_gradient,
    tf.nn.tanh: _tanh_gradient,
    _KERAS.elu: _elu_gradient,
    tf.nn.elu: _elu_gradient,
    _KERAS.selu: _selu_gradient,
    tf.nn.selu: _selu_gradient,
    _KERAS.softmax: _softmax_gradient,
    tf.nn.softmax: _softmax_gradient,
    _KERAS.exponential: lambda y, dy: dy * y,
}


def _silu_gradient(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """`s + x s (1 - s)` times `dy`, with `s` the sigmoid of `x`.

    The second term takes the place of `x` and the sum that of either, so only
    one tensor is made besides `x` and `dy`; TensorFlow's own makes two.
    """
    s = tf.sigmoid(x)
    return dy * (s + tf.raw_ops.SigmoidGrad(y=s, dy=x))


#: The gradient where TensorFlow's own is not the best.
_FROM_INPUT: dict[Any, ElementGradient | None] = {
    _KERAS.silu: _silu_gradient,
    tf.nn.silu: _silu_gradient,
    **dict.fromkeys(
        [
            _KERAS.celu,
            _KERAS.gelu,
            _KERAS.hard_sigmoid,
            _KERAS.hard_silu,
            _KERAS.hard_tanh,
            _KERAS.hard_shrink,
            _KERAS.log_sigmoid,
            _KERAS.log_softmax,
            _KERAS.mish,
            _KERAS.softplus,
            _KERAS.softsign,
            _KERAS.soft_shrink,
            _KERAS.sparse_plus,
            _KERAS.sparse_sigmoid,
            _KERAS.sparsemax,
            _KERAS.squareplus,
            _KERAS.tanh_shrink,
            _KERAS.threshold,
            tf.nn.gelu,
            tf.nn.softplus,
            tf.nn.softsign,
        ]
    ),
}


#: They jump: a small error of the input may be a large one of the output.
_DISCONTINUOUS = {_KERAS.hard_shrink, _KERAS.threshold}


def _hashable(function: Any) -> bool:
    try:
        hash(function)
    except TypeError:
        return False
    return True


def apply(wrapped: WrappedLayer, function: Any, x: tf.Tensor) -> tf.Tensor:
    """Applies a layer's activation and saves what its gradient reads.

    Args:
        wrapped: The layer whose activation it is.
        function: The activation: a function, a layer, or `None`.
        x: Tensor, the activation's input.

    Returns:
        The activation's output.
    """
    if function is None:
        return x
    if isinstance(function, keras.layers.Layer):
        if type(function) in _LAYERS:
            return _layer(wrapped, function, function, x)
        return function(x)
    if _hashable(function):
        if function in _LINEAR:
            return function(x)
        if function in _SIGN_SLOPES:
            return piecewise_linear.sign(function, x, _SIGN_SLOPES[function])
        if function in _RELU6:
            return piecewise_linear.interval(function, x, upper=6.0)
        if function in _FROM_OUTPUT:
            return _from_output(wrapped, function, x, _FROM_OUTPUT[function])
        if function in _FROM_INPUT:
            return _from_input(
                wrapped,
                function,
                x,
                _FROM_INPUT[function],
                derive=function not in _DISCONTINUOUS,
            )
    if purity.is_pure(function, x):
        return _from_input(wrapped, function, x, derive=False)
    wrapped.note = (
        f"its activation {function!r} draws random numbers, changes state "
        "or reads variables, so it cannot be run again"
    )
    return function(x)


def _from_output(
    wrapped: WrappedLayer,
    function: Function,
    x: tf.Tensor,
    gradient: ElementGradient,
) -> tf.Tensor:
    late = saved_tensors.LateTensor()
    logits: list[Any] = []

    def forward(tensors: scheduling.Tensors) -> list[tf.Tensor]:
        y = function(tensors[0])
        logits[:] = [getattr(y, "_keras_logits", None)]
        return [y]

    def gradients(
        dys: scheduling.Tensors, restored: scheduling.Tensors, *_: Any
    ) -> tuple[scheduling.Gradients, scheduling.Gradients]:
        return [gradient(restored[0], dys[0])], []

    # An activation's output is as large as its input.
    control = wrapped.control(x, "output", ACTIVATION_GRADIENT)
    observe = statistics.passed_on(wrapped, [control], [late], gradients)
    (y,) = scheduling.with_gradient(
        forward,
        [x],
        [],
        scheduling.Backward([late], gradients, observe=observe),
    )
    # The output is saved as the object that the next layer sees, so that both
    # share one stream.
    late.handle = wrapped.save(y, control)
    if logits[0] is not None:
        # Keras' losses look here for the logits, for numerical stability.
        y._keras_logits = logits[0]
    return y


def _from_input(
    wrapped: WrappedLayer,
    function: Function,
    x: tf.Tensor,
    gradient: ElementGradient | None = None,
    derive: bool = True,
) -> tf.Tensor:
    control = wrapped.control(x, "activation_input", ACTIVATION_GRADIENT)
    saved = wrapped.save(x, control)

    def gradients(
        dys: scheduling.Tensors, restored: scheduling.Tensors, *_: Any
    ) -> tuple[scheduling.Gradients, scheduling.Gradients]:
        if gradient is not None:
            return [gradient(restored[0], dys[0])], []
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(restored[0])
            y = function(restored[0])
        return [tape.gradient(y, restored[0], output_gradients=dys[0])], []

    observe = statistics.passed_on(wrapped, [control], [saved], gradients)
    (y,) = scheduling.with_gradient(
        lambda tensors: [function(tensors[0])],
        [x],
        [],
        scheduling.Backward([saved], gradients, observe=observe),
        wait=False,  # Else TensorFlow would not fuse what it fuses in a swish.
    )
    # Else nobody knows how much larger than the input's its error is.
    if derive:
        traces.remember(y, saved_tensors.DerivedTensor(saved, function))
    return y


@rule(
    keras.layers.Activation,
    saves="sign pattern, output or input of the function",
)
@rule(keras.layers.ReLU, saves="sign pattern, exact")
@rule(keras.layers.LeakyReLU, saves="sign pattern, exact")
@rule(keras.layers.ELU, saves="output or input, compressed")
def activation_layer(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """`Activation` and the layers that are one function each."""
    call = wrapped.own_call(arguments)
    return _layer(wrapped, wrapped.layer, call, arguments.tensors[0])


#: Layers that may also be another layer's activation.
_LAYERS = (
    keras.layers.Activation,
    keras.layers.ReLU,
    keras.layers.LeakyReLU,
    keras.layers.ELU,
)


def _layer(
    wrapped: WrappedLayer,
    layer: keras.layers.Layer,
    call: Function,
    x: tf.Tensor,
) -> tf.Tensor:
    """Applies a layer of one function, `wrapped` itself or its activation."""
    if isinstance(layer, keras.layers.Activation):
        return apply(wrapped, layer.activation, x)
    if isinstance(layer, keras.layers.LeakyReLU):
        return piecewise_linear.sign(call, x, float(layer.negative_slope))
    if isinstance(layer, keras.layers.ELU):
        # From its output, unless `alpha` scales that.
        if layer.alpha == 1:
            return _from_output(wrapped, call, x, _elu_gradient)
        return _from_input(wrapped, call, x)
    if isinstance(layer, keras.layers.ReLU):
        if layer.threshold == 0 and layer.max_value is None:
            return piecewise_linear.sign(call, x, float(layer.negative_slope))
        if (
            layer.threshold == 0
            and layer.max_value == 6
            and layer.negative_slope == 0
        ):
            return piecewise_linear.interval(call, x, upper=6.0)
        # Behind a threshold the output jumps.
        return _from_input(wrapped, call, x, derive=layer.threshold == 0)
    return call(x)


@rule(keras.layers.PReLU, saves="input, compressed")
def prelu_layer(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """`PReLU`: its slopes are weights, so its gradient reads the input."""
    return recompute(wrapped, arguments)


@rule(keras.layers.Softmax, saves="output, compressed")
def softmax_layer(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """`Softmax`; with a mask, or over several axes, from its input."""
    axis = wrapped.layer.axis
    call = wrapped.own_call(arguments)
    if not isinstance(axis, int) or len(arguments.tensors) != 1:
        return recompute(wrapped, arguments)
    return _from_output(
        wrapped,
        call,
        arguments.tensors[0],
        functools.partial(_softmax_gradient, axis=axis),
    )

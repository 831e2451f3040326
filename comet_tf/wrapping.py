# SPDX-License-Identifier: Apache-2.0
"""`wrap_model` and `unwrap_model`: a Keras model's layers, in place.

Wrapping sets `call` on layer instances and nothing else, so weights, names,
summary, saving and cloning are those of the plain model, and a saved file
names Keras' own classes only.
"""

import functools
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from typing import Any

import keras
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from comet_tf import instance_calls, rules, wrapped_models
from comet_tf.config import CompressionConfig
from comet_tf.error_bound.control import BoundControl
from comet_tf.error_bound.variables import collection_flag
from comet_tf.ops.library import library
from comet_tf.recording import compiled_by_xla, wants_gradient
from comet_tf.selection import choose_layers
from comet_tf.wrapped_models import Entry, WrappedModel

_LEFT_ALONE = "nothing to keep, or no rule for this class"
_NOT_CHOSEN = "`include` or `exclude` leaves it out"
_OVERRIDDEN = "its `call` was set on the instance, so no rule holds for it"


# Models that `wrap_model` was called with, and told to leave alone.
_switched_off: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def wrap_model(
    model: keras.Model,
    config: CompressionConfig | None = None,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
) -> keras.Model:
    """Makes a model keep its activations compressed while it trains.

    Works in place. Inference runs the layers' original code; training gives
    the same loss and predictions bit for bit, and gradients from activations
    that were restored within their error bound. So do layers that a gradient
    tape records with `training=False`, as in fine-tuning. Wrapping a wrapped
    model wraps it anew with the new arguments. A layer that is part of several
    wrapped models belongs to the one that was wrapped last.

    Args:
        model: Keras model: functional, sequential or subclassed, built or not
            (a model that creates its layers when it is built must be built).
        config: `CompressionConfig`. Defaults to `CompressionConfig()`.
        include: Iterable of layer names. Wraps only these (and what is inside
            them). Defaults to all.
        exclude: Iterable of layer names. Leaves these (and what is inside
            them) as they are. Defaults to none.

    Returns:
        `model` itself.

    Raises:
        TypeError: When `model` is not a Keras model or `config` not a
            `CompressionConfig`.
        ValueError: When a name in `include` or `exclude` matches no layer.
        RuntimeError: When Keras runs on another backend than TensorFlow.
        ImportError: When the op library is missing or does not fit.

    Example:

    ```python
    model = keras.applications.ResNet50(weights=None)
    model = comet_tf.wrap_model(model, exclude=["predictions"])
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(data, callbacks=[comet_tf.AdaptiveErrorBound()])
    ```
    """
    _check_model(model)
    if config is None:
        config = CompressionConfig()
    if not isinstance(config, CompressionConfig):
        raise TypeError(
            "`config` must be a `comet_tf.CompressionConfig`. "
            f"Received: config={config!r}"
        )
    chosen = choose_layers(model, include, exclude)
    if is_wrapped(model):
        unwrap_model(model)
    if not config.enabled:
        _switched_off.add(model)
        return model
    _switched_off.discard(model)
    library()
    state = WrappedModel(collection_flag(_strategy(model)))
    wanted = {id(layer) for layer, _ in chosen}
    for layer, path in _all_layers(model):
        state.there.append(weakref.ref(layer))
        if id(layer) not in wanted:
            state.left_alone[path] = _NOT_CHOSEN
    for layer, path in chosen:
        _wrap_layer(state, layer, path, config)
    state.jit_was_forced = _reset_training(model, jit_off=True)
    wrapped_models.put(model, state)
    return model


def unwrap_model(model: keras.Model) -> keras.Model:
    """Gives a wrapped model its original layers back.

    Args:
        model: Keras model. One that is not wrapped is left as it is.

    Returns:
        `model` itself.

    Raises:
        TypeError: When `model` is not a Keras model.
    """
    _check_model(model)
    _switched_off.discard(model)
    state = wrapped_models.take(model)
    if state is None:
        return model
    for entry in list(state.entries):
        _release(state, entry)
    _reset_training(model, jit_off=False)
    if state.jit_was_forced:
        model.jit_compile = True
    return model


def is_wrapped(model: keras.Model) -> bool:
    """Whether `wrap_model` has wrapped this model."""
    return wrapped_models.get(model) is not None


def wrapped_model(model: keras.Model) -> WrappedModel:
    """Returns what is known about a wrapped model.

    Args:
        model: Keras model.

    Returns:
        Its `WrappedModel`.

    Raises:
        TypeError: When it is not a Keras model.
        ValueError: When it is not wrapped.
    """
    _check_model(model)
    if model in _switched_off:
        raise ValueError(
            f"Compression of model {model.name!r} is off: it was wrapped with "
            "`CompressionConfig(enabled=False)`. Wrap it with `enabled=True`, "
            "or train without `AdaptiveErrorBound` and the memory report."
        )
    state = wrapped_models.get(model)
    if state is None:
        raise ValueError(
            f"Model {model.name!r} is not wrapped. Call "
            "`comet_tf.wrap_model(model)` before `model.fit`."
        )
    return state


def controls(model: keras.Model) -> list[BoundControl]:
    """Returns the error bounds of a wrapped model's saved activations.

    They appear when a layer first trains.

    Args:
        model: Wrapped Keras model.

    Returns:
        List of `BoundControl`, in model order.

    Raises:
        ValueError: When the model is not wrapped.
    """
    return [
        control
        for entry in wrapped_model(model).entries
        for control in entry.wrapped.controls.values()
    ]


def observe(model: keras.Model) -> None:
    """Lets the layers of a wrapped model collect statistics for their bounds.

    That adds operations to the graph of a training step (which run on
    collection steps only), so a model without the callback goes without.

    Args:
        model: Wrapped Keras model.

    Raises:
        ValueError: When the model is not wrapped.
    """
    entries = wrapped_model(model).entries
    if all(entry.wrapped.observed for entry in entries):
        return
    for entry in entries:
        entry.wrapped.observed = True
    if model.train_function is not None:
        model.make_train_function(force=True)


def newcomers(model: keras.Model) -> list[str]:
    """Returns the paths of layers that were not there yet when it was wrapped.

    Args:
        model: Wrapped Keras model.

    Raises:
        ValueError: When the model is not wrapped.
    """
    there = {id(reference()) for reference in wrapped_model(model).there}
    return [
        path for layer, path in _all_layers(model) if id(layer) not in there
    ]


def _all_layers(model: keras.Model) -> list[tuple[keras.layers.Layer, str]]:
    return choose_layers(model, include=None, exclude=None)


def _check_model(model: Any) -> None:
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "comet_tf needs Keras on the TensorFlow backend. Set the "
            'environment variable KERAS_BACKEND to "tensorflow" before '
            f"importing keras. Received: {keras.backend.backend()!r}"
        )
    if not isinstance(model, keras.Model):
        raise TypeError(
            "Expected a Keras 3 model (`keras.Model`). "
            f"Received: {model!r} of type {type(model)}"
        )


def _strategy(model: keras.Model) -> Any:
    for variable in model.variables:
        return getattr(variable.value, "distribute_strategy", None)
    return None


def _wrap_layer(
    state: WrappedModel,
    layer: keras.layers.Layer,
    path: str,
    config: CompressionConfig,
) -> None:
    rule = rules.find(layer)
    if rule is None:
        if instance_calls.is_overridden(layer):
            state.left_alone[path] = _OVERRIDDEN
        elif not list(layer._flatten_layers(include_self=False)):
            state.left_alone[path] = _LEFT_ALONE
        return
    reason = rule.unsupported(layer)
    if reason is not None:
        state.left_alone[path] = reason
        return

    def make_control(
        name: str, kind: str, weights: Sequence[Any]
    ) -> BoundControl:
        first = state.first_bounds.pop(name, None) or {
            "error_bound": config.error_bound,
            "relative": config.mode == "relative",
        }
        # In a thread of its own, since layers are called while a function is
        # traced, and a variable made then would belong to that function.
        with futures.ThreadPoolExecutor(1) as elsewhere:
            return elsewhere.submit(
                BoundControl,
                name,
                kind,
                weights,
                collect=state.collect,
                # Not set afterwards: replicas would wait for each other.
                error_bound=first["error_bound"],
                relative=first["relative"],
                number=next(state.numbers),
            ).result()

    owner = instance_calls.owner(layer)
    if owner is not None:
        _release(*owner)
    wrapped = rules.WrappedLayer(layer, layer.call, config, path, make_control)
    entry = Entry(wrapped, rule, layer.supports_jit)
    state.entries.append(entry)
    call = _training_call(state, entry)
    instance_calls.install(layer, call, owner=(state, entry))
    layer.supports_jit = False


def _release(state: WrappedModel, entry: Entry) -> None:
    """Gives a layer its own code back, whichever model has wrapped it.

    Models share layers: one is a part of another, or was built from another's
    outputs. Who has wrapped a layer is noted on the layer, since the model may
    be gone by now.
    """
    state.entries.remove(entry)
    # What was set on the layer since may go on calling ours.
    entry.wrapped.released = True
    instance_calls.remove(entry.wrapped.layer)
    entry.wrapped.layer.supports_jit = entry.supports_jit


def _training_call(state: WrappedModel, entry: Entry) -> Callable[..., Any]:
    wrapped, rule = entry.wrapped, entry.rule
    own_call = wrapped.call
    layer = wrapped.layer

    @functools.wraps(own_call)
    def call(*args: Any, **kwargs: Any) -> Any:
        if wrapped.released or not wants_gradient(layer, args, kwargs):
            return own_call(*args, **kwargs)
        leaves = keras.tree.flatten((args, kwargs))
        if in_symbolic_scope() or any(
            isinstance(leaf, keras.KerasTensor) for leaf in leaves
        ):
            # Keras only asks for shapes, in a graph that it throws away; so
            # it does when the first step of `fit` builds the model.
            return own_call(*args, **kwargs)
        if compiled_by_xla():
            raise ValueError(
                f"Layer {layer.name!r} is wrapped, and XLA has no kernels for "
                "the ops that compress its activations. Pass "
                "`jit_compile=False` to `tf.function` and `model.compile`, or "
                "call `comet_tf.unwrap_model(model)`."
            )
        state.note_trace(wrapped.path)
        return rule.apply(wrapped, args, kwargs)

    return call


def _reset_training(model: keras.Model, jit_off: bool) -> bool:
    """Makes Keras trace the model's step again; returns whether XLA was forced.

    Custom ops have no XLA kernels, so `jit_compile=True` is taken back.
    """
    forced = bool(model._jit_compile)
    if jit_off and forced:
        warnings.warn(
            f"XLA is switched off for the wrapped model {model.name!r}: its "
            "compression ops have no XLA kernels. `unwrap_model` switches it "
            "back on.",
            stacklevel=3,
        )
    if jit_off and model._jit_compile is not None:
        model.jit_compile = False
    for name in ("train_function", "test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
    return forced

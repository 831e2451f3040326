# SPDX-License-Identifier: Apache-2.0
"""The scale of a weight's gradient, from what the optimizer remembers.

The error that a gradient may carry is a fraction of the gradient's own scale,
and the momentum of an optimizer is the steadiest measure of that. Each Keras
optimizer keeps it in other units; here they all become what COMET's M is, the
running sum of gradients

    M = g + b·g' + b²·g'' + ...

that SGD with momentum b adds to the weights, learning rate taken out. Adam
keeps the running mean (1 - b)·M instead. Taken as it is, that would ask for
ten times tighter bounds than SGD, at the same noise in the same gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

# Optimizers whose momentum is a running mean m = b·m + (1 - b)·g of the
# gradient, and the attribute that is b.
_RUNNING_MEANS: dict[str, str] = {
    "Adam": "beta_1",
    "AdamW": "beta_1",
    "Adamax": "beta_1",
    "Nadam": "beta_1",
    "Lamb": "beta_1",
    "Lion": "beta_2",
}

# The longest memory, in steps, that a running mean is made the sum of: that of
# the usual momentum of 0.9. Lion's mean of a hundred steps is not to pass for
# a gradient a hundred times as large.
_LONGEST_SUM = 10.0


class MomentumScale(NamedTuple):
    """What `momentum_scale` found.

    Attributes:
        mean_abs: Mean |M|; NaN without momentum.
        gain: The largest multiple of the gradients' mean absolute value that
            `mean_abs` can honestly be, 1 / (1 - b).
    """

    mean_abs: float
    gain: float


def momentum_scale(
    optimizer: keras.optimizers.Optimizer,
    weights: Sequence[keras.Variable],
    trainable: Sequence[keras.Variable] = (),
) -> MomentumScale:
    """Measures the mean |M| of some weights.

    - SGD keeps v = momentum·v - learning_rate·g, so |v| / learning_rate.
    - Muon keeps M itself, but a running mean for those weights that it leaves
      to Adam.
    - Adam, AdamW, Adamax, Nadam, Lamb and Lion keep a running mean, whose sum
      is taken over 10 steps at most.
    - RMSprop with `centered` keeps a running mean of the gradient, too; its
      momentum is of preconditioned steps and says nothing about gradients.
    - The others (Adagrad, Adadelta, Adafactor, Ftrl, ScheduleFreeAdamW, whose
      "momentum" is a copy of the weights, and unknown ones) have none.

    Args:
        optimizer: The model's optimizer; wrapped ones are looked through.
        weights: The variables, weighted by their number of elements.
        trainable: All variables the optimizer trains, to tell apart weights
            of equal path.

    Returns:
        A `MomentumScale`; not a number if any weight has no momentum.
    """
    total, count, gain = 0.0, 0, 1.0
    for weight in weights:
        owner = _owner(optimizer, weight)
        found = _weight_scale(owner, weight, trainable)
        total += found.mean_abs * math.prod(weight.shape)
        count += math.prod(weight.shape)
        gain = max(gain, found.gain)
    return MomentumScale(total / count if count else math.nan, gain)


def loss_scale(optimizer: keras.optimizers.Optimizer) -> float:
    """The factor by which the backward pass scales all gradients.

    Mixed precision multiplies the loss, so what layers see on collection steps
    is larger than what the optimizer keeps.

    Args:
        optimizer: The model's optimizer.

    Returns:
        The factor in force now; 1 without loss scaling.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        # Before the first step the variable does not exist.
        scale = getattr(optimizer, "dynamic_scale", None)
        return number(optimizer.initial_scale if scale is None else scale)
    return float(getattr(optimizer, "loss_scale_factor", None) or 1.0)


def clips(optimizer: keras.optimizers.Optimizer | None) -> bool:
    """Whether an optimizer clips gradients before its momentum sees them."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    parts = [inner, *getattr(inner, "optimizers", ())]
    limits = ("clipnorm", "global_clipnorm", "clipvalue")
    return any(
        getattr(part, limit, None) is not None
        for part in parts
        for limit in limits
    )


def accumulation_steps(optimizer: keras.optimizers.Optimizer | None) -> int:
    """The number of batches whose mean gradient makes one update."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return int(getattr(inner, "gradient_accumulation_steps", None) or 1)


def number(value: Any) -> float:
    """A Python number from a variable, a tensor or a number.

    The variables of a distribution strategy do not convert by themselves.
    """
    return float(value.numpy() if hasattr(value, "numpy") else value)


def _owner(
    optimizer: keras.optimizers.Optimizer, weight: keras.Variable
) -> keras.optimizers.Optimizer:
    """The optimizer that really updates a weight."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    prefix = _slot_prefix(weight)
    for inner in getattr(optimizer, "optimizers", ()):
        if any(v.name.startswith(prefix) for v in inner.variables):
            return inner
    return optimizer


def _slot_prefix(weight: keras.Variable) -> str:
    return weight.path.replace("/", "_") + "_"


def _slot(
    optimizer: keras.optimizers.Optimizer,
    weight: keras.Variable,
    slot: str,
    trainable: Sequence[keras.Variable],
) -> keras.Variable | None:
    """Finds the optimizer's variable `slot` of a weight, by its name."""
    name = _slot_prefix(weight) + slot
    found = [
        v
        for v in optimizer.variables
        if v.name == name and v.shape == weight.shape
    ]
    if len(found) > 1:
        # Equal paths: Keras makes slots in the order of the variables.
        twins = [
            v
            for v in trainable
            if v.path == weight.path and v.shape == weight.shape
        ]
        for twin, variable in zip(twins, found, strict=False):
            if twin is weight:
                return variable
    return found[0] if found else None


def _weight_scale(
    optimizer: keras.optimizers.Optimizer,
    weight: keras.Variable,
    trainable: Sequence[keras.Variable],
) -> MomentumScale:
    kind = _keras_class(optimizer)
    slot = "average_gradient" if kind == "RMSprop" else "momentum"
    variable = None
    if kind in {"SGD", "Muon", "RMSprop", *_RUNNING_MEANS}:
        variable = _slot(optimizer, weight, slot, trainable)
    if variable is None:
        return MomentumScale(math.nan, 1.0)
    mean_abs = float(
        tf.reduce_mean(tf.abs(tf.cast(variable.value, tf.float32)))
    )
    steps = number(optimizer.iterations)
    if kind == "SGD":
        rate = number(optimizer.learning_rate)
        mean_abs = mean_abs / rate if rate > 0 else math.nan
        return MomentumScale(mean_abs, _sum_gain(optimizer.momentum))
    if kind == "Muon":
        if _slot(optimizer, weight, "velocity", trainable) is None:
            return MomentumScale(mean_abs, _sum_gain(optimizer.momentum))
        decay = optimizer.adam_beta_1
    elif kind == "RMSprop":
        decay = optimizer.rho
    else:
        decay = getattr(optimizer, _RUNNING_MEANS[kind])
    # m is 1 - b^t times a mean of the gradients so far, and M is
    # (1 - b^t) / (1 - b) times that mean.
    weight_of_mean = 1.0 - float(decay) ** steps
    if weight_of_mean <= 0:
        return MomentumScale(math.nan, 1.0)
    longest = min(_sum_gain(float(decay)), _LONGEST_SUM)
    length = min(weight_of_mean * _sum_gain(float(decay)), longest)
    return MomentumScale(mean_abs / weight_of_mean * length, longest)


def _keras_class(optimizer: keras.optimizers.Optimizer) -> str:
    """The Keras optimizer class that an optimizer is or extends."""
    for cls in type(optimizer).__mro__:
        if getattr(keras.optimizers, cls.__name__, None) is cls:
            return cls.__name__
    return ""


def _sum_gain(momentum: float) -> float:
    return 1.0 / (1.0 - momentum) if momentum < 1.0 else math.inf

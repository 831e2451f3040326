# SPDX-License-Identifier: Apache-2.0
"""The meeting point of one stored activation and whoever sets its bound.

A wrapped layer reads its error bound from a `BoundControl` on every step and
writes back what compression did; the `AdaptiveErrorBound` callback reads that
between steps and sets the next bound. Everything goes through `tf.Variable`s,
so that a new bound takes effect on the next step without a retrace.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from comet_tf.error_bound.variables import (
    collection_flag,
    make_variable,
    strategy_of,
)

WEIGHT_GRADIENT = "weight_gradient"
ACTIVATION_GRADIENT = "activation_gradient"
KINDS = (WEIGHT_GRADIENT, ACTIVATION_GRADIENT)

# The bound used until something better is known, as a fraction of the range.
DEFAULT_RELATIVE_BOUND = 5e-3

# More than there will be steps.
_SEEDS_OF_A_REPLICA = 1 << 40


class StreamInfo(NamedTuple):
    """What compressing one activation did, mean over the replicas.

    Attributes:
        raw_bytes: Bytes of the activation; 0 where another control tells of
            it.
        stream_bytes: Bytes stored for it; 0 where it is restored from another
            control's stream.
        nonzero_fraction: Fraction of that stream's elements that are not 0.
        absolute_bound: The error bound, in the activation's own units.
    """

    raw_bytes: float
    stream_bytes: float
    nonzero_fraction: float
    absolute_bound: float

    @property
    def written(self) -> bool:
        """Whether a step has written it since `forget_steps`."""
        return any(self)


class WeightStats(NamedTuple):
    """`BoundControl.gradient_stats` of the kind `"weight_gradient"`.

    Attributes:
        sum_of_squares: Sum over samples, positions and channels of the squared
            gradient of the loss with respect to the layer's output.
        channels: Output channels that sum runs over, over the share of the
            positions at which a kernel element reads an input.
        mean_abs_gradient: Mean of |gradient| over the kernel's elements.
        mean_square_input: Mean of the squared (restored) layer input; 0 where
            nobody collected it.
    """

    sum_of_squares: float
    channels: float
    mean_abs_gradient: float
    mean_square_input: float


class ActivationStats(NamedTuple):
    """`BoundControl.gradient_stats` of the kind `"activation_gradient"`.

    Attributes:
        noise_gain: Expected squared norm of the error in the gradient passed
            on to earlier layers, per unit variance of the activation's error.
        signal: Squared norm of that gradient itself.
        weight_noise_gain: Mean over the layer's own weights (the scale of a
            normalisation) of the variance of their gradient, per unit variance
            of the activation's error; 0 without such weights.
        mean_abs_gradient: Mean of |gradient| of those weights.
    """

    noise_gain: float
    signal: float
    weight_noise_gain: float
    mean_abs_gradient: float


def _first_seed(number: int) -> int:
    """Where the dither seeds of an activation begin.

    `tf.random.set_seed` (or `keras.utils.set_random_seed`) decides. Reading
    what it was told, unlike drawing from TensorFlow's generator, changes no
    number that anybody else draws.
    """
    with tf.init_scope():
        # With a seed of its own this is only a look at the global one.
        of_run, _ = tf.compat.v1.get_seed(1)
    digest = hashlib.blake2b(f"{of_run} {number}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)


def _checked(name: str, value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(
            f"The error bound of {name!r} must be positive and finite; "
            f"received {number!r}."
        )
    return number


def checked_snapshot(name: str, snapshot: Any) -> dict[str, Any]:
    """Checks what `BoundControl.snapshot` is said to have returned.

    Args:
        name: The control's name, for the error.
        snapshot: The dictionary, perhaps read from a file.

    Returns:
        The dictionary with plain values.

    Raises:
        ValueError: If it is not such a dictionary.
    """
    try:
        value, relative = snapshot["error_bound"], snapshot["relative"]
        return {
            "error_bound": _checked(name, value),
            "relative": bool(relative),
        }
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"The saved state of {name!r} needs the keys 'error_bound', a "
            f"positive number, and 'relative'; received {snapshot!r}."
        ) from error


class BoundControl:
    """The error bound of one stored activation, and what came of it.

    The variables belong to no Keras layer: they are neither weights nor saved
    with a model.

    Args:
        name: Unique within a model, for example `"block1_conv1/input"`.
        kind: `"weight_gradient"` where the activation's error reaches only
            the gradient of the layer's own weights (the input of a
            convolution or dense layer); `"activation_gradient"` where the
            layer passes it on to earlier layers (the input of a
            normalisation, the output of a softmax).
        weights: The `keras.Variable`s whose gradient the error reaches
            directly.
        collect: The flag from `collection_flag`, shared by all controls of a
            model. A control without one makes its own.
        shared_with: Names of other controls that read the same stream, whose
            bound is therefore the tightest of all.
        strategy: The distribution strategy the model trains under. By default
            that of the weights or of the flag, or else the current one.
        error_bound: The first bound. Replicas must not set it afterwards:
            they would wait for each other.
        relative: Whether that is a fraction of the value range.
        number: Tells the seeds of the activations of a model apart. Names do
            not serve: Keras makes up others when a model is built again.

    Attributes:
        error_bound: float32 scalar, read when the activation is compressed.
        relative: bool scalar; true when `error_bound` is a fraction of the
            activation's value range rather than absolute.
        collect: bool scalar, true on collection steps only.
        stream_info: float64[4], written on every step: see `StreamInfo`.
        gradient_stats: float32[4], written on collection steps: see
            `WeightStats` and `ActivationStats`.
        measured_error: float32 scalar, written on collection steps by layers
            that measure the standard deviation of their weight gradient's
            error; NaN until then.

    Raises:
        ValueError: If `name` is empty or `kind` is unknown.

    Example:

    >>> control = BoundControl("conv/input", "weight_gradient", [conv.kernel])
    >>> control.set_absolute(0.02)
    >>> float(control.error_bound), bool(control.relative)
    (0.02, False)
    """

    def __init__(
        self,
        name: str,
        kind: str,
        weights: Iterable[Any] = (),
        collect: tf.Variable | None = None,
        shared_with: Iterable[str] = (),
        strategy: tf.distribute.Strategy | None = None,
        error_bound: float = DEFAULT_RELATIVE_BOUND,
        relative: bool = True,
        number: int = 0,
    ):
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"A control needs a name that is a non-empty string; received "
                f"name={name!r}."
            )
        if kind not in KINDS:
            raise ValueError(
                f"kind must be one of {KINDS}; received kind={kind!r}."
            )
        self.name = name
        self.kind = kind
        self.weights = tuple(weights)
        self.shared_with = list(shared_with)
        strategy = strategy_of([*self.weights, collect], strategy)
        self.collect = collection_flag(strategy) if collect is None else collect
        self.error_bound = make_variable(
            _checked(name, error_bound), tf.float32, "error_bound", strategy
        )
        self.relative = make_variable(
            bool(relative), tf.bool, "relative", strategy
        )
        # Each replica has its share of the batch: means over replicas keep
        # the meaning (and the ratio) that one device would see.
        self.stream_info = make_variable(
            [0.0] * 4,
            tf.float64,
            "stream_info",
            strategy,
            tf.VariableAggregation.MEAN,
        )
        # Keras divides each replica's loss by the number of replicas and sums
        # their gradients, so sums of squares add up. `read_gradient_stats`
        # turns the entries that do not into means.
        self.gradient_stats = make_variable(
            [0.0] * 4,
            tf.float32,
            "gradient_stats",
            strategy,
            tf.VariableAggregation.SUM,
            on_host=False,
        )
        self.measured_error = make_variable(
            math.nan,
            tf.float32,
            "measured_error",
            strategy,
            tf.VariableAggregation.MEAN,
            on_host=False,
        )
        # Each replica counts for itself. Nobody reads it across replicas.
        self._seed = make_variable(
            _first_seed(number),
            tf.int64,
            "seed",
            strategy,
            tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self._replicas = strategy.num_replicas_in_sync

    def __repr__(self) -> str:
        return f"<BoundControl {self.name!r}, {self.kind}>"

    def set_absolute(self, error_bound: float) -> None:
        """Sets the bound in the activation's own units.

        Args:
            error_bound: Positive and finite.

        Raises:
            ValueError: If it is not.
        """
        self._set(error_bound, relative=False)

    def set_relative(self, fraction: float) -> None:
        """Sets the bound as a fraction of the activation's value range.

        Args:
            fraction: Positive and finite.

        Raises:
            ValueError: If it is not.
        """
        self._set(fraction, relative=True)

    def next_seed(self) -> tf.Tensor:
        """Returns an int64 scalar, another one at each execution.

        Errors that are drawn from it average out over steps. It differs
        between activations and replicas, and is repeatable after
        `tf.random.set_seed`.
        """
        seed = tf.convert_to_tensor(self._seed.assign_add(1))
        replica = tf.distribute.get_replica_context()
        if replica is None:
            return seed
        number = tf.cast(replica.replica_id_in_sync_group, tf.int64)
        return seed + number * _SEEDS_OF_A_REPLICA

    def _set(self, value: float, relative: bool) -> None:
        value = _checked(self.name, value)
        with tf.init_scope():
            self.error_bound.assign(value)
            self.relative.assign(relative)

    def snapshot(self) -> dict[str, Any]:
        """Returns the bound as plain values, for `restore` and for JSON."""
        with tf.init_scope():
            return {
                "error_bound": float(self.error_bound.numpy()),
                "relative": bool(self.relative.numpy()),
            }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Sets the bound that `snapshot` returned.

        Args:
            snapshot: The dictionary from `snapshot`.

        Raises:
            ValueError: If it is not such a dictionary.
        """
        checked = checked_snapshot(self.name, snapshot)
        self._set(checked["error_bound"], checked["relative"])

    def forget_steps(self) -> None:
        """Clears what earlier steps wrote of the stream.

        Layers that were frozen since, or that a branch left out, would
        otherwise go on telling of a step long past.
        """
        with tf.init_scope():
            self.stream_info.assign([0.0] * 4)

    def read_stream_info(self) -> StreamInfo:
        """Reads what compression did on the latest step."""
        return StreamInfo(*(float(v) for v in self.stream_info.numpy()))

    def read_gradient_stats(self) -> WeightStats | ActivationStats:
        """Reads the latest collection step's statistics, over all replicas."""
        first, second, third, fourth = (
            float(v) for v in self.gradient_stats.numpy()
        )
        n = self._replicas
        if self.kind == WEIGHT_GRADIENT:
            return WeightStats(first, second / n, third, fourth / n)
        return ActivationStats(first, second, third, fourth)

    def read_measured_error(self) -> float:
        """Reads the measured gradient error; NaN where none was measured.

        Each replica measured the error of its own share of the gradient, and
        independent errors add up by their squares.
        """
        return float(self.measured_error.numpy()) * math.sqrt(self._replicas)

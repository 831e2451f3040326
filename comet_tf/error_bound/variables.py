# SPDX-License-Identifier: Apache-2.0
"""Variables through which a step and the callback talk to one another.

They belong to no layer, so they are neither weights nor saved with a model, and
they are made outside of whatever graph is being traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf


def strategy_of(
    variables: Iterable[Any], strategy: tf.distribute.Strategy | None
) -> tf.distribute.Strategy:
    """Returns the distribution strategy that variables belong to.

    Args:
        variables: Variables, of Keras or TensorFlow, that are there already;
            `None` in their place is passed over.
        strategy: What the caller knows; goes before all else.

    Returns:
        That strategy, else that of the first variable which has one, else the
        current one.
    """
    if strategy is not None:
        return strategy
    for variable in variables:
        if isinstance(variable, keras.Variable):
            variable = variable.value
        found = getattr(variable, "distribute_strategy", None)
        if found is not None:
            return found
    return tf.distribute.get_strategy()


def make_variable(
    value: Any,
    dtype: tf.DType,
    name: str,
    strategy: tf.distribute.Strategy,
    aggregation: tf.VariableAggregation | None = None,
    on_host: bool = True,
) -> tf.Variable:
    """Creates one untracked variable, outside of any graph being traced.

    Without `aggregation` the variable is a setting: mirrored on every replica
    and assigned to all of them at once. With it, it is a record: each replica
    writes its own copy without talking to the others (which a backward pass
    inside a conditional could not do), and reading it outside the replicas
    combines the copies.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(tf.init_scope())
        if tf.distribute.get_strategy() is not strategy:
            stack.enter_context(strategy.scope())
        # The codec takes its scalars from host memory, so a copy on an
        # accelerator would cost a synchronisation a step. A strategy places
        # its replicas' copies itself.
        if on_host and not tf.distribute.has_strategy():
            stack.enter_context(tf.device("CPU:0"))
        if aggregation is None:
            return tf.Variable(
                value,
                dtype=dtype,
                trainable=False,
                name=name,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        return tf.Variable(
            value,
            dtype=dtype,
            trainable=False,
            name=name,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=aggregation,
        )


def collection_flag(
    strategy: tf.distribute.Strategy | None = None,
) -> tf.Variable:
    """Makes the flag all controls of one model share as `collect`.

    Args:
        strategy: The distribution strategy the model trains under; the current
            one by default.

    Returns:
        A boolean `tf.Variable`, false until a collection step.
    """
    return make_variable(False, tf.bool, "collect", strategy_of((), strategy))

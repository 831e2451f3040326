# SPDX-License-Identifier: Apache-2.0
"""The gradient's scale, read from every Keras optimizer."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from comet_tf.error_bound.gradient_scale import (
    accumulation_steps,
    clips,
    loss_scale,
    momentum_scale,
)

GRADIENT = np.linspace(-0.2, 0.6, 12, dtype=np.float32).reshape(4, 3)
MEAN = float(np.mean(np.abs(GRADIENT)))


def step(optimizer, times=1):
    """Gives a weight the same gradient some times over."""
    weight = keras.Variable(np.ones((4, 3), np.float32), name="kernel")
    optimizer.build([weight])
    for _ in range(times):
        optimizer.apply([tf.constant(GRADIENT)], [weight])
    return weight


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize(
    "make",
    [
        keras.optimizers.Adam,
        keras.optimizers.AdamW,
        keras.optimizers.Adamax,
        keras.optimizers.Nadam,
        keras.optimizers.Lamb,
        keras.optimizers.Lion,
        lambda: keras.optimizers.Adam(amsgrad=True),
        lambda: keras.optimizers.RMSprop(centered=True),
        lambda: keras.optimizers.RMSprop(centered=True, momentum=0.9),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
        lambda: keras.optimizers.Muon(exclude_layers=[".*"]),
    ],
)
def test_running_means_become_the_sum_that_sgd_would_keep(make, times):
    optimizer = make()
    weight = step(optimizer, times)
    # Lion's memory of 0.99 is longer.
    momentum = 0.99 if isinstance(optimizer, keras.optimizers.Lion) else 0.9
    scale = MEAN * sum(momentum**k for k in range(times))
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        scale /= loss_scale(optimizer)
    found = momentum_scale(optimizer, [weight])
    assert found.mean_abs == pytest.approx(scale, rel=1e-4)
    assert found.gain == pytest.approx(10.0)


def test_a_long_memory_is_summed_over_ten_steps():
    optimizer = keras.optimizers.Lion(1e-4)
    found = momentum_scale(optimizer, [step(optimizer, 30)])
    assert found.mean_abs == pytest.approx(10 * MEAN, rel=1e-4)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    "rate",
    [0.05, keras.optimizers.schedules.ExponentialDecay(0.05, 1, 1.0)],
)
def test_sgd_velocity_is_freed_of_the_learning_rate(rate, nesterov):
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, nesterov=nesterov)
    weight = step(optimizer, 3)
    found = momentum_scale(optimizer, [weight])
    assert found.mean_abs == pytest.approx(MEAN * (1 + 0.9 + 0.81), rel=1e-4)
    assert found.gain == pytest.approx(10.0)


def test_sgd_at_a_learning_rate_of_zero_says_that_it_does_not_know():
    optimizer = keras.optimizers.SGD(0.0, momentum=0.9)
    assert math.isnan(momentum_scale(optimizer, [step(optimizer)]).mean_abs)


def test_muon_keeps_a_running_sum():
    optimizer = keras.optimizers.Muon(0.01)
    weight = step(optimizer, 2)
    found = momentum_scale(optimizer, [weight])
    assert found.mean_abs == pytest.approx(MEAN * 1.95, rel=1e-4)
    assert found.gain == pytest.approx(20.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(0.1),
        lambda: keras.optimizers.RMSprop(momentum=0.9),
        keras.optimizers.Adagrad,
        keras.optimizers.Adadelta,
        keras.optimizers.Adafactor,
        keras.optimizers.Ftrl,
        keras.optimizers.ScheduleFreeAdamW,
    ],
)
def test_optimizers_without_momentum_say_so(make):
    optimizer = make()
    assert math.isnan(momentum_scale(optimizer, [step(optimizer)]).mean_abs)


def test_subclasses_are_what_they_extend():
    class Mine(keras.optimizers.SGD):
        pass

    optimizer = Mine(0.1, momentum=0.5)
    weight = step(optimizer)
    assert momentum_scale(optimizer, [weight]).mean_abs == pytest.approx(
        MEAN, rel=1e-4
    )


def test_several_weights_count_by_elements():
    optimizer = keras.optimizers.Adam()
    small = keras.Variable(np.ones(2, np.float32), name="small")
    large = keras.Variable(np.ones(6, np.float32), name="large")
    optimizer.build([small, large])
    optimizer.apply([tf.fill([2], 4.0), tf.fill([6], 2.0)], [small, large])
    assert momentum_scale(optimizer, [small, large]).mean_abs == pytest.approx(
        2.5, rel=1e-4
    )
    assert math.isnan(momentum_scale(optimizer, []).mean_abs)


def test_weights_of_one_path_are_told_apart():
    optimizer = keras.optimizers.Adam()
    twins = [keras.Variable(np.ones(3, np.float32), name="w") for _ in "ab"]
    optimizer.build(twins)
    optimizer.apply([tf.fill([3], 1.0), tf.fill([3], 5.0)], twins)
    for twin, expected in zip(twins, (1.0, 5.0), strict=True):
        found = momentum_scale(optimizer, [twin], twins)
        assert found.mean_abs == pytest.approx(expected, rel=1e-4)


def test_multi_optimizer_is_looked_through():
    optimizer = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.SGD(0.1),
            {"adam": keras.optimizers.Adam()},
        )
    )
    weights = [
        keras.Variable(np.ones(3, np.float32), name=n) for n in ("sgd", "adam")
    ]
    optimizer.build(weights)
    optimizer.apply([tf.fill([3], 1.0), tf.fill([3], 5.0)], weights)
    assert math.isnan(momentum_scale(optimizer, weights[:1]).mean_abs)
    assert momentum_scale(optimizer, weights[1:]).mean_abs == pytest.approx(
        5.0, rel=1e-4
    )


def test_loss_scale():
    inner = keras.optimizers.Adam()
    assert loss_scale(inner) == 1.0
    assert loss_scale(keras.optimizers.SGD(loss_scale_factor=8.0)) == 8.0
    wrapped = keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)
    assert loss_scale(wrapped) == 64.0
    step(wrapped)
    wrapped.dynamic_scale.assign(32.0)
    assert loss_scale(wrapped) == 32.0


def test_accumulation_steps():
    accumulating = keras.optimizers.Adam(gradient_accumulation_steps=4)
    assert accumulation_steps(accumulating) == 4
    assert accumulation_steps(keras.optimizers.Adam()) == 1
    assert (
        accumulation_steps(keras.optimizers.LossScaleOptimizer(accumulating))
        == 4
    )


@pytest.mark.parametrize(
    "limit", ["clipnorm", "global_clipnorm", "clipvalue", None]
)
def test_clipping_is_noticed(limit):
    limits = {} if limit is None else {limit: 1.0}
    adam = keras.optimizers.Adam(**limits)
    assert clips(adam) == (limit is not None)
    scaled = keras.optimizers.LossScaleOptimizer(adam)
    assert clips(scaled) == (limit is not None)
    assert not clips(None)

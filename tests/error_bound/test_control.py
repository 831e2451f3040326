# SPDX-License-Identifier: Apache-2.0
"""Tests of BoundControl."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from comet_tf.error_bound.control import (
    ACTIVATION_GRADIENT,
    DEFAULT_RELATIVE_BOUND,
    WEIGHT_GRADIENT,
    BoundControl,
    collection_flag,
)
from tests.error_bound import two_replicas
from tests.processes import in_a_process


def test_starts_at_the_default_relative_bound():
    control = BoundControl("conv/input", WEIGHT_GRADIENT)
    assert control.snapshot() == {
        "error_bound": pytest.approx(DEFAULT_RELATIVE_BOUND),
        "relative": True,
    }
    assert not control.collect.numpy()
    assert math.isnan(control.read_measured_error())


def test_starts_where_it_is_told_to():
    control = BoundControl(
        "conv/input", WEIGHT_GRADIENT, error_bound=0.5, relative=False
    )
    assert control.snapshot() == {"error_bound": 0.5, "relative": False}
    with pytest.raises(ValueError, match="must be positive and finite"):
        BoundControl("conv/input", WEIGHT_GRADIENT, error_bound=0.0)


def test_set_and_restore():
    control = BoundControl("conv/input", WEIGHT_GRADIENT)
    control.set_absolute(0.25)
    saved = json.loads(json.dumps(control.snapshot()))
    control.set_relative(0.5)
    assert control.snapshot() == {"error_bound": 0.5, "relative": True}
    control.restore(saved)
    assert control.snapshot() == {"error_bound": 0.25, "relative": False}


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_refuses_bounds_that_mean_nothing(bad):
    control = BoundControl("conv/input", WEIGHT_GRADIENT)
    with pytest.raises(ValueError, match="must be positive and finite"):
        control.set_absolute(bad)
    with pytest.raises(ValueError, match="positive and finite"):
        control.restore({"error_bound": bad, "relative": True})
    assert control.snapshot()["error_bound"] == pytest.approx(
        DEFAULT_RELATIVE_BOUND
    )


def test_refuses_bad_arguments():
    with pytest.raises(ValueError, match="kind must be one of"):
        BoundControl("conv/input", "gradient")
    with pytest.raises(ValueError, match="non-empty string"):
        BoundControl("", WEIGHT_GRADIENT)
    with pytest.raises(ValueError, match="needs the keys"):
        BoundControl("x", WEIGHT_GRADIENT).restore({"bound": 1.0})


def test_keras_layers_do_not_track_the_variables():
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    layer.control = BoundControl("d/input", WEIGHT_GRADIENT, [layer.kernel])
    assert len(layer.weights) == 2
    assert len(layer.variables) == 2


def test_can_be_made_while_a_function_is_traced():
    made = []

    @tf.function
    def step(x):
        if not made:
            made.append(BoundControl("conv/input", WEIGHT_GRADIENT))
        return x * made[0].error_bound

    np.testing.assert_allclose(step(2.0), 2 * DEFAULT_RELATIVE_BOUND)
    traces = step.experimental_get_tracing_count()
    made[0].set_absolute(3.0)
    np.testing.assert_allclose(step(2.0), 6.0)
    assert step.experimental_get_tracing_count() == traces
    assert len(made) == 1


def test_controls_of_a_model_share_one_flag():
    flag = collection_flag()
    first = BoundControl("a", WEIGHT_GRADIENT, collect=flag)
    second = BoundControl("b", ACTIVATION_GRADIENT, collect=flag)
    flag.assign(True)
    assert first.collect.numpy()
    assert second.collect.numpy()


def test_replicas_share_the_bound_and_join_their_statistics():
    # In a process of its own: logical devices are set before TensorFlow
    # starts, and other tests should see the machine as it is.
    in_a_process(two_replicas.check)

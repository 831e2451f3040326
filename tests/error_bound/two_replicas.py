# SPDX-License-Identifier: Apache-2.0
"""BoundControl on two replicas; for `test_control.py`."""

import keras
import numpy as np
import tensorflow as tf

from comet_tf.error_bound.control import (
    ACTIVATION_GRADIENT,
    WEIGHT_GRADIENT,
    BoundControl,
)
from comet_tf.error_bound.gradient_scale import momentum_scale, number


def check() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    with strategy.scope():
        kernel = keras.Variable(tf.ones([2, 2]))
    # Made outside the scope: the weights tell which strategy it is.
    control = BoundControl("conv/input", WEIGHT_GRADIENT, [kernel])
    control.set_absolute(0.125)
    # Without weights, the flag does.
    other = BoundControl("bn/input", ACTIVATION_GRADIENT, (), control.collect)
    assert other.error_bound.distribute_strategy is strategy

    @tf.function
    def step():
        def replica():
            i = tf.cast(
                tf.distribute.get_replica_context().replica_id_in_sync_group,
                tf.float32,
            )

            # A conditional, as on collection steps: nothing in it may wait
            # for the other replica.
            def record():
                control.gradient_stats.assign(
                    tf.stack([1.0 + i, 8.0, 0.5 * (1.0 + i), 3.0 + i])
                )
                control.measured_error.assign(3.0)
                return True

            tf.cond(control.collect, record, lambda: False)
            control.stream_info.assign(
                tf.cast(tf.stack([100.0, 10.0 + i, i, 0.5]), tf.float64)
            )
            return control.error_bound.read_value()

        return strategy.run(replica)

    bounds = strategy.experimental_local_results(step())
    np.testing.assert_array_equal(bounds, [0.125, 0.125])
    assert control.read_stream_info() == (100.0, 10.5, 0.5, 0.5)
    assert control.read_gradient_stats() == (0.0, 0.0, 0.0, 0.0)

    control.collect.assign(True)
    control.set_absolute(0.25)
    bounds = strategy.experimental_local_results(step())
    np.testing.assert_array_equal(bounds, [0.25, 0.25])
    # Squares add up; the channel count and the mean square are means.
    assert control.read_gradient_stats() == (3.0, 8.0, 1.5, 3.5)
    np.testing.assert_allclose(
        control.read_measured_error(), np.hypot(3.0, 3.0), rtol=1e-6
    )
    assert step.experimental_get_tracing_count() == 1
    seeds = []
    for _ in range(3):
        drawn = tf.function(strategy.run)(control.next_seed)
        seeds += strategy.experimental_local_results(drawn)
    assert len({int(seed) for seed in seeds}) == 6, seeds
    # What the callback reads of the optimizer are distributed variables.
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.5, momentum=0.5)
        optimizer.build([kernel])
    # Each replica's share of the loss makes half of the gradient.
    tf.function(strategy.run)(
        lambda: optimizer.apply([tf.fill([2, 2], 1.5)], [kernel])
    )
    assert number(optimizer.iterations) == 1
    np.testing.assert_allclose(
        momentum_scale(optimizer, [kernel]), (3.0, 2.0), rtol=1e-6
    )

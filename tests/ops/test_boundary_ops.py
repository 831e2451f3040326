# SPDX-License-Identifier: Apache-2.0
"""The identity with a gradient of its own."""

import numpy as np
import pytest
import tensorflow as tf

from comet_tf.ops import memory_ops
from comet_tf.ops.boundary_ops import gradient_boundary


def test_passes_tensors_of_any_type_on(run):
    tensors = [
        tf.constant([1.5, 2.5]),
        tf.constant([[1, 2], [3, 4]]),
        tf.constant("text"),
        tf.constant(True),
    ]
    results = run(
        lambda *t: gradient_boundary(list(t), [t[0], t[1]], key=3), *tensors
    )
    assert len(results) == len(tensors)
    for result, tensor in zip(results, tensors, strict=True):
        assert result.dtype == tensor.dtype
        np.testing.assert_array_equal(result, tensor)


def test_needs_no_inputs(run):
    x = tf.constant([1.0, 2.0])
    (y,) = run(lambda x: gradient_boundary([x], [], key=0), x)
    np.testing.assert_array_equal(x, y)


def test_copies_nothing():
    x = tf.ones((8, 1 << 18))
    before = int(memory_ops.memory_stats([x])[0])
    (y,) = gradient_boundary([x], [x], key=0)
    after = int(memory_ops.memory_stats([y])[0])
    assert after - before < 1 << 20


def test_knows_shapes_when_tracing():
    @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32)])
    def traced(x):
        y, z = gradient_boundary([x, x[0]], [x], key=1)
        assert y.shape.as_list() == [None, 3]
        assert z.shape.as_list() == [3]
        return y

    operation = next(
        op
        for op in traced.get_concrete_function().graph.get_operations()
        if op.type == "Comet>GradientBoundary"
    )
    assert operation.get_attr("key") == 1


def test_needs_an_output():
    with pytest.raises(ValueError, match="at least one"):
        gradient_boundary([], [tf.zeros(3)], key=0)

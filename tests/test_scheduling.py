# SPDX-License-Identifier: Apache-2.0
"""The three scheduling rules, read off the graph of a training step."""

import functools
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import comet_tf
from comet_tf import graph_audit, scheduling, traces, wrapping
from tests import zoo

EVERYTHING = comet_tf.CompressionConfig(min_bytes=0)


@pytest.fixture(scope="module")
def step_graph():
    """Makes the graph of a model's training step, once for all tests."""

    @functools.cache
    def make(name):
        _, model = zoo.pair(name)
        comet_tf.wrap_model(model, EVERYTHING)
        x, y = zoo.data()
        zoo.compiled(model).fit(x, y, batch_size=16, verbose=0)
        graph = wrapping.wrapped_model(model).step_graph
        return model, graph, traces.graph_trace(graph)

    return make


def of_type(graph, kind):
    return [op for op in graph.get_operations() if op.type == kind]


@pytest.mark.parametrize("name", list(zoo.MODELS))
def test_restoring_waits_for_the_incoming_gradient(step_graph, name):
    _, graph, trace = step_graph(name)
    order = {op.name: i for i, op in enumerate(graph.get_operations())}
    restores = of_type(graph, "Comet>Decompress")
    assert len(restores) >= 4
    for op in restores:
        assert order[op.name] >= trace.backward_start
        # The gradient that is waited for may be the loss's own, which is
        # made before the first layer's turn.
        assert any(
            "gradient_tape" in waited.name for waited in op.control_inputs
        ), op.name


@pytest.mark.parametrize("name", list(zoo.MODELS))
def test_restores_take_turns(step_graph, name):
    _, graph, _ = step_graph(name)
    order = {op.name: i for i, op in enumerate(graph.get_operations())}
    names = sorted(
        (op.name for op in of_type(graph, "Comet>Decompress")), key=order.get
    )
    first, *others = names
    for restore in others:
        assert _leads(graph.get_operation_by_name(restore), first), restore


def _leads(op, target):
    """Whether `op` runs only after the operation called `target`."""
    pending, seen = [op], set()
    while pending:
        op = pending.pop()
        if op.name == target:
            return True
        if op.name not in seen:
            seen.add(op.name)
            pending += [t.op for t in op.inputs] + list(op.control_inputs)
    return False


@pytest.mark.parametrize("name", ["conv_stack", "vgg_like"])
def test_a_convolution_waits_for_its_input_to_be_compressed(step_graph, name):
    _, graph, trace = step_graph(name)
    operations = graph.get_operations()[: trace.backward_start]
    convolutions = [op for op in operations if op.type == "Conv2D"]
    assert convolutions
    for op in convolutions:
        waited = op.inputs[0].op.control_inputs
        assert "Comet>Compress" in {other.type for other in waited}


@pytest.mark.parametrize("name", list(zoo.MODELS))
def test_nothing_large_crosses_but_streams_and_masks(step_graph, name):
    _, graph, trace = step_graph(name)
    kept = graph_audit.kept_tensors(graph, trace.backward_start, 16)
    assert {k.kind for k in kept} >= {"stream"}
    large = [k for k in kept if k.kind == "tensor" and k.bytes > 16384]
    assert large == []


def test_the_audit_sees_what_plain_training_keeps():
    """The check above can fail: without rules it finds the activations."""
    _, model = zoo.pair("conv_stack")
    x, y = zoo.data()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                y, model(x, training=True)
            )
            loss = tf.reduce_mean(losses)
        start.append(len(tf.compat.v1.get_default_graph().get_operations()))
        return tape.gradient(loss, model.trainable_variables)

    start = []
    graph = step.get_concrete_function(tf.constant(x), tf.constant(y)).graph
    kept = graph_audit.kept_tensors(graph, start[0], 16)
    assert sum(k.bytes > 500_000 for k in kept) == 3  # The ReLU outputs.


def test_the_gradient_of_a_called_function_is_right_too():
    """Its gradient is built from the graph, without the outer tape."""
    plain, model = zoo.pair("conv_stack")
    comet_tf.wrap_model(
        model, comet_tf.CompressionConfig(codec="lossless", min_bytes=0)
    )
    x = tf.constant(zoo.data()[0])

    def gradients(model):
        forward = tf.function(lambda x: model(x, training=True))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(forward(x)))
        return tape.gradient(loss, model.trainable_variables)

    for one, other in zip(gradients(model), gradients(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_trace_dies_with_its_graph():
    _, model = zoo.pair("conv_stack")
    comet_tf.wrap_model(model, EVERYTHING)
    x, y = zoo.data()

    def traced():
        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                losses = keras.losses.sparse_categorical_crossentropy(
                    y, model(x, training=True)
                )
                loss = tf.reduce_mean(losses)
            return tape.gradient(loss, model.trainable_variables)

        step(tf.constant(x), tf.constant(y))
        graph = wrapping.wrapped_model(model).step_graph
        return weakref.ref(traces.graph_trace(graph))

    trace = traced()
    gc.collect()
    assert trace() is None


def test_after_adds_nothing_without_dependencies():
    x = tf.constant(1.0)
    assert scheduling.after(x, []) is x

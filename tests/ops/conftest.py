# SPDX-License-Identifier: Apache-2.0
"""Each op test runs on every element type, eagerly and in a graph."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> tf.DType:
    return tf.as_dtype(request.param)


@pytest.fixture(params=["eager", "graph"])
def run(request: pytest.FixtureRequest) -> Callable:
    """Calls a function of tensors, as it is or traced."""
    if request.param == "eager":
        return lambda function, *args: function(*args)
    return lambda function, *args: tf.function(function)(*args)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)

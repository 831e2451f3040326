# SPDX-License-Identifier: Apache-2.0
"""Every architecture of `keras.applications` trains in an eighth of memory."""

import dataclasses
import inspect
import json

import keras
import numpy as np
import pytest

from tests.models import applications

_FAST = "MobileNet"


def test_no_architecture_is_forgotten():
    found = {
        name
        for name, builder in vars(keras.applications).items()
        if inspect.isfunction(builder)
    }
    assert found == set(applications.NAMES)


@pytest.mark.parametrize(
    "name",
    [
        name if name == _FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in applications.NAMES
    ],
)
def test_two_steps_of_fit(name, record_property):
    result = applications.compare(name)
    record_property(
        applications.PROPERTY, json.dumps(dataclasses.asdict(result))
    )
    assert result.wrapped_losses[0] == result.plain_losses[0]
    assert np.isfinite(result.wrapped_losses[1])
    # The gradients of all layers, from exact activations.
    assert result.lossless_losses == pytest.approx(
        result.plain_losses, rel=1e-2
    )
    assert result.uncovered == []
    assert result.wrapped_bytes <= result.plain_bytes / 8

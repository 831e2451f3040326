# SPDX-License-Identifier: Apache-2.0
"""The formulas themselves, and what they make of numbers gone wrong."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_tf.error_bound import theory

positive = st.floats(1e-12, 1e12)
anything = st.floats(allow_nan=True, allow_infinity=True, width=64)


def test_weight_formula_by_hand():
    # v = 0.5 * 0.06**2 / 3 = 6e-4, and 200 / 8 = 25 a channel.
    assert theory.predicted_gradient_error(
        0.06, 200.0, 8, 0.5
    ) == pytest.approx(math.sqrt(6e-4 * 25))


def test_published_form_by_hand():
    assert theory.published_bound(0.01, 0.5, 16, 0.25, a=2.0) == pytest.approx(
        0.01 / (2.0 * 0.5 * 2.0)
    )


def test_published_form_agrees_with_sum_of_squares():
    rng = np.random.default_rng(0)
    batch, positions, channels = 32, 49, 8
    gradient = rng.standard_normal((batch, positions, channels))
    mean_abs = np.mean(np.abs(gradient))
    rms = np.sqrt(np.mean(gradient**2))
    published = theory.published_bound(
        0.1, mean_abs, batch, 0.5, a=math.sqrt(positions / 3) * rms / mean_abs
    )
    derived = theory.bound_from_sigma(0.1, np.sum(gradient**2), channels, 0.5)
    assert published == pytest.approx(derived)


def test_override_of_a():
    plain = theory.bound_from_sigma(0.1, 25.0, 8, 0.5)
    assert theory.bound_from_sigma(
        0.1, 25.0, 8, 0.5, a=1 / math.sqrt(3)
    ) == pytest.approx(plain)
    assert theory.bound_from_sigma(
        0.1, 25.0, 8, 0.5, a=2 / math.sqrt(3)
    ) == pytest.approx(plain / 2)


@given(positive, positive, st.integers(1, 4096), st.floats(1e-3, 1.0))
def test_each_bound_inverts_its_prediction(sigma, energy, channels, fraction):
    bound = theory.bound_from_sigma(sigma, energy, channels, fraction)
    assert theory.predicted_gradient_error(
        bound, energy, channels, fraction
    ) == pytest.approx(sigma)
    bound = theory.bound_from_relative_noise(sigma, energy, 3.0, fraction)
    assert theory.relative_noise(bound, energy, 3.0, fraction) == pytest.approx(
        sigma
    )
    rho = theory.noise_from_sigma(sigma, energy, channels, 2.0)
    assert theory.gradient_error_from_noise(
        rho, energy, channels, 2.0
    ) == pytest.approx(sigma)


def test_works_on_arrays():
    sigma = np.array([0.1, 0.2])
    bounds = theory.bound_from_sigma(sigma, np.array([25.0, 100.0]), 8, 0.5)
    assert bounds.shape == (2,)
    assert bounds[0] == pytest.approx(bounds[1])


@given(anything, anything, anything, anything)
def test_whatever_was_collected_the_bound_is_sane(sigma, energy, fraction, x):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        candidates = [
            theory.bound_from_sigma(sigma, energy, 8, fraction),
            theory.bound_from_relative_noise(sigma, energy, x, fraction),
            theory.bound_from_sigma(
                theory.sigma_from_momentum(x, 0.01), energy, 8, fraction
            ),
        ]
    for bound in candidates:
        bound = theory.clamp_bound(bound, 1e-6, 10.0)
        assert 1e-6 <= bound <= 10.0


def test_clamp():
    bounds = np.array([0.0, np.nan, np.inf, -np.inf, 1e-9, 0.3, 7.0])
    np.testing.assert_array_equal(
        theory.clamp_bound(bounds, 1e-6, 1.0),
        [1e-6, 1e-6, 1.0, 1e-6, 1e-6, 0.3, 1.0],
    )


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1)]
)
def test_clamp_refuses_limits_that_limit_nothing(low, high):
    with pytest.raises(ValueError, match="0 < minimum <= maximum"):
        theory.clamp_bound(0.1, low, high)


def test_dead_layers_ask_for_no_precision():
    # No output gradient, or nothing but zeros stored: any bound would do.
    assert theory.bound_from_sigma(0.1, 0.0, 8, 0.5) == math.inf
    assert theory.bound_from_sigma(0.1, 25.0, 8, 0.0) == math.inf
    # No momentum: the tightest one.
    assert theory.bound_from_sigma(0.0, 25.0, 8, 0.5) == 0.0

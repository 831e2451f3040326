# SPDX-License-Identifier: Apache-2.0
"""Where nearest rounding stops being noise, and that dither never does."""

import numpy as np
import pytest

from comet_tf.error_bound import theory
from tests.error_bound.simulated_rounding import quantize

N = 400_000


def relu_like(rng):
    """Exponential non-zeros: behind a ReLU, the density jumps at zero."""
    return rng.exponential(size=N) * (rng.uniform(size=N) < 0.4)


def normal(rng):
    return rng.standard_normal(N)


def rms_nonzero(x):
    return np.sqrt(np.mean(np.square(x[x != 0])))


def rescaling(x, bound, rounding, rng, weight):
    """Error of sum x * weight(x), relative to that sum.

    An output gradient that depends on the input, the extreme case of one
    whose sum over positions does not vanish.
    """
    error = quantize(x, bound, rounding, rng) - x
    return np.sum(error * weight(x)) / np.sum(x * weight(x))


def sign(x):
    return np.sign(x)


def itself(x):
    return x


@pytest.mark.parametrize("systematic", [0.01, 0.03, 0.05, 0.1])
def test_nearest_bound_keeps_the_promised_rescaling(systematic):
    rng = np.random.default_rng(1)
    x = relu_like(rng)
    bound = theory.nearest_bound(rms_nonzero(x), systematic)
    found = rescaling(x, bound, "nearest", rng, sign)
    # The exponential density is the one the rule is made for.
    assert found == pytest.approx(systematic, rel=0.1)


def test_nearest_bound_is_on_the_safe_side_for_other_densities():
    rng = np.random.default_rng(2)
    half_normal = np.abs(normal(rng))
    for x in (half_normal, normal(rng)):
        bound = theory.nearest_bound(rms_nonzero(x), 0.05)
        for weight in (sign, itself):
            found = rescaling(x, bound, "nearest", rng, weight)
            assert abs(found) < 0.05


@pytest.mark.parametrize("draw", [relu_like, normal])
def test_nearest_fails_where_the_step_passes_the_deviation(draw):
    rng = np.random.default_rng(3)
    x = draw(rng)
    deviation = np.std(x[x != 0])
    # step = 3 standard deviations: bound = 1.5
    bound = 1.5 * deviation
    assert bound > theory.nearest_bound(rms_nonzero(x))
    nearest = rescaling(x, bound, "nearest", rng, sign)
    dither = rescaling(x, bound, "dither", rng, sign)
    assert abs(nearest) > 0.2
    assert abs(dither) < 0.01


@pytest.mark.parametrize("steps", [0.1, 1.0, 4.0, 16.0])
@pytest.mark.parametrize("draw", [relu_like, normal])
def test_dither_is_uniform_noise_at_any_bound(draw, steps):
    rng = np.random.default_rng(4)
    x = draw(rng)
    bound = 0.5 * steps * np.std(x[x != 0])
    error = quantize(x, bound, "dither", rng) - x
    assert np.mean(np.square(error)) == pytest.approx(
        theory.noise_variance(bound, np.mean(x != 0)), rel=0.02
    )
    for weight in (sign, itself):
        # Five standard errors of a sum of independent terms.
        noise = np.sqrt(np.sum(np.square(error * weight(x))))
        assert abs(np.sum(error * weight(x))) < 5 * noise


@pytest.mark.parametrize("draw", [relu_like, normal])
def test_nearest_is_as_good_as_noise_within_its_bound(draw):
    rng = np.random.default_rng(5)
    x = draw(rng)
    bound = theory.nearest_bound(rms_nonzero(x), 0.05)
    error = quantize(x, bound, "nearest", rng) - x
    assert np.sqrt(np.mean(np.square(error))) == pytest.approx(
        np.sqrt(theory.noise_variance(bound, np.mean(x != 0))), rel=0.05
    )

# SPDX-License-Identifier: Apache-2.0
"""What is decided from what was collected."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_tf.error_bound import theory
from comet_tf.error_bound.collection import stream_scales
from comet_tf.error_bound.control import (
    ActivationStats,
    StreamInfo,
    WeightStats,
)
from comet_tf.error_bound.policy import (
    Decision,
    Reading,
    Settings,
    decide,
    next_collection,
    sharing_groups,
    tightest,
)

SETTINGS = Settings(gradient_error=0.01)
# With limits wide enough for the formulas to show.
WIDE = Settings(gradient_error=0.1, activation_limits=(1e-3, 1e-2))


def weight(**changes):
    """A convolution's input: range 10, bound in force 0.05."""
    reading = Reading(
        name="conv/input",
        stats=WeightStats(400.0, 16.0, 0.5, 0.5),
        info=StreamInfo(1000.0, 100.0, 0.5, 0.05),
        fraction=0.005,
        scale=2.0,
        rounding="dither",
    )
    return dataclasses.replace(reading, **changes)


def activation(**changes):
    """A batch norm's input: range 10, bound in force 0.05."""
    reading = Reading(
        name="bn/input",
        stats=ActivationStats(30.0, 20.0, 25.0, 0.5),
        info=StreamInfo(1000.0, 100.0, 1.0, 0.05),
        fraction=0.005,
        scale=1.0,
        rounding="dither",
    )
    return dataclasses.replace(reading, **changes)


def only(reading, **arguments):
    (decision,) = decide([reading], SETTINGS, **arguments)
    return decision


def test_weight_bound_by_hand():
    # sigma = 0.01 * 2; 400 / 16 = 25 a channel.
    decision = only(weight())
    assert decision.bound == pytest.approx(0.02 / math.sqrt(0.5 / 3 * 25))
    assert decision.predicted == pytest.approx(
        0.05 * math.sqrt(0.5 / 3 * 25) / 2.0
    )
    assert math.isnan(decision.measured)
    assert only(weight(measured=0.1)).measured == pytest.approx(0.05)


def test_accumulated_batches_may_err_more_each():
    one, four = only(weight()), only(weight(accumulation=4))
    assert four.bound == pytest.approx(2 * one.bound)
    assert four.predicted == pytest.approx(one.predicted / 2)


def test_limits_are_fractions_of_the_range():
    assert only(weight(scale=1e9)).bound == pytest.approx(2.5)
    assert only(weight(scale=1e-9)).bound == pytest.approx(1e-3)


def test_nearest_is_limited_by_the_spread_of_the_values():
    loose = weight(scale=1e9, rounding="nearest")
    # mean square of the non-zeros 0.5 / 0.5.
    assert only(loose).bound == pytest.approx(theory.nearest_bound(1.0))
    unknown = dataclasses.replace(
        loose, stats=WeightStats(400.0, 16.0, 0.5, 0.0)
    )
    assert only(unknown).bound == pytest.approx(0.2)


def test_warming_up_stays_at_the_default_relative_bound():
    loose = weight(scale=1e9)
    assert only(loose, warming_up=True).bound == pytest.approx(0.05)
    tight = weight(scale=1e-9)
    assert only(tight, warming_up=True).bound == pytest.approx(1e-3)


def test_activation_bound_by_hand():
    settings = WIDE
    before, after = weight(), activation()
    _, decision = decide([before, after], settings)
    # The noise that the convolution before it stands ...
    rho = 0.2 / math.sqrt(0.5 * 25)
    from_noise = rho / math.sqrt(30.0 / 20.0 / 3)
    # ... and what its own scale's gradient does.
    from_scale = 0.1 / math.sqrt(25.0 / 3)
    assert from_scale < from_noise
    assert decision.bound == pytest.approx(from_scale)
    assert decision.predicted == pytest.approx(
        0.05 * math.sqrt(30.0 / 20.0 / 3)
    )
    after = dataclasses.replace(after, scale=100.0)
    _, decision = decide([before, after], settings)
    assert decision.bound == pytest.approx(from_noise)


def test_only_weights_before_an_activation_limit_it():
    settings = WIDE
    sensitive = weight(scale=0.5)
    middle = activation(scale=100.0)
    without = decide([weight(), middle], settings)[1]
    assert decide([weight(), middle, sensitive], settings)[1] == without
    behind = decide([sensitive, weight(), middle], settings)[2]
    assert behind.bound == pytest.approx(without.bound / 4)


@pytest.mark.parametrize(
    "unknown",
    [
        ActivationStats(0.0, 0.0, 0.0, 0.0),
        ActivationStats(math.nan, 1.0, math.nan, 0.0),
    ],
)
@pytest.mark.parametrize("fraction", [0.005, 0.5])
def test_activations_without_statistics_stay_safe(unknown, fraction):
    reading = activation(
        stats=unknown,
        fraction=fraction,
        info=StreamInfo(1000.0, 100.0, 1.0, 10 * fraction),
    )
    _, decision = decide([weight(), reading], SETTINGS)
    assert decision.bound == pytest.approx(0.05)


def test_activations_with_nearest_rounding_stay_below_two_percent():
    noisy = weight(scale=1e9)
    loose = activation(scale=1e9)
    assert decide([noisy, loose], SETTINGS)[1].bound == pytest.approx(2.5)
    nearest = dataclasses.replace(loose, rounding="nearest")
    assert decide([noisy, nearest], SETTINGS)[1].bound == pytest.approx(0.2)


@pytest.mark.parametrize("rounding", ["nearest", "dither"])
def test_limits_of_activations_that_are_given_are_kept(rounding):
    noisy = weight(scale=1e9)
    loose = activation(scale=1e9, rounding=rounding)
    given = Settings(activation_limits=(0.03, 0.05))
    assert decide([noisy, loose], given)[1].bound == pytest.approx(0.5)
    quiet = weight(scale=1e-9)
    assert decide([quiet, loose], given)[1].bound == pytest.approx(0.3)
    # Without them the limits of all bounds hold.
    for loosest in (0.01, 1e-4):
        tight = Settings(limits=(1e-5, loosest))
        decision = decide([noisy, loose], tight)[1]
        assert decision.bound == pytest.approx(10 * loosest)


@pytest.mark.parametrize(
    "changes",
    [
        {"stats": WeightStats(0.0, 16.0, 0.0, 0.5)},
        {"stats": WeightStats(math.nan, 16.0, 0.5, 0.5)},
        {"stats": WeightStats(math.inf, 16.0, 0.5, 0.5)},
        {"scale": 0.0},
        {"scale": math.nan},
        {"info": StreamInfo(0.0, 0.0, 0.0, 0.0)},
        {"fraction": 0.0},
    ],
)
def test_nothing_known_changes_nothing(changes):
    assert only(weight(**changes)).bound is None


anything = st.floats(width=32)


@given(
    st.tuples(*[anything] * 4),
    st.tuples(*[anything] * 4),
    st.tuples(*[st.floats()] * 4),
    anything,
    anything,
    st.sampled_from(["nearest", "dither"]),
)
def test_no_numbers_make_a_bad_bound(
    weights, activations, info, fraction, scale, rounding
):
    common = {
        "info": StreamInfo(*info),
        "fraction": fraction,
        "scale": scale,
        "rounding": rounding,
    }
    readings = [
        weight(stats=WeightStats(*weights), **common),
        activation(stats=ActivationStats(*activations), **common),
        activation(**common),
    ]
    for decision, reading in zip(
        decide(readings, SETTINGS), readings, strict=True
    ):
        if decision.bound is not None:
            assert math.isfinite(decision.bound)
            assert 2.0**-126 <= decision.bound <= 2.0**126
            assert decision.bound <= max(
                0.25 * reading.range * (1 + 1e-9), 2.0**-120
            )


def test_readers_of_one_stream_take_the_tightest_bound():
    decisions = [Decision(0.3), Decision(None), Decision(0.1), Decision(0.2)]
    found = tightest(decisions, [[0, 1, 3], [2]])
    assert [d.bound for d in found] == [0.2, 0.2, 0.1, 0.2]
    assert tightest([Decision(None)], [[0]])[0].bound is None


def test_a_shared_bound_is_in_units_of_each_reader():
    decisions = [Decision(0.3), Decision(0.2), Decision(0.9), Decision(0.1)]
    # The last one's errors are wiped out on the way to it.
    scales = [1.0, 0.5, 4.0, 0.0]
    found = [d.bound for d in tightest(decisions, [[0, 1, 2, 3]], scales)]
    assert found[:3] == pytest.approx([0.225, 0.1125, 0.9])
    assert found[3] is None


def test_scales_are_those_of_the_bounds_in_force():
    stored = StreamInfo(100.0, 10.0, 1.0, 0.2)
    derived = StreamInfo(100.0, 0.0, 1.0, 0.5)
    other = StreamInfo(100.0, 10.0, 1.0, 0.3)
    unknown = StreamInfo(0.0, 0.0, 0.0, 0.0)
    infos = [derived, stored, other, unknown]
    assert stream_scales(infos, [[0, 1], [2], [3]]) == [2.5, 1.0, 1.0, 1.0]


def test_sharing_is_found_however_it_is_told():
    names = ["a", "b", "c", "d"]
    shared = [["b"], ["a"], [], ["b", "elsewhere"]]
    assert sharing_groups(names, shared) == [[0, 1, 3], [2]]


def test_collection_steps():
    steps, step = [], 0
    for _ in range(7):
        step = next_collection(step, 1000)
        steps.append(step)
    assert steps == [1, 10, 100, 1000, 2000, 3000, 4000]
    assert next_collection(1234, 1000) == 2000
    assert next_collection(10, 50) == 50
    assert next_collection(99, 7) == 100

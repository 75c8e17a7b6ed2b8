"""Profiles of averages, steps of snapshots and combinations, in closed form."""

import numpy as np
import pytest

from ditlab.averages import (
    ExponentialProfile,
    KeptAverage,
    PowerProfile,
    combine,
    snapshot_steps,
)

LENGTHS = (0.05, 0.075, 0.10, 0.15, 0.20, 0.25)


def test_the_published_exponents() -> None:
    """arXiv:2312.02696, section 3.1: sigma_rel 0.05 and 0.10 are gamma 16.97 and 6.94."""
    assert [round(PowerProfile(width).gamma, 2) for width in (0.05, 0.10)] == [16.97, 6.94]
    for width in LENGTHS:
        gamma = PowerProfile(width).gamma
        assert (gamma + 1) ** 0.5 / ((gamma + 2) * (gamma + 3) ** 0.5) == pytest.approx(
            width, abs=1e-12
        )


def test_the_recursion_gives_the_weights_of_the_profile() -> None:
    stop = 500
    for length in LENGTHS:
        profile, average = PowerProfile(length), np.zeros(stop)
        for k in range(1, stop + 1):
            beta = (1 - 1 / k) ** (profile.gamma + 1)
            average = beta * average + (1 - beta) * (np.arange(stop) == k - 1)
        expected = np.diff(profile.cumulative(np.arange(stop + 1), stop))
        np.testing.assert_allclose(average, expected, atol=1e-13)
        assert average.sum() == pytest.approx(1)
        times = (np.arange(stop) + 0.5) / stop
        spread = np.sqrt(average @ times**2 - (average @ times) ** 2)
        assert spread == pytest.approx(length, rel=1e-3)


def test_the_exponential_profile_is_that_of_the_moving_average() -> None:
    stop, decay = 300, 0.9
    average = np.zeros(stop)
    for n in range(stop):
        weight = 1 - min(decay, (1 + n) / (10 + n))
        average += weight * ((np.arange(stop) == n) - average)
    found = np.diff(ExponentialProfile(decay).cumulative(np.arange(stop + 1), stop))
    np.testing.assert_allclose(found, average, atol=1e-12)


def test_a_kept_average_is_rebuilt_from_itself_alone() -> None:
    kept = [KeptAverage(length, stop) for stop in (200, 400, 800) for length in (0.05, 0.10)]
    found = combine(kept, PowerProfile(0.10), 800)
    assert found.profile_error < 1e-12
    np.testing.assert_allclose(found.coefficients, [0, 0, 0, 0, 0, 1], atol=1e-9)


@pytest.mark.parametrize("total", [60, 2048, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_about_34_snapshots_rebuild_every_length_of_a_run_of_any_size(total: int) -> None:
    """Of a path that is 1 / sqrt(n) of its end away after n updates: within 1e-3."""
    steps = snapshot_steps(0, total, 24)
    assert 20 <= len(steps) <= 36 and total not in steps
    kept = [KeptAverage(length, stop) for stop in (*steps, total) for length in (0.05, 0.10)]
    edges = np.unique(np.round(np.linspace(0, total, min(total, 20000) + 1)).astype(int))
    path = 1 + 1 / np.sqrt(edges[1:])
    for length in LENGTHS:
        found = combine(kept, PowerProfile(length), total)
        assert found.coefficients.sum() == pytest.approx(1, abs=1e-8)
        averages = [
            np.diff(PowerProfile(each.length).cumulative(edges, each.updates)) @ path
            for each in kept
        ]
        direct = np.diff(PowerProfile(length).cumulative(edges, total)) @ path
        assert abs(found.coefficients @ averages - direct) < 1e-3 * direct
        assert found.profile_error < 0.05


def test_fewer_snapshots_rebuild_worse_and_say_so() -> None:
    errors = []
    for num in (4, 8, 16, 24, 48):
        kept = [
            KeptAverage(length, stop)
            for stop in (*snapshot_steps(0, 2048, num), 2048)
            for length in (0.05, 0.1)
        ]
        errors.append(combine(kept, PowerProfile(0.25), 2048).profile_error)
    assert errors == sorted(errors, reverse=True) and errors[0] > 3 * errors[-1]


def test_snapshots_of_averages_that_begin_later_lie_behind_their_beginning() -> None:
    steps = snapshot_steps(1000, 3048, 24)
    assert steps == [step + 1000 for step in snapshot_steps(0, 2048, 24)]
    assert snapshot_steps(10, 10, 24) == [] and snapshot_steps(0, 1, 24) == []

"""Learning-rate schedules at the values that their definitions give in closed form."""

import itertools
import math

import pytest

from ditlab.spec.optimization import (
    ConstantSchedule,
    SteppedCosineRestartSchedule,
    WarmupCosineSchedule,
    WarmupStableDecaySchedule,
)
from ditlab.training.plan import learning_rate

TOTAL, EPOCH = 1000, 100


def rates(schedule, total=TOTAL, epoch=EPOCH):
    return [learning_rate(schedule, 1e-4, step, total, epoch) for step in range(total)]


def test_warmup_rises_from_the_first_step_and_is_over_in_time():
    found = rates(ConstantSchedule(warmup=10))
    assert found[:10] == pytest.approx([1e-4 * (step + 1) / 10 for step in range(10)])
    assert set(found[9:]) == {1e-4}


@pytest.mark.parametrize("final", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("warmup", [0, 1, 100])
def test_warmup_cosine(final, warmup):
    found = rates(WarmupCosineSchedule(warmup=warmup, final=final))
    assert max(found) == pytest.approx(1e-4)
    assert found[warmup] == pytest.approx(1e-4)
    assert found[-1] == pytest.approx(1e-4 * final, abs=1e-12)
    middle = warmup + (TOTAL - 1 - warmup) / 2
    around = (found[math.floor(middle)] + found[math.ceil(middle)]) / 2
    assert around == pytest.approx(1e-4 * (1 + final) / 2)
    assert all(a >= b for a, b in zip(found[warmup:], found[warmup + 1 :], strict=False))


def test_warmup_cosine_of_a_run_that_is_almost_all_warmup():
    assert rates(WarmupCosineSchedule(warmup=9, final=0.1), total=10)[-1] == pytest.approx(1e-4)


def test_stepped_cosine_restart():
    """Peak 1e-4, valley half of it, both times 0.9 from cycle to cycle, floors of 1%."""
    schedule = SteppedCosineRestartSchedule(cycle=1000)

    def rate(step):
        return learning_rate(schedule, 1e-4, step, 10**9, EPOCH)

    assert rate(0) == pytest.approx(1e-4)
    assert rate(500) == pytest.approx(7.5e-5)
    assert rate(999) == pytest.approx(5e-5, rel=1e-3)
    assert rate(15_000) == pytest.approx(1e-4 * 0.9**15) == pytest.approx(2.059e-5, rel=1e-3)
    assert rate(15_999) == pytest.approx(1.029e-5, rel=1e-3)
    for start in range(1000, 11_000, 1000):
        assert rate(start) > rate(start - 1)  # a restart goes up


def test_stepped_cosine_restart_stays_above_its_floor():
    found = rates(SteppedCosineRestartSchedule(cycle=10, floor=0.05), total=5000)
    assert min(found) == pytest.approx(5e-6)
    assert found[-10:] == pytest.approx([5e-6] * 10)  # peak and valley have both met it


def test_a_cycle_is_an_epoch_unless_it_is_given():
    found = rates(SteppedCosineRestartSchedule(), epoch=37)
    assert [step for step in range(1, TOTAL) if found[step] > found[step - 1]][:3] == [37, 74, 111]


def test_a_warmup_in_epochs_is_one_in_steps():
    for kind in (ConstantSchedule, WarmupCosineSchedule, WarmupStableDecaySchedule):
        in_steps = rates(kind(warmup=15), total=40, epoch=10)
        assert rates(kind(warmup_epochs=1.5), total=40, epoch=10) == in_steps


@pytest.mark.parametrize(("shape", "half"), [("sqrt", 1 - 0.5**0.5), ("linear", 0.5)])
def test_a_stable_rate_falls_from_where_one_says_to_the_last_step(shape, half):
    found = rates(WarmupStableDecaySchedule(warmup=10, decay_start=800, shape=shape, final=0.1))
    assert found[9:800] == [1e-4] * 791 and found[0] == pytest.approx(1e-5)
    assert found[899] == pytest.approx(1e-4 * (0.1 + 0.9 * half)) and found[-1] == pytest.approx(
        1e-5
    )
    assert all(before > after for before, after in itertools.pairwise(found[799:]))


def test_no_stable_rate_depends_on_the_length_of_the_run():
    stable = WarmupStableDecaySchedule(warmup=10)
    ended = WarmupStableDecaySchedule(warmup=10, decay_start=800)
    expected = rates(stable, total=500)
    for schedule, total in ((stable, TOTAL), (ended, TOTAL), (ended, 900)):
        assert rates(schedule, total=total)[:500] == expected

"""The inverse square root: closed-form rates, and a place in the run."""

import pytest

from ditlab_addons.optimizers.inverse_sqrt import InverseSqrtSchedule


def test_rates_are_those_of_the_formula():
    schedule = InverseSqrtSchedule(warmup=10, timescale=100, cooldown=50, final=0.1)
    factor = {step: schedule.factor(step, 1000, 100) for step in (0, 9, 10, 99, 399, 949, 950, 999)}
    assert factor[0] == 0.1 and factor[9] == factor[10] == factor[99] == 1.0
    assert factor[399] == 0.5 and factor[949] == pytest.approx(9.5**-0.5, rel=1e-15)
    begin = 9.51**-0.5
    assert factor[950] == pytest.approx(begin * (1 - 0.9 / 50), rel=1e-15)
    assert factor[999] == pytest.approx(begin * 0.1, rel=1e-14)
    longer = InverseSqrtSchedule(warmup=10, timescale=100, cooldown=50)
    assert all(longer.factor(step, 5000, 100) == factor[step] for step in (0, 9, 10, 99, 399, 949))


def test_a_cool_down_has_its_place_in_the_run(ditlab, spec):
    schedule = "schedule={kind: inverse_sqrt, cooldown: 99}"
    said = ditlab("train", spec, "--local", "--set", schedule, "--dry-run")
    assert said.code == 2 and "schedule.cooldown=99 is longer than the" in said.err

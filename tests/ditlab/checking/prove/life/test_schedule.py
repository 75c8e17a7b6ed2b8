"""Closed forms of the schedules: equal to the loop's own, and a step's shift shows."""

import numpy as np
import pytest

from ditlab.checking.prove import life
from ditlab.checking.prove.life import closed_form, compare_schedule, compared_steps
from ditlab.checking.prove.resume import StepRecord
from ditlab.training.plan import RunPlan
from support.trainings.workers import tiny

SCHEDULES = [
    {"kind": "constant", "warmup": 7},
    {"kind": "constant", "warmup_epochs": 0.5},
    {"kind": "warmup_cosine"},
    {"kind": "warmup_cosine", "warmup": 9, "final": 0.05},
    {"kind": "stepped_cosine_restart", "cycle": 11, "valley": 0.3, "decay": 0.8, "floor": 0.02},
    {"kind": "stepped_cosine_restart"},
]
PLAN = RunPlan(total_steps=300, epoch_steps=40, train_samples=1280, held_out_samples=0, left_out_samples=0)


def scheduled(spec):
    return tiny(schedule=spec, training={"steps": 300})


def used(experiment, shift=0):
    rates = closed_form(experiment, PLAN, np.arange(8) + shift)
    return {number + 1: StepRecord(rates=[float(rate)]) for number, rate in enumerate(rates)}


def test_closed_forms_are_the_loops_own_over_the_whole_plan():
    for spec in SCHEDULES:
        experiment = scheduled(spec)
        whole, steps = compare_schedule(experiment, PLAN, used(experiment))
        assert whole.distance <= whole.bound < 1e-12, (spec, whole)
        assert steps.distance == 0


def test_by_hand():
    rates = closed_form(scheduled({"kind": "warmup_cosine", "warmup": 4, "final": 0.1}), PLAN, np.array([0, 3, 4, 299]))
    assert rates == pytest.approx([0.25e-3, 1e-3, 1e-3, 1e-4], rel=1e-12)
    restarts = scheduled({"kind": "stepped_cosine_restart", "cycle": 10, "valley": 0.5, "decay": 0.5, "floor": 0.1})
    rates = closed_form(restarts, PLAN, np.array([0, 5, 10, 299]))
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 1e-4], rel=1e-12)


def test_a_step_too_early_shows(monkeypatch):
    for spec in SCHEDULES:
        experiment = scheduled(spec)
        _, steps = compare_schedule(experiment, PLAN, used(experiment, shift=1))
        assert steps.distance > steps.bound, spec
        assert "step" in steps.detail
    own = life.learning_rate
    monkeypatch.setattr(life, "learning_rate", lambda spec, base, step, *rest: own(spec, base, step + 1, *rest))
    for spec in SCHEDULES:
        whole, _ = compare_schedule(scheduled(spec), PLAN, {})
        assert whole.distance > whole.bound, spec


def test_a_long_plan_is_compared_at_its_ends_and_turns():
    experiment = scheduled({"kind": "warmup_cosine", "warmup": 5})
    plan = RunPlan(10**7, 40, 1280, 0, 0)
    steps = compared_steps(experiment, plan)
    assert len(steps) <= life.MOST_STEPS and {0, 4, 5, 6, 10**7 - 1} <= set(steps.tolist())

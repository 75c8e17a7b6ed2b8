"""What a resume may have changed is named: the tensor, the counter, the sample, the draw."""

import pytest
import torch

from ditlab.checking.prove.resume import (
    CopiedState,
    DigestedDraw,
    ObservedTraining,
    ResumedRun,
    StepRecord,
    StopSteps,
    compare_draws,
    compare_resume,
    stop_steps,
)
from ditlab.training.plan import RunPlan


def state(step):
    fields = ("master", "exp_avg", "exp_avg_sq", "ema")
    tensors = {(field, "network.w", 0): torch.arange(3.0) + step + n for n, field in enumerate(fields)}
    return CopiedState(tensors, {"adam_step": float(step)}, step, 8 * step)


def record(step):
    draw = {f"pass {number}: time": DigestedDraw("micro-batch", f"draw {step}.{number}") for number in (1, 2)}
    return StepRecord([f"sample {step}.{n}" for n in range(4)], draw, [1e-3 * step], {"train/loss": 1.0 / step})


@pytest.fixture
def runs():
    def steps(*numbers):
        return {number: record(number) for number in numbers}

    whole = ObservedTraining(steps(1, 2, 3, 4), state(0), state(4))
    stopped = ObservedTraining(steps(1, 2), state(0), state(2))
    return ResumedRun(whole, stopped, ObservedTraining(steps(3, 4), state(2), state(4)))


def off(runs):
    return {each.what: each.detail for each in compare_resume(runs) if not each.distance <= each.bound}


def test_an_exact_resume_holds(runs):
    assert off(runs) == {}


def test_what_was_not_loaded_is_named(runs):
    runs.resumed.begun.tensors["ema", "network.w", 0] += 1e-3
    runs.resumed.begun.scalars["adam_step"] = 0.0
    found = off(runs)
    assert found == {"average after loading": "first in network.w", "counters after loading": "adam_step 2.0 and 0.0"}


def test_a_missing_tensor_is_a_difference(runs):
    del runs.resumed.begun.tensors["ema", "network.w", 0]
    assert list(off(runs)) == ["average after loading"]


def test_replayed_noise_and_skipped_samples_are_named(runs):
    runs.resumed.steps[3].draws.update(runs.whole.steps[1].draws)
    runs.resumed.steps[3].samples[:] = [*runs.whole.steps[3].samples[1:], "sample 9"]
    found = off(runs)
    assert "step 3 drew other numbers in pass 1: time, those of step 1 again" in found["draws"]
    assert found["samples consumed"].startswith("step 3 consumed another sample at place 1")


def test_a_step_left_out_and_another_loss_are_named(runs):
    runs.resumed.steps[4].values["train/loss"] = 0.2500001
    assert "train/loss of step 4" in off(runs)["losses"]
    del runs.resumed.steps[3]
    assert off(runs)["steps trained"] == "step 3 lacks"


def test_draws_that_come_again_are_named():
    steps = {number: record(number) for number in (1, 2)}
    assert compare_draws(steps).distance == 0
    steps[2].draws["pass 1: time"] = steps[1].draws["pass 2: time"]
    found = compare_draws(steps)
    assert found.distance == 1 and found.detail == "step 2, pass 1: time, is step 1, pass 2: time again"


def test_the_resume_is_in_the_middle_of_an_epoch():
    def stops(total, epoch):
        return stop_steps(RunPlan(total, epoch, 0, 0, 0))

    assert stops(1, 10) is None
    assert stops(100, 10) == StopSteps(4, 2)
    assert stops(100, 2) == StopSteps(4, 3)
    assert stops(2, 2) == StopSteps(2, 1)

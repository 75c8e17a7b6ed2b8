"""The step loop: how a run ends, and what it does about steps that are no numbers or do not fit."""

import math

import pytest
import torch
from torch import nn

from ditlab.engine.engine import Engine
from ditlab.errors import RunFailed
from ditlab_models.processes.flow import VelocityObjective
from support.marks import slow
from support.planted.faulty_losses import faulty, poison
from support.trainings.workers import newest, same_state, tiny, train_here


def poisoned(monkeypatch, is_bad, value=math.nan):
    """Losses of steps (from 0) that are no numbers."""

    def fault(step, start, batch, losses):
        return poison(losses, value) if is_bad(step) else losses

    faulty(monkeypatch, fault)


@pytest.mark.parametrize(("value", "stage"), [(math.inf, 0), (math.nan, 2)])
def test_a_step_that_is_no_number_is_left_out_and_the_run_goes_on(
    home, tmp_path, monkeypatch, value, stage
):
    experiment = tiny(engine__zero__stage=stage)
    poisoned(monkeypatch, lambda step: step == 3, value)
    outcome, recorder = train_here(experiment, home, tmp_path / "run")
    assert (outcome.status, outcome.step) == ("finished", 6)
    assert [step for step, loss in recorder.losses.items() if not math.isfinite(loss)] == [4]
    assert recorder.warnings == ["step 4 was skipped: its loss or gradient was NaN or infinite."]
    assert recorder.tagged == {"ditlab.failure": "non_finite", "ditlab.skipped_steps": "1"}
    reader = newest(tmp_path / "run")
    assert reader.manifest.scalars["adam_step"] == 5
    assert reader.manifest.position == 6 * 32  # its samples are taken from the order all the same
    assert all(math.isfinite(value) for value in reader.manifest.metrics.values())
    assert all(tensor.isfinite().all() for tensor in reader.weights().values())


def test_many_skipped_steps_are_counted_and_not_listed(home, tmp_path, monkeypatch):
    experiment = tiny(
        training__steps=13, checkpoint={"every": None}, training__non_finite__limit=20
    )
    poisoned(monkeypatch, lambda step: 0 < step < 12)
    _, recorder = train_here(experiment, home, tmp_path / "run")
    why = "loss or gradient was NaN or infinite."
    assert recorder.warnings == [
        f"step 2 was skipped: its {why}",
        f"10 steps were skipped up to step 11: their {why}",
        f"11 steps were skipped up to step 13: their {why}",
    ]
    assert recorder.tagged["ditlab.skipped_steps"] == "11"


def test_rolling_back_leaves_the_batch_out_and_logs_no_step_twice(home, tmp_path, monkeypatch):
    """Skipped or rolled back to, the batch has no part in the weights: the same bits come out."""
    bad = []

    def is_bad(step):
        if step == 4:
            bad.append(step)
        return step == 4

    poisoned(monkeypatch, is_bad)
    train_here(tiny(), home, tmp_path / "skipped")
    passes = len(bad)
    experiment = tiny(training__non_finite__policy="rollback")
    outcome, recorder = train_here(experiment, home, tmp_path / "rolled")
    assert (outcome.status, outcome.step) == ("finished", 6)
    assert len(bad) == 2 * passes  # seen once, and not again after the return to step 3
    assert any("rolled back to step 3" in warning for warning in recorder.warnings)
    assert recorder.tagged["ditlab.left_out_steps"] == "5"
    assert same_state(newest(tmp_path / "skipped"), newest(tmp_path / "rolled"))


@pytest.mark.parametrize(
    ("policy", "limit", "last", "words"),
    [
        ("skip", 2, 6, ", as in the 2 steps before it"),
        ("rollback", 2, 6, ", after 2 roll-backs to step 3"),
        ("stop", 9, 4, ""),
    ],
)
def test_a_run_that_stays_bad_has_diverged(home, tmp_path, monkeypatch, policy, limit, last, words):
    experiment = tiny(training={"steps": 9, "non_finite": {"policy": policy, "limit": limit}})
    poisoned(monkeypatch, lambda step: step >= 3)
    begin = "(the loss is nan at step \\d|had a NaN or infinite loss)"
    sentence = rf"{begin}{words}.*: training diverged; lower optimizer."
    with pytest.raises(RunFailed, match=sentence) as caught:
        train_here(experiment, home, tmp_path / "run")
    assert f"step {last}" in str(caught.value) and caught.value.kind == "diverged"
    assert newest(tmp_path / "run").manifest.step <= last


@pytest.mark.parametrize(
    ("policy", "steps", "first_bad", "num"),
    [("skip", 4, 1, 3), ("skip", 1, 0, 1), ("rollback", 4, 2, 2), ("rollback", 2, 0, 2)],
)
def test_a_run_that_ends_in_bad_steps_has_diverged(
    home, tmp_path, monkeypatch, policy, steps, first_bad, num
):
    """Though fewer steps are left than the limit."""
    experiment = tiny(training={"steps": steps, "non_finite": {"policy": policy}})
    poisoned(monkeypatch, lambda step: step >= first_bad)
    words = (
        rf"last {num} of {steps} steps was NaN or infinite.*: training diverged; lower optimizer"
    )
    with pytest.raises(RunFailed, match=words) as caught:
        train_here(experiment, home, tmp_path / "run")
    assert caught.value.kind == "diverged"


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_a_last_batch_that_is_bad_alone_is_left_out(home, tmp_path, monkeypatch, policy):
    experiment = tiny(training={"steps": 4, "non_finite": {"policy": policy}})
    poisoned(monkeypatch, lambda step: step == 3)
    outcome, recorder = train_here(experiment, home, tmp_path / "run")
    assert (outcome.status, outcome.step) == ("finished", 4)
    assert math.isfinite(outcome.metrics["train/loss"])
    assert math.isfinite(newest(tmp_path / "run").manifest.metrics["train/loss"])
    assert any("step 4" in each for each in recorder.warnings)


def test_no_checkpoint_holds_what_is_no_number(home, tmp_path, monkeypatch):
    """Weights spoilt behind the step's back, by memory that flips or a faulty device."""
    step_engine = Engine.step

    def step(self, number, *arguments):
        norm = step_engine(self, number, *arguments)
        if number == 5:
            self.partitions.flats[0].detach().view(-1)[0] = math.nan
        return norm

    monkeypatch.setattr(Engine, "step", step)
    with pytest.raises(RunFailed, match=r"step 6 was not saved \(master of .* holds NaN") as caught:
        train_here(tiny(), home, tmp_path / "run")
    assert caught.value.kind == "diverged"
    assert newest(tmp_path / "run").manifest.step == 3


@pytest.mark.parametrize("stage", [0, *slow(1, 2), 3])
@pytest.mark.parametrize("where", [*slow("forward"), "backward"])
def test_what_does_not_fit_is_halved_and_nothing_else_changes(
    home, tmp_path, monkeypatch, stage, where
):
    """From step 3 on, passes of more than 8 samples run out of memory; the batch and its draws stay
    what they are.
    """
    experiment = tiny(engine__zero__stage=stage)
    _, reference = train_here(experiment, home, tmp_path / "whole")

    def no_room(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def fault(step, start, batch, losses):
        if step < 2 or len(batch["image"]) <= 8:
            return losses
        if where == "forward":
            no_room()
        next(iter(losses.values())).register_hook(no_room)
        return losses

    faulty(monkeypatch, fault)
    outcome, recorder = train_here(experiment, home, tmp_path / "halved")
    assert (outcome.status, outcome.step) == ("finished", 6)
    assert recorder.warnings == [
        "out of memory at step 3: trying again with emptied caches.",
        "out of memory at step 3: going on with micro-batches of 8, the batch stays the same.",
    ]
    assert recorder.tagged["ditlab.failure"] == "out_of_memory"
    assert recorder.losses == pytest.approx(reference.losses, rel=1e-5)


def test_a_batch_that_never_fits_is_left_out(home, tmp_path, monkeypatch):
    lack = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."

    def fault(step, start, batch, losses):
        if step == 3:
            raise RuntimeError(lack)
        return losses

    faulty(monkeypatch, fault)
    outcome, recorder = train_here(tiny(), home, tmp_path / "run")
    assert (outcome.status, outcome.step) == ("finished", 6)
    assert recorder.warnings[-1] == "out of memory at step 4: its batch is skipped."
    assert sorted(recorder.losses) == [1, 2, 3, 5, 6]
    assert newest(tmp_path / "run").manifest.scalars["adam_step"] == 5


def test_an_error_that_is_not_about_memory_is_not_retried(home, tmp_path, monkeypatch):
    tries = []

    def fault(step, start, batch, losses):
        tries.append(step)
        raise RuntimeError("shape mismatch")

    faulty(monkeypatch, fault)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        train_here(tiny(), home, tmp_path / "run")
    assert tries == [0]


def test_an_objectives_own_buffers_are_saved_and_taken_up(home, tmp_path, monkeypatch):
    """A count of batches that only training knows."""
    made = []

    def with_counter(self, *arguments, _init=VelocityObjective.__init__):
        _init(self, *arguments)
        self.modules = nn.Module()
        self.modules.register_buffer("batches", torch.zeros(1))
        made.append(self.modules)

    def counted(self, *arguments, _loss=VelocityObjective.loss):
        self.modules.batches += 1
        return _loss(self, *arguments)

    monkeypatch.setattr(VelocityObjective, "__init__", with_counter)
    monkeypatch.setattr(VelocityObjective, "loss", counted)
    train_here(tiny(training__steps=3), home, tmp_path / "run")
    train_here(tiny(training__steps=5), home, tmp_path / "run")
    assert made[-1].batches.item() == 10  # two micro-batches a step
    manifest = newest(tmp_path / "run").manifest
    assert manifest.buffers == ["objective.batches"] and manifest.shapes["objective.batches"] == [1]

"""Runs whose last steps are no numbers: diverged, though fewer steps are left than the limit."""

import math

import pytest

import ditlab
from ditlab.errors import RunFailed
from ditlab.home import Home
from ditlab.tracking.records import list_runs
from support.planted.faulty_losses import faulty, poison
from support.trainings.workers import newest, tiny, train_here


def poisoned(monkeypatch, is_bad):
    """Losses of steps (from 0) that are no numbers."""
    faulty(
        monkeypatch,
        lambda step, start, batch, losses: poison(losses, math.nan) if is_bad(step) else losses,
    )


@pytest.mark.parametrize(
    ("policy", "steps", "first_bad", "num"),
    [("skip", 4, 1, 3), ("skip", 1, 0, 1), ("rollback", 4, 2, 2), ("rollback", 2, 0, 2)],
)
def test_a_run_that_ends_in_bad_steps_has_diverged(
    home, tmp_path, monkeypatch, policy, steps, first_bad, num
):
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


def test_bad_steps_in_the_middle_are_no_end(home, tmp_path, monkeypatch):
    poisoned(monkeypatch, lambda step: step in (1, 2, 4))
    outcome, _ = train_here(tiny(), home, tmp_path / "run")
    assert (outcome.status, outcome.step) == ("finished", 6)


def test_a_diverged_end_fails_the_run(tmp_path, monkeypatch):
    """It is recorded as failed, with its sentence."""
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path))
    poisoned(monkeypatch, lambda step: step >= 1)
    with pytest.raises(RunFailed, match=r"last 3 of 4 steps"):
        ditlab.train(tiny(training__steps=4), local=True)
    (record,) = list_runs(Home(tmp_path))
    assert record.status == "failed"

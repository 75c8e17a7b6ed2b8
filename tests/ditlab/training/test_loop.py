"""The step loop: how a run ends, and what it refuses to go on from."""

import math

import pytest
import torch
from torch import nn

from denoisers.processes.velocity_objective import VelocityObjective
from ditlab.engine.engine import Engine
from ditlab.errors import RunFailed
from ditlab.training.checkpoint import checkpoints_in, newest_checkpoint
from support.workers import tiny, train_here


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


def test_a_wish_to_stop_at_the_last_step_changes_nothing(home, tmp_path):
    experiment = tiny(evaluation={"every": 100, "samples": 0, "limit": 20})
    outcome, recorder = train_here(experiment, home, tmp_path / "run", stop_after=6)
    assert (outcome.status, outcome.step) == ("finished", 6)
    assert "eval/velocity" in recorder.values[6]


@pytest.mark.parametrize("norm", [math.inf, math.nan, -1.0])
def test_a_gradient_that_is_not_finite_ends_the_run_before_it_is_saved(home, tmp_path, monkeypatch, norm):
    step_engine = Engine.step
    monkeypatch.setattr(Engine, "step", lambda self, step, lr: norm if step == 4 else step_engine(self, step, lr))
    with pytest.raises(RunFailed, match=r"the gradient at step 5 is not finite: training diverged; lower optimizer.lr"):
        train_here(tiny(checkpoint={"every": 5}), home, tmp_path / "run")
    assert checkpoints_in(tmp_path / "run") == []


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
    manifest = newest_checkpoint(tmp_path / "run").manifest
    assert manifest.buffers == ["objective.batches"] and manifest.shapes["objective.batches"] == [1]

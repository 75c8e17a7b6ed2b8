"""Clipping, activation checkpointing, precision, learning rate: each does what it says."""

import pytest
import torch
from torch import nn

from ditlab.engine.distributed import single_process
from ditlab.engine.memory import checkpoint_activations
from support.damage import refused
from support.marks import slow
from support.trainings.engines import Pass, batch_of, engine_for, noise_of, state_of
from support.trainings.workers import tiny, train_here


@pytest.mark.parametrize("stage", [*slow(1), 3])
def test_keeping_fewer_activations_changes_no_number(home, tmp_path, stage):
    experiment = tiny(engine__zero__stage=stage, training__steps=2)
    plain = train_here(experiment, home, tmp_path / "plain")[1].losses
    assert len(plain) == 2
    recomputed = {"engine.activation_checkpointing": True}
    offloaded = {"engine.activation_offload": "cpu"}
    for number, options in enumerate((recomputed, offloaded, recomputed | offloaded)):
        other = experiment.replace_all(options)
        assert train_here(other, home, tmp_path / str(number))[1].losses == plain


def test_a_module_keeps_what_it_is_told_to():
    """Tensors kept on the device: all; the inputs alone; none, as autograd's hooks move them
    away.
    """

    def packed(recomputed, offloaded):
        module = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 4))
        if recomputed or offloaded:
            checkpoint_activations([module], recomputed, offloaded)
        seen = []

        def note(tensor):
            seen.append(tensor.numel())
            return tensor

        x = torch.randn(8, 4, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            module(x).sum().backward()
        return sum(seen)

    everything, inputs = packed(False, False), packed(True, False)
    assert inputs < everything / 4
    assert packed(False, True) == 0  # the inner hooks, which move to the host, had them


def test_fp16_trains_or_says_why_not(home, tmp_path):
    from deepspeed.accelerator import get_accelerator

    experiment = tiny(training__precision="fp16")
    if get_accelerator().is_fp16_supported():
        _, recorder = train_here(experiment, home, tmp_path / "fp16")
        assert all(loss == loss for loss in recorder.losses.values())
    else:
        with refused(r"training\.precision=fp16 is not supported on this cpu; set"):
            train_here(experiment, home, tmp_path / "fp16")


@pytest.mark.parametrize("stage", (0, 1, 2, 3))
def test_a_step_moves_weights_by_its_own_learning_rate(stage):
    """Not by the spec's: a warm-up's first step may have none."""
    with single_process(use_gpu=False) as rank:
        engine = engine_for(tiny(model__depth=1, engine__zero__stage=stage), rank, 1)

        def moved(rate):
            before = state_of(engine).tensors
            engine.forward_backward(batch_of(0, Pass(0)), noise_of(0, Pass(0)), last=True)
            engine.step(0, rate)
            after = state_of(engine).tensors
            masters = [key for key in after if key[0] == "master"]
            return max(float((after[key] - before[key]).abs().max()) for key in masters)

        # Adam's step from one gradient, met again and again, is its rate; weight decay adds a
        # hundredth of a weight.
        assert moved(0.0) == 0.0
        assert moved(1e-2) == pytest.approx(1e-2, rel=0.1)
        assert moved(1e-3) == pytest.approx(1e-3, rel=1)
        engine.close()


def test_it_learns_digits(home, tmp_path):
    """A hundred steps take the held-out error from 1.74 (what an untrained network gives) well
    below 1.
    """
    experiment = tiny(
        model__width=64,
        batch={"size": 64},
        optimizer__lr=3e-3,
        training__steps=100,
        training__ema__decay=0.97,
        evaluation__every=100,
        evaluation__samples=4,
        sampling__steps=4,
        checkpoint={"every": None},
    )
    _, recorder = train_here(experiment, home, tmp_path / "learned")
    assert recorder.values[0]["eval/velocity"] == pytest.approx(1.74, abs=0.05)
    assert recorder.values[100]["eval/velocity"] < 0.75
    assert recorder.pictures == [0, 100]

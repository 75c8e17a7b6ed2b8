"""A loss that divides by a count is the same however the batch is cut: by halvings for memory, or
among workers.
"""

import pytest
import torch

from ditlab.training.recovery import MemoryPlan
from ditlab_models.region.spec import Reduction
from support.trainings.family_specs import smallest
from support.trainings.workers import contents, newest, train_here, train_workers


def region(reduction, size=8, micro=8, workers=1):
    """The smallest region network on windows in which few regions are masked."""
    return smallest(
        "region",
        workers,
        batch={"size": size, "micro": micro},
        objective={"reduction": reduction, "mask_ratio": 0.15},
        training__steps=1,
        schedule__warmup=0,
        evaluation={"every": None},
    )


def trained(experiment, home, folder, splits):
    """Return the loss of one step, and its gradients by Adam's first moments."""
    memory = MemoryPlan(microbatch_splits=splits)
    _, recorder = train_here(experiment, home, folder, memory=memory)
    found = sorted(contents(newest(folder)).items())
    moments = [values for (field, _), values in found if field == "exp_avg"]
    return recorder.losses[1], torch.cat(moments)


@pytest.mark.parametrize("reduction", Reduction.__args__)
def test_a_halved_micro_batch_computes_the_same_step(home, tmp_path, reduction):
    experiment = region(reduction)
    loss, gradient = trained(experiment, home, tmp_path / "whole", 0)
    assert gradient.abs().max() > 0
    for splits in (1, 2, 3):  # of single windows, some have no masked region
        again, halves = trained(experiment, home, tmp_path / f"cut-{splits}", splits)
        assert again == pytest.approx(loss, rel=1e-5)
        assert torch.allclose(halves, gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_workers_compute_the_same_step(home, tmp_path):
    loss, _ = trained(region("entry_mean", 12, 2), home, tmp_path / "alone", 0)
    several = region("entry_mean", 12, 2, workers=2)
    (losses,) = train_workers([(several, home, tmp_path / "several")], 2)
    assert losses[1] == pytest.approx(loss, rel=1e-5)

"""Choice of a worker's GPU, and the layout of parameters there, without a GPU."""

import os
from itertools import accumulate
from pathlib import Path

import pytest
import torch

from ditlab.engine.distributed import current_rank
from ditlab.engine.optimizers import build_optimizer, parameter_facts
from ditlab.spec.files import load_experiment

EXPERIMENTS = Path(__file__).parents[3] / "experiments"


@pytest.mark.parametrize(("visible", "local_rank", "index"), [(4, 2, 2), (1, 2, 0), (1, 0, 0)])
def test_a_worker_that_sees_one_gpu_takes_it(monkeypatch, visible, local_rank, index):
    """DeepSpeed puts its engine on the device of number LOCAL_RANK, so that must be the same
    one.
    """
    taken = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setenv("LOCAL_RANK", "9")
    rank = current_rank(True, 5, 8, local_rank)
    assert rank.device == torch.device("cuda", index) and rank.local_rank == local_rank
    assert taken == [index] and os.environ["LOCAL_RANK"] == str(index)


def test_a_group_laid_out_for_a_gpu_begins_its_parameters_at_multiples_of_16_bytes():
    experiment = load_experiment(EXPERIMENTS / "pixelhdm" / "small.yaml")
    network = experiment.family.build_network(experiment.model)
    moved = {}
    for is_aligned in (False, True):
        groups = build_optimizer(
            network, parameter_facts(network), experiment.optimizer, is_aligned
        ).param_groups
        sizes = [[each.numel() for each in group["params"]] for group in groups]
        begins = [zip(group, accumulate(group, initial=0), strict=False) for group in sizes]
        moved[is_aligned] = sum(
            size % 8 == 0 and begin % 8 > 0 for group in begins for size, begin in group
        )
    assert moved[False] > 0 and moved[True] == 0

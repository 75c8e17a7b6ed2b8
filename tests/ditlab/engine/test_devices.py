"""Choice of a worker's GPU, without a GPU."""

import os

import pytest
import torch

from ditlab.engine.distributed import current_rank


@pytest.mark.parametrize(("visible", "local_rank", "index"), [(4, 2, 2), (1, 2, 0), (1, 0, 0)])
def test_a_worker_that_sees_one_gpu_takes_it(monkeypatch, visible, local_rank, index):
    """DeepSpeed puts its engine on the device of number LOCAL_RANK, so that must be the same one."""
    taken = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setenv("LOCAL_RANK", "9")
    rank = current_rank(True, 5, 8, local_rank)
    assert rank.device == torch.device("cuda", index) and rank.local_rank == local_rank
    assert taken == [index] and os.environ["LOCAL_RANK"] == str(index)

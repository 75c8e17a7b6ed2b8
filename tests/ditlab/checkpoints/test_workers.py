"""Several workers save one checkpoint or none."""

import os
import signal
import time
from pathlib import Path

import torch

from ditlab.checkpoints import transaction
from ditlab.checkpoints.store import CheckpointStore
from support.checkpoints import WEIGHT, is_step, manifest, save, shard_of, state
from support.saving_workers import saver_of, workers


def _story(rank: int, world_size: int, place: str) -> None:
    """Step by step, each worker checks what it is told."""
    cut = 12 * rank // world_size, 12 * (rank + 1) // world_size
    saver = saver_of(rank, world_size, place, keep=2)

    def saved(step, tensors=None):
        saver.save(manifest(step), state(step, *cut) if tensors is None else tensors)
        ended = saver.wait()
        assert ended.step == step and saver.poll() == [ended] and saver.poll() == []
        return ended

    assert saved(1).error is None

    # One that cannot write: its folder of this step is a file.
    files, healthy = saver.store.files, saver.store
    if rank == 1:
        Path(place, "blocked").mkdir()
        Path(place, "blocked", "step-00000002").touch()
        saver.store = CheckpointStore.at(Path(place, "blocked"))
    failed = saved(2)
    assert failed.kind == "write" and "worker 1: " in str(failed.error) and "worker 0" not in str(failed.error)
    saver.store = healthy

    # One whose state is no number.
    broken = state(3, *cut)
    if rank == 1:
        broken[0][1][2] = float("nan")
    failed = saved(3, broken)
    assert failed.kind == "not_finite" and "master of network.weight" in str(failed.error)

    # One that writes where the others do not see it.
    transaction.VISIBILITY_TIMEOUT = 0.3
    if rank == 1:
        saver.store = CheckpointStore.at(Path(place, "elsewhere"))
    failed = saved(4)
    assert failed.kind == "not_shared" and "worker 1 wrote" in str(failed.error)
    saver.store = healthy

    assert CheckpointStore.at(place).steps() == [1]
    # What failed is written again, and nothing of the failures is left beside it.
    for step in (2, 3, 4):
        assert saved(step).error is None
    saver.close()
    assert sorted(name for name in files.listing() if name.startswith("step")) == ["step-00000003", "step-00000004"]
    assert len(files.sizes("step-00000004")) == world_size + 1


def test_one_for_all(tmp_path):
    assert workers(_story, str(tmp_path)) == [0, 0]
    assert is_step(tmp_path, 4)  # read by one what two have written
    reader = CheckpointStore.at(tmp_path).open(4)
    assert torch.equal(reader.read("master", "network.weight", 3, 9), 400 + WEIGHT[3:9])
    assert save(tmp_path, 4).error is None  # and written anew by one
    assert is_step(tmp_path, 4) and shard_of(tmp_path, 4).name.startswith("shard-00000-of-00001-")


def _bereft(rank: int, world_size: int, place: str) -> None:
    saver = saver_of(rank, world_size, place)
    saver.save(manifest(1), state(1) if rank == 0 else [])
    assert saver.wait().error is None
    if rank == 1:
        Path(place, "gone").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    while not Path(place, "gone").exists():
        time.sleep(0.01)
    began = time.monotonic()
    for step in (2, 3):
        saver.save(manifest(step), state(step))
        assert saver.wait().kind == "lost_worker"
    saver.close()
    assert time.monotonic() - began < 20
    os._exit(0)  # not through the end of a process group that has lost a member


def test_a_worker_that_dies(tmp_path):
    """The one that is left hears of it and ends; what was committed stays."""
    assert workers(_bereft, str(tmp_path)) == [0, -signal.SIGKILL]
    assert is_step(tmp_path, 1) and CheckpointStore.at(tmp_path).steps() == [1]

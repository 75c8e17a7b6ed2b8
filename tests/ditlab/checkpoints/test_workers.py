"""Several workers save one checkpoint or none."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from ditlab.checkpoints import saving
from ditlab.checkpoints.store import CheckpointStore
from support.trainings.checkpoints import (
    WEIGHT,
    folder_of,
    is_step,
    manifest,
    save,
    shard_of,
    state,
)
from support.trainings.saving_workers import saver_of, workers


def _run(rank, world_size, place):
    _fail_in_turn(rank, world_size, f"{place}/failing")
    _lose_a_worker(rank, world_size, f"{place}/losing")


def _fail_in_turn(rank, world_size, place):
    """Save step after step, each failing in another way, and check what each worker is told."""
    cut = 12 * rank // world_size, 12 * (rank + 1) // world_size
    saver = saver_of(rank, world_size, place, keep=2)

    def saved(step, tensors=None):
        saver.save(manifest(step), state(step, *cut) if tensors is None else tensors)
        outcome = saver.wait()
        assert outcome.step == step and saver.poll() == [outcome] and saver.poll() == []
        return outcome

    assert saved(1).error is None

    # A worker that cannot write: its folder of this step is a file.
    healthy = saver.store
    if rank == 1:
        blocked = Path(place, "blocked")
        blocked.mkdir()
        folder_of(blocked, 2).touch()
        saver.store = CheckpointStore.at(blocked)
    error = saved(2).error
    assert error.kind == "write"
    assert "worker 1: " in str(error) and "worker 0" not in str(error)
    saver.store = healthy

    # A worker whose state holds NaN.
    broken = state(3, *cut)
    if rank == 1:
        broken[0][1][2] = float("nan")
    error = saved(3, broken).error
    assert error.kind == "not_finite" and "master of network.weight" in str(error)

    # A worker that writes where the others do not see it.
    saving.VISIBILITY_TIMEOUT = 0.3
    if rank == 1:
        saver.store = CheckpointStore.at(Path(place, "elsewhere"))
    error = saved(4).error
    assert error.kind == "not_shared" and "worker 1 wrote" in str(error)
    saver.store = healthy

    assert CheckpointStore.at(place).steps() == [1]
    # Failed steps are saved again, and the failures leave nothing.
    for step in (2, 3, 4):
        assert saved(step).error is None
    saver.close()
    assert healthy.steps() == [3, 4] and not folder_of(Path(place), 2).exists()
    assert len(healthy.files.sizes("step-00000004")) == world_size + 1


def _lose_a_worker(rank, world_size, place):
    """Kill worker 1 after the first save: worker 0 is told at each later one, and ends."""
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
        assert saver.wait().error.kind == "lost_worker"
    saver.close()
    assert time.monotonic() - began < 20
    os._exit(0)  # not through the end of a process group that has lost a member


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """(exit codes of two workers that have gone through both, the folder of their checkpoints)."""
    place = tmp_path_factory.mktemp("workers")
    return workers(_run, str(place)), place


def test_all_workers_save_a_step_or_none(ended):
    codes, place = ended
    assert codes == [0, -signal.SIGKILL]
    assert is_step(place / "failing", 4)  # written by two workers, read by one
    reader = CheckpointStore.at(place / "failing").open(4)
    assert torch.equal(reader.read("master", "network.weight", 3, 9), 400 + WEIGHT[3:9])
    assert save(place / "failing", 4).error is None  # and written again by one
    assert is_step(place / "failing", 4)
    assert shard_of(place / "failing", 4).name.startswith("shard-00000-of-00001-")


def test_a_worker_that_dies_ends_the_saves_of_the_others(ended):
    codes, place = ended
    assert codes == [0, -signal.SIGKILL]
    assert is_step(place / "losing", 1) and CheckpointStore.at(place / "losing").steps() == [1]

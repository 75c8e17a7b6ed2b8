"""Checkpoints of a store: committed or not, pruned or kept, and read back from however many
pieces.
"""

import shutil
import threading
from itertools import combinations

import pytest
import torch
from safetensors.torch import load_file

from ditlab.checkpoints import saving
from ditlab.checkpoints.manifest import MANIFEST, folder_of
from ditlab.checkpoints.saving import BackgroundSaver
from ditlab.checkpoints.store import CheckpointStore, open_checkpoint
from support.damage import refused
from support.trainings.checkpoints import (
    WEIGHT,
    flip_bit,
    is_step,
    manifest,
    save,
    saver,
    shard_of,
    state,
)


def write(place, step, cuts=(0, 12), skip=()):
    """Write a checkpoint as workers that hold the weight between these cuts do."""
    world = len(cuts) - 1
    barrier, sent = threading.Barrier(world), [None] * world

    def gather_of(rank):
        def gather(mine):
            barrier.wait()
            sent[rank] = mine
            barrier.wait()
            return list(sent)

        return gather

    store = CheckpointStore.at(place)
    savers = [BackgroundSaver(store, rank, world, gather_of(rank), 99) for rank in range(world)]
    for rank, one in enumerate(savers):
        one.save(manifest(step), [] if rank in skip else state(step, cuts[rank], cuts[rank + 1]))
    for outcome in [one.wait() for one in savers]:
        assert outcome.error is None and outcome.note is None
    return place / folder_of(step)


@pytest.fixture
def store(tmp_path):
    return CheckpointStore.at(tmp_path)


@pytest.mark.parametrize("cuts", [(0, 12), (0, 5, 12), (0, 1, 2, 11, 12)])
def test_what_is_written_is_read_whatever_the_pieces(tmp_path, cuts):
    reader = open_checkpoint(write(tmp_path, 2, cuts))
    assert is_step(tmp_path, 2)
    assert (reader.manifest.step, reader.manifest.position) == (2, 64)
    assert len(reader.manifest.shards) == len(cuts) - 1
    for start, stop in combinations(range(13), 2):
        found = reader.read("master", "network.weight", start, stop)
        assert torch.equal(found, 200 + WEIGHT[start:stop])


def test_what_is_not_there_is_not_filled(tmp_path, store):
    save(tmp_path, 1)
    reader = store.open(1)
    assert not reader.has("ema") and reader.has("master")
    gap = open_checkpoint(write(tmp_path, 2, (0, 4, 8, 12), skip=[1]))
    for each, field, stop, found in (
        (reader, "exp_avg", 12, 0),
        (reader, "master", 13, 12),
        (gap, "master", 12, 4),
    ):
        with refused(rf"is not whole \({found} of {stop}"):
            each.read(field, "network.weight", 0, stop)


@pytest.mark.parametrize("mode", ["background", "blocking"])
def test_every_kind_of_number(tmp_path, mode):
    """safetensors itself reads them from the shard."""
    types = ["bool", "float32", "bfloat16", "uint8", "int64", "float16", "float64"]
    tensors = [(("master", name, 0), torch.arange(5).to(getattr(torch, name))) for name in types]
    tensors += [
        (("buffer", "mask", 0), torch.tensor([-torch.inf])),
        (("master", "turned", 0), WEIGHT.view(3, 4).T),
        (("master", "none", 7), torch.empty(0)),
        (("master", "näme/ü", 3), torch.tensor(1.5)),
    ]
    one = saver(tmp_path, mode=mode)
    one.save(manifest(1), tensors)
    assert one.wait().error is None
    found = load_file(shard_of(tmp_path, 1))
    assert len(found) == len(tensors)
    for (field, name, start), tensor in tensors:
        same = found[f"{field}/{name}/{start}"]
        assert same.dtype == tensor.dtype and torch.equal(same, tensor.reshape(-1))


def test_a_save_is_of_the_step_at_which_it_was_asked_for(tmp_path, store):
    """The loop goes on at once; the memory of the save before is used again only when that has
    ended.
    """
    gate, values = threading.Event(), {step: state(step) for step in (1, 2, 3)}
    one = saver(tmp_path, before_commit=lambda: gate.wait(20))
    facts = manifest(1)
    one.reserve(values[1])
    one.save(facts, values[1])
    values[1][0][1].fill_(-1)
    facts.metrics["eval/loss"] = 7.0
    assert one.poll() == [] and store.steps() == []
    gate.set()
    for step in (2, 3):
        one.save(manifest(step), values[step])
        values[step][0][1].fill_(-1)
    one.wait()
    assert [saved.step for saved in one.poll()] == [1, 2, 3]
    assert is_step(tmp_path, 3)
    first = store.open(1)
    assert first.weights()["weight"][0, 1] == 101 and first.manifest.metrics["eval/loss"] == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("mode", ["background", "blocking"])
def test_what_is_no_number_is_not_saved(tmp_path, value, mode):
    save(tmp_path, 1)
    for field in ("master", "exp_avg_sq", "ema"):
        broken = torch.ones(70_000)
        broken[65_537] = value
        one = saver(tmp_path, mode=mode)
        one.save(manifest(2), [*state(2), ((field, "network.other", 0), broken)])
        ended = one.wait()
        assert ended.error.kind == "not_finite" and f"{field} of network.other" in str(ended.error)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert save(tmp_path, 2, mode=mode).error is None


def test_a_journal_that_cannot_be_synced_keeps_the_checkpoint_from_counting(tmp_path):
    def broken():
        raise OSError(28, "No space left on device", "/journal.jsonl")

    error = save(tmp_path, 1, before_commit=broken).error
    assert error.kind == "write" and "No space left on device (/journal.jsonl)" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_is_just_beginning_may_be_waited_for(tmp_path, monkeypatch):
    """Another saver's thread waits for what is under way, at any moment."""
    one = saver(tmp_path)

    class Watched(threading.Thread):
        def start(self):
            one.settle()
            super().start()
            one.settle()

    monkeypatch.setattr(saving.threading, "Thread", Watched)
    for step in (1, 2):
        one.save(manifest(step), state(step))
    assert one.wait().error is None and is_step(tmp_path, 2)


def test_a_peer_that_falls_silent(store):
    def gather(mine):
        raise RuntimeError("Connection closed by peer\nstack of C++")

    one = BackgroundSaver(store, 0, 2, gather, 3)
    for step in (1, 2):
        one.save(manifest(step), state(step))
        error = one.wait().error
        assert error.kind == "lost_worker" and "closed by peer" in str(error)
    one.close()
    assert store.steps() == []


def test_without_a_manifest_there_is_no_checkpoint(tmp_path, store):
    assert store.steps() == [] and CheckpointStore.at(tmp_path / "nowhere").newest() is None
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / folder_of(2) / MANIFEST).rename(tmp_path / folder_of(2) / f"{MANIFEST}.0.partial")
    (tmp_path / folder_of(3)).mkdir()
    (tmp_path / folder_of(4)).touch()
    assert store.steps() == [1] and store.newest(pytest.fail).manifest.step == 1
    with refused("no finished checkpoint"):
        store.open(2)
    with refused("name a folder such as step-00000200"):
        open_checkpoint(tmp_path)


def test_prune_keeps_the_newest(tmp_path, store):
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    for step in (0, 5):  # the later one is being written
        (tmp_path / folder_of(step)).mkdir()
    assert store.prune(2, 4) == [0, 1, 2]
    assert store.steps() == [3, 4] and store.prune(2, 4) == []
    assert (tmp_path / folder_of(5)).exists()


def test_prune_keeps_the_first_of_each_stretch(tmp_path, store):
    """Whatever the distance of the checkpoints, and however often it is asked for."""
    gone = []
    for step in (3, 6, 9, 12, 15, 18, 21, 24, 30):
        save(tmp_path, step)
        gone += store.prune(2, step, 10)
    assert store.steps() == [12, 21, 24, 30] and sorted(gone) == [3, 6, 9, 15, 18]


def test_damaged_checkpoints_drive_out_no_whole_ones(tmp_path, store):
    """Step 6 was damaged, the run went on from step 3 and has just saved step 5."""
    for step in (3, 6):
        save(tmp_path, step)
    flip_bit(shard_of(tmp_path, 6))
    assert save(tmp_path, 5, keep=1).note is None
    assert is_step(tmp_path, 5) and store.steps() == [5, 6]
    assert save(tmp_path, 6, keep=1).error is None  # written anew
    assert is_step(tmp_path, 6) and store.steps() == [6]


def test_a_step_saved_again_leaves_no_shard_of_other_workers(tmp_path):
    write(tmp_path, 1, (0, 4, 8, 12))
    folder = write(tmp_path, 1, (0, 12))
    assert sorted(file.name for file in folder.iterdir()) == [MANIFEST, shard_of(tmp_path, 1).name]
    assert is_step(tmp_path, 1)


def test_a_copy_beside_the_checkpoints_is_neither_taken_nor_deleted(tmp_path, store):
    for step in (1, 2):
        save(tmp_path, step)
    copies = [tmp_path / name for name in ("step-00000001.bak", "step-9", "step-٣٣٣٣٣٣٣٣")]
    for copy in copies:
        shutil.copytree(tmp_path / folder_of(1), copy)
    assert store.steps() == [1, 2] and store.prune(1, 2) == [1]
    assert all((copy / MANIFEST).exists() for copy in copies)


def test_a_folder_that_cannot_be_written_or_read(tmp_path):
    (tmp_path / "file").touch()
    with refused(r"checkpoint\.storage=.*; name a folder"):
        CheckpointStore.at(tmp_path / "file" / "below").files.check_writable()
    with refused(r"checkpoint\.storage=.* cannot be read"):
        CheckpointStore.at(tmp_path / "file").newest()


def test_no_memory_for_a_copy(tmp_path):
    """Told like any other failure, or the other workers would wait; the next save works."""
    save(tmp_path, 1)
    one = saver(tmp_path)
    endless = torch.zeros(1).expand(2**50)  # four PiB to copy, four bytes to hold
    one.save(manifest(2), [(("master", "network.weight", 0), endless)])
    error = one.wait().error
    assert error.kind == "write" and "checkpoint.write=blocking" in str(error)
    assert is_step(tmp_path, 1)
    one.save(manifest(2), state(2))
    assert one.wait().error is None and is_step(tmp_path, 2)

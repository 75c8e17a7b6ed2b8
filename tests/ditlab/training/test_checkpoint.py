"""The checkpoint format: what counts as a checkpoint, what is passed over, what is deleted."""

import json
import shutil

import pytest
import torch

from ditlab.errors import UserError
from ditlab.training.checkpoint import (
    MANIFEST,
    CheckpointReader,
    CheckpointWriter,
    Manifest,
    checkpoints_in,
    newest_checkpoint,
    prune,
)
from ditlab.training.noise import derived_seed
from support.workers import tiny, train_here

WEIGHT = torch.arange(12, dtype=torch.float32)


def write(folder, step, cuts=(0, 5, 12), commit=True, **changes):
    """A checkpoint of one (3, 4) weight in pieces, a shard each, and a buffer."""
    writer = CheckpointWriter(folder, step)
    pieces, hashes = [], {}
    world = len(cuts) - 1
    for rank in range(world):
        start, stop = cuts[rank], cuts[rank + 1]
        tensors = {("master", "network.weight", start): step * 100 + WEIGHT[start:stop]}
        if rank == 0:
            tensors["buffer", "network.count", 0] = torch.tensor([float(step)])
        found, digest = writer.write_shard(rank, world, tensors)
        pieces += found
        hashes |= digest
    content = {
        "step": step, "position": step * 32, "spec": {}, "spec_hash": "0", "scalars": {"adam_step": float(step)},
        "shapes": {"network.weight": [3, 4], "network.count": [1]}, "buffers": ["network.count"],
        "pieces": pieces, "hashes": hashes, "metrics": {"train/loss": float("nan")},
    }  # fmt: skip
    if commit:
        writer.commit(Manifest(**{**content, **changes}))
    return writer.path


def flip(file, offset=-1):
    content = bytearray(file.read_bytes())
    content[offset] ^= 1
    file.write_bytes(content)


def edit(path, change):
    """The manifest as a person might write it back."""
    file = path / MANIFEST
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content, indent=2))


@pytest.mark.parametrize("cuts", [(0, 12), (0, 5, 12), (0, 1, 2, 11, 12)])
def test_what_is_written_is_read_whatever_the_pieces(tmp_path, cuts):
    reader = CheckpointReader(write(tmp_path, 2, cuts))
    weights = reader.weights()
    assert torch.equal(weights["weight"], (200 + WEIGHT).view(3, 4))
    assert torch.equal(weights["count"], torch.tensor([2.0]))
    assert (reader.manifest.step, reader.manifest.position) == (2, 64)
    for start in range(12):
        for stop in range(start + 1, 13):
            assert torch.equal(reader.read("master", "network.weight", start, stop), 200 + WEIGHT[start:stop])


def test_a_field_that_is_not_there(tmp_path):
    reader = CheckpointReader(write(tmp_path, 1))
    assert not reader.has("ema") and reader.has("master")
    with pytest.raises(UserError, match="is not whole"):
        reader.read("exp_avg", "network.weight", 0, 12)
    with pytest.raises(UserError, match=r"is not whole \(12 of 13"):
        reader.read("master", "network.weight", 0, 13)


def test_a_gap_is_not_filled(tmp_path):
    path = write(tmp_path, 1, (0, 4, 8, 12))
    pieces = [piece for piece in CheckpointReader(path).manifest.pieces if piece[3] != 4]
    write(tmp_path, 2, (0, 4, 8, 12), pieces=pieces)
    with pytest.raises(UserError, match="is not whole"):
        CheckpointReader(tmp_path / "step-00000002").read("master", "network.weight", 0, 12)


def test_without_a_manifest_there_is_no_checkpoint(tmp_path):
    good = write(tmp_path, 1)
    write(tmp_path, 2, commit=False)
    (tmp_path / "step-00000003").mkdir()
    (tmp_path / "step-00000003" / f"{MANIFEST}.partial").write_text("{}")
    assert checkpoints_in(tmp_path) == [good]
    warnings = []
    assert newest_checkpoint(tmp_path, warnings.append).path == good
    assert warnings == []
    with pytest.raises(UserError, match="no finished checkpoint"):
        CheckpointReader(tmp_path / "step-00000002")
    assert newest_checkpoint(tmp_path / "nowhere") is None


def truncate(path):
    shard = next(path.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-3])


DAMAGE = {
    "flipped byte at the end": lambda path: flip(next(path.glob("*.safetensors"))),
    "flipped byte in the header": lambda path: flip(next(path.glob("*.safetensors")), 10),
    "truncated shard": truncate,
    "missing shard": lambda path: next(path.glob("*.safetensors")).unlink(),
    "truncated manifest": lambda path: (path / MANIFEST).write_text((path / MANIFEST).read_text()[:100]),
    "empty manifest": lambda path: (path / MANIFEST).write_text(""),
    "binary manifest": lambda path: (path / MANIFEST).write_bytes(b"\x80\x81\xff"),
    "a list": lambda path: (path / MANIFEST).write_text("[1, 2]"),
    "edited step": lambda path: edit(path, lambda content: content.update(step=7)),
    "edited piece": lambda path: edit(path, lambda content: content["pieces"][0].__setitem__(3, 1)),
    "another format": lambda path: edit(path, lambda content: content.update(format=99)),
    "no hashes": lambda path: edit(path, lambda content: content.update(hashes={})),
    "no digest": lambda path: edit(path, lambda content: content.pop("digest")),
    "a field more": lambda path: edit(path, lambda content: content.update(extra=1)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_passed_over_and_said_so(tmp_path, damage):
    good, bad = write(tmp_path, 1), write(tmp_path, 2)
    DAMAGE[damage](bad)
    with pytest.raises(UserError):
        CheckpointReader(bad)
    warnings = []
    assert newest_checkpoint(tmp_path, warnings.append).path == good
    assert len(warnings) == 1
    assert str(bad) in warnings[0] and warnings[0].endswith("Falling back to the one before.")


def test_a_manifest_laid_out_anew_is_the_same(tmp_path):
    path = write(tmp_path, 1)
    edit(path, lambda content: None)
    assert CheckpointReader(path).manifest.step == 1


def test_a_path_in_the_manifest_leads_nowhere(tmp_path):
    """Not even one whose hash is right, in a manifest that is otherwise whole."""
    outside = write(tmp_path / "outside", 1, (0, 12))
    shard = next(outside.glob("*.safetensors"))
    (tmp_path / shard.name).write_bytes(shard.read_bytes())
    (digest,) = CheckpointReader(outside).manifest.hashes.values()
    write(tmp_path / "run", 2, hashes={f"../../{shard.name}": digest})
    with pytest.raises(UserError, match="missing or was altered"):
        CheckpointReader(tmp_path / "run" / "step-00000002")


def test_prune_keeps_the_newest(tmp_path):
    paths = [write(tmp_path, step) for step in (1, 2, 3, 4)]
    abandoned = write(tmp_path, 0, commit=False)
    assert list(prune(tmp_path, 2, paths[-1])) == [abandoned, *paths[:2]]
    assert sorted(tmp_path.iterdir()) == paths[2:]
    assert list(prune(tmp_path, 2, paths[-1])) == []


def test_prune_leaves_what_is_being_written(tmp_path):
    newest = write(tmp_path, 1)
    writing = write(tmp_path, 2, commit=False)
    assert list(prune(tmp_path, 1, newest)) == []
    assert writing.exists()


def test_damaged_checkpoints_drive_out_no_whole_ones(tmp_path):
    """Step 6 was damaged, the run went on from step 3 and has just saved step 5."""
    paths = {step: write(tmp_path, step) for step in (3, 5, 6)}
    flip(next(paths[6].glob("*.safetensors")))
    list(prune(tmp_path, 1, paths[5]))
    assert newest_checkpoint(tmp_path, lambda _: None).path == paths[5]


def test_a_step_saved_again_leaves_no_shard_of_other_workers(tmp_path):
    write(tmp_path, 1, (0, 4, 8, 12))
    path = write(tmp_path, 1, (0, 12))
    assert sorted(file.name for file in path.iterdir()) == [MANIFEST, "shard-00000-of-00001.safetensors"]
    assert torch.equal(CheckpointReader(path).weights()["weight"], (100 + WEIGHT).view(3, 4))


def test_a_copy_beside_the_checkpoints_is_neither_taken_nor_deleted(tmp_path):
    first, last = write(tmp_path, 1), write(tmp_path, 2)
    copy = tmp_path / "step-00000001.bak"
    shutil.copytree(first, copy)
    assert checkpoints_in(tmp_path) == [first, last]
    assert list(prune(tmp_path, 1, last)) == [first]
    assert (copy / MANIFEST).exists()


def test_training_goes_on_from_the_one_before(tmp_path):
    """The newest checkpoint loses a bit: the run repeats the steps since the one before, to the same weights."""
    home, experiment = tmp_path / "home", tiny()
    _, unbroken = train_here(experiment, home, tmp_path / "unbroken")
    train_here(experiment, home, tmp_path / "run")
    flip(next((tmp_path / "run" / "step-00000006").glob("*.safetensors")))
    outcome, recorder = train_here(experiment, home, tmp_path / "run")
    assert (outcome.status, sorted(recorder.losses)) == ("finished", [4, 5, 6])
    assert recorder.losses == {step: unbroken.losses[step] for step in (4, 5, 6)}
    assert len(recorder.warnings) == 1 and "Falling back" in recorder.warnings[0]
    one, two = (CheckpointReader(tmp_path / name / "step-00000006").weights() for name in ("unbroken", "run"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("decay", [0.999, 0.2])
def test_the_average_is_the_closed_form(tmp_path, decay):
    """min(decay, (1 + n) / (10 + n)) at step n, over the weights that the checkpoint of each step holds."""
    experiment = tiny(training={"steps": 5, "ema": {"decay": decay}}, checkpoint={"every": 1, "keep": 9})
    train_here(experiment, tmp_path / "home", tmp_path / "run")
    torch.manual_seed(derived_seed(experiment.seed, "weights"))
    average = {name: value.detach().clone() for name, value in experiment.model.build().named_parameters()}
    for step, path in enumerate(checkpoints_in(tmp_path / "run")):
        reader = CheckpointReader(path)
        assert reader.manifest.step == step + 1
        rate = min(decay, (1 + step) / (10 + step))
        weights = reader.weights(averaged=False)
        average = {name: rate * old + (1 - rate) * weights[name] for name, old in average.items()}
        found = reader.weights()
        for name, expected in average.items():
            torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-7)
    assert any(not torch.equal(found[name], weights[name]) for name in weights)

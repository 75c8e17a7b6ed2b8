"""Small checkpoints, written by the real saver."""

import torch

from ditlab.checkpoints.manifest import MANIFEST, CheckpointManifest
from ditlab.checkpoints.saving import BackgroundSaver
from ditlab.checkpoints.store import CheckpointStore

WEIGHT = torch.arange(12, dtype=torch.float32)


def manifest(step):
    """The manifest of a network with one weight, (3, 4), and a buffer."""
    return CheckpointManifest(
        step=step,
        position=step * 32,
        spec={"name": "tiny"},
        spec_hash="0",
        scalars={"adam_step": float(step)},
        shapes={"network.weight": [3, 4], "network.count": [1]},
        buffers=["network.count"],
        metrics={"train/loss": float("nan"), "eval/loss": 1},
    )


def state(step, start=0, stop=12):
    """Tensors of a worker that holds values `start` to `stop` of the weight."""
    tensors = [(("master", "network.weight", start), step * 100 + WEIGHT[start:stop])]
    if start == 0:
        tensors.append((("buffer", "network.count", 0), torch.tensor([float(step)])))
    return tensors


def saver(place, keep=9, **options):
    """The saver of a run with one worker."""
    store = place if isinstance(place, CheckpointStore) else CheckpointStore.at(place)
    return BackgroundSaver(store, 0, 1, lambda mine: [mine], keep, **options)


def save(place, step, keep=9, **options):
    """Save one checkpoint."""
    one = saver(place, keep, **options)
    one.save(manifest(step), state(step))
    saved = one.wait()
    assert saved is not None
    one.close()
    return saved


def is_step(place, step):
    """Return True if the newest whole checkpoint is that of `step`, value for value."""
    with CheckpointStore.at(place).newest(print) as reader:  # type: ignore[union-attr]
        weights = reader.weights()
        return (
            reader.manifest.step == step
            and torch.equal(weights["weight"], (step * 100 + WEIGHT).view(3, 4))
            and torch.equal(weights["count"], torch.tensor([float(step)]))
        )


def folder_of(place, step):
    return place / f"step-{step:08d}"


def shard_of(place, step):
    (shard,) = folder_of(place, step).glob("shard-*.safetensors")
    return shard


def edit_bytes(file, change):
    file.write_bytes(change(file.read_bytes()))


def flip_bit(file):
    """Change the last bit of a file."""
    edit_bytes(file, lambda content: content[:-1] + bytes([content[-1] ^ 1]))


def files_of(place, step):
    return [shard_of(place, step), folder_of(place, step) / MANIFEST]

"""Runs that keep averages of power-function profile, and what their snapshots hold."""

import math
import sys
from dataclasses import replace

import torch

from ditlab.averages import START, UPDATES, field_of
from ditlab.checkpoints.kept_averages import average_snapshots, open_averages
from ditlab.checkpoints.saving import BackgroundSaver
from ditlab.checkpoints.store import CheckpointStore
from support.trainings.workers import contents, newest, same_tensors, tiny

SMALL = {"family": "dit", "image_size": 8, "patch_size": 4, "width": 16, "depth": 1, "num_heads": 2}


def averaged(steps, **changes):
    """A run of one pass a step that keeps averages."""
    training = {"steps": steps, "ema": {"decay": 0.95}, "averages": {}}
    batch = {"size": 16, "micro": 16}
    return tiny(**{"model": SMALL, "batch": batch, "training": training, **changes})


def snapshots_of(folder):
    """The snapshots of the run whose checkpoints are in a folder."""
    return average_snapshots(CheckpointStore.at(folder))


def all_snapshots(folder):
    """Values of every snapshot, by step, field and name."""
    found = {}
    store = snapshots_of(folder)
    for step in store.steps():
        with store.open(step) as reader:
            scalars = list(reader.manifest.scalars.values())
            found[step, "scalars"] = torch.tensor(scalars, dtype=torch.float64)
            found |= {(step, *key): values for key, values in contents(reader).items()}
    return found


def same_snapshots(one, two):
    """Return True if two runs have snapshots of the same steps and bits."""
    return same_tensors(all_snapshots(one), all_snapshots(two))


def same_averages(one, two):
    """Return True if the newest checkpoints of two runs hold the same fields with the same bits."""
    with newest(one) as first, newest(two) as second:
        expected = contents(first)
        assert any(field.startswith("power_") for field, _ in expected)
        return same_tensors(expected, contents(second))


def rebuilt(folder, profile, warn):
    """Rebuild an average of a run's newest checkpoint."""
    with (
        newest(folder) as checkpoint,
        open_averages(CheckpointStore.at(folder), checkpoint, warn) as kept,
    ):
        average = kept.rebuild(profile)
        return average.weights(prefix=""), average


def relative(found, expected):
    """Distance of two sets of tensors, over the size of the second."""
    distance = size = 0.0
    for name, values in expected.items():
        values = values.double().flatten()
        distance += float((found[name].flatten() - values).square().sum())
        size += float(values.square().sum())
    return math.sqrt(distance / size)


def keep_averages(folder):
    """Add averages to the newest checkpoint of a run that kept none, and snapshots of the steps
    before it.

    The averages are its weights: what reads them sees files as training writes them.
    """
    store = CheckpointStore.at(folder)
    with newest(folder) as reader:
        own = reader.manifest
        state = {piece[1:4]: reader.read(*piece[1:]).clone() for piece in own.pieces}
    power = {
        (field_of(length), name, start): values
        for length in (0.05, 0.10)
        for (field, name, start), values in state.items()
        if field == "master"
    }
    scalars = {**own.scalars, START: 0.0}
    for step in range(1, own.step):
        early = replace(
            own,
            step=step,
            scalars={**scalars, UPDATES: float(step)},
            buffers=[],
            shards={},
            pieces=[],
        )
        _write(average_snapshots(store), early, power)
    _write(store, replace(own, scalars=scalars, shards={}, pieces=[]), {**state, **power})


def _write(store, manifest, tensors):
    saver = BackgroundSaver(store, 0, 1, lambda mine: [mine], sys.maxsize, mode="blocking")
    saver.save(manifest, tensors.items())
    outcome = saver.wait()
    assert outcome is not None and outcome.error is None and outcome.note is None, outcome

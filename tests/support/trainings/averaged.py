"""Runs that keep averages of power-function profile, and what their snapshots hold."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ditlab.averages import START, UPDATES, AverageProfile, field_of
from ditlab.checkpoints.kept_averages import RebuiltAverage, average_snapshots, open_averages
from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.checkpoints.saving import BackgroundSaver
from ditlab.checkpoints.shard import TensorKey
from ditlab.checkpoints.store import CheckpointStore
from ditlab.spec.experiment import Experiment
from support.trainings.workers import newest, tiny

SMALL = {"family": "dit", "image_size": 8, "patch_size": 4, "width": 16, "depth": 1, "num_heads": 2}


def averaged(steps: int, **changes: Any) -> Experiment:
    """A run of one pass a step that keeps averages."""
    training = {"steps": steps, "ema": {"decay": 0.95}, "averages": {}} | changes.pop(
        "training", {}
    )
    return tiny(
        **{"model": SMALL, "batch": {"size": 16, "micro": 16}, "training": training, **changes}
    )


def snapshots_of(folder: Path) -> CheckpointStore:
    """The snapshots of the run whose checkpoints are in a folder."""
    return average_snapshots(CheckpointStore.at(folder))


def all_snapshots(folder: Path) -> dict[tuple[Any, ...], Tensor]:
    """Values of every snapshot, by step, field, name and place."""
    found = {}
    store = snapshots_of(folder)
    for step in store.steps():
        with store.open(step) as reader:
            for _, field, name, start, stop in reader.manifest.pieces:
                found[step, field, name, start] = reader.read(field, name, start, stop)
            found[step, "scalars"] = torch.tensor(
                list(reader.manifest.scalars.values()), dtype=torch.float64
            )
    return found


def same_snapshots(one: Path, two: Path) -> bool:
    """Return True if two runs have snapshots of the same steps and bits."""
    expected, found = all_snapshots(one), all_snapshots(two)
    return expected.keys() == found.keys() and all(
        torch.equal(expected[key], found[key]) for key in expected
    )


def same_averages(one: Path, two: Path) -> bool:
    """Return True if the newest checkpoints of two runs hold the same fields with the same bits."""
    with newest(one) as first, newest(two) as second:
        pieces = [piece[1:] for piece in first.manifest.pieces]
        assert any(field.startswith("power_") for field, *_ in pieces)
        return pieces == [piece[1:] for piece in second.manifest.pieces] and all(
            torch.equal(first.read(*piece), second.read(*piece)) for piece in pieces
        )


def rebuilt(
    folder: Path, profile: AverageProfile, warn: Callable[[str], None]
) -> tuple[dict[str, Tensor], RebuiltAverage]:
    """Rebuild an average of a run's newest checkpoint."""
    with (
        newest(folder) as checkpoint,
        open_averages(CheckpointStore.at(folder), checkpoint, warn) as kept,
    ):
        average = kept.rebuild(profile)
        return average.weights(prefix=""), average


def relative(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Distance of two sets of tensors, over the size of the second."""
    names = expected.keys()
    distance = sum(
        float((found[name].flatten().double() - expected[name].flatten()).square().sum())
        for name in names
    )
    return math.sqrt(
        distance / sum(float(expected[name].double().square().sum()) for name in names)
    )


def keep_averages(folder: Path, lengths: Sequence[float] = (0.05, 0.10)) -> None:
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
        for length in lengths
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


def _write(
    store: CheckpointStore, manifest: CheckpointManifest, tensors: Mapping[TensorKey, Tensor]
) -> None:
    saver = BackgroundSaver(store, 0, 1, lambda mine: [mine], sys.maxsize, mode="blocking")
    saver.save(manifest, tensors.items())
    outcome = saver.wait()
    assert outcome is not None and outcome.error is None and outcome.note is None, outcome

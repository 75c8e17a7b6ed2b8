"""Checkpoint of another run from which a run begins, and what of it goes on: a fork's start, a
trial's takeover.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ditlab.checkpoints.kept_averages import average_snapshots
from ditlab.checkpoints.manifest import (
    MANIFEST,
    CheckpointManifest,
    DamagedCheckpoint,
    folder_of,
    is_hold,
)
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import Unreachable, UserError
from ditlab.spec.experiment import Experiment, content_of_data
from ditlab.spec.start import Start

MOST_LISTED = 12
"""Newest checkpoints that a message lists."""


@dataclass(frozen=True)
class StartPoint:
    """Checkpoint of another run from which a run begins while it has none of its own."""

    start: Start
    find_checkpoints: Callable[[], CheckpointStore]
    """Finds the parent's checkpoints, once they are needed; raises UserError where the parent is
    gone.
    """
    run_id: str
    """Id of the run that begins, the fork."""
    classes: int | None = None
    """Its number of classes (model.num_classes), by which the parent's table of classes grows."""

    def open(self, verify: bool = True) -> CheckpointReader:
        """Open the checkpoint; with `verify`, its shards are hashed first.

        Raises UserError where it is gone, damaged, or not the one that the fork began from.
        """
        step = self.start.step
        parent = self.start.run
        checkpoints = self.find_checkpoints()
        there = checkpoints.steps()
        if step not in there:
            have = ", ".join(map(str, there[-MOST_LISTED:])) or "none"
            raise UserError(
                f"start.step={step}: run {parent} has no checkpoint of that step; it has {have}."
            )
        try:
            reader = checkpoints.open(step, verify)
        except DamagedCheckpoint as error:
            raise UserError(f"start.step={step}: {error}") from None
        held = checkpoints.held_digest(step, self.run_id)
        if held is not None and held != reader.manifest.state_digest():
            reader.close()
            raise UserError(
                f"start.step={step}: the checkpoint of run {parent} was written again since "
                f"run {self.run_id} began from it, with other numbers; start a new run from "
                "it, without --resume."
            )
        before = reader.manifest.spec["model"].get("num_classes")
        if self.classes and before and self.classes > before:
            reader.grow(self.classes, before)
        return reader


def order_changes(parent: Mapping[str, Any], experiment: Experiment) -> list[str]:
    """Return what of a fork's spec gives another order of samples than its parent's; [] where the
    order goes on.
    """
    own = experiment.to_dict()
    changed = []
    before = parent["seed"]
    if before != own["seed"]:
        changed.append(f"seed={own['seed']} (was {before})")
    size = parent["batch"]["size"]
    if size != own["batch"]["size"]:
        changed.append(f"batch.size={own['batch']['size']} (was {size})")
    before = content_of_data(parent["data"])
    now = content_of_data(own["data"])
    changed += [
        f"data.{key}" for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)
    ]
    return changed


def kept_scalars(manifest: CheckpointManifest, experiment: Experiment) -> dict[str, float]:
    """Return the numbers of the engine's state, without those that the fork's precision or clipping
    has no use for.

    Nor those of averages: a fork's begin with its own first step, so that its own snapshots are
    enough to rebuild them.
    """
    now = experiment.to_dict()["training"]
    before = manifest.spec["training"]
    unused = [
        prefix
        for prefix, key in (("loss_scale.", "precision"), ("clip.", "clip"))
        if now[key] != before[key]
    ]
    return {
        name: value
        for name, value in manifest.scalars.items()
        if not name.startswith(("averages.", *unused))
    }


def take_over(own: CheckpointStore, donor: CheckpointStore, step: int) -> int:
    """Copy the donor's checkpoint of `step` as the newest one of `own`; later ones of `own` are
    deleted.

    So are all snapshots of averages of `own`, which belong to the steps that are given up. Where
    the donor has pruned that checkpoint, its newest one is copied. Returns the step that was
    copied. Cut short, the copy leaves the newest checkpoint of `own` as it was, or the donor's, and
    can be repeated. Raises Unreachable where the donor has none, or a store does not answer.
    """
    there = donor.steps()
    if not there:
        raise Unreachable(f"{donor.location} holds no checkpoint to take over.")
    if step not in there:
        step = there[-1]
    average_snapshots(own).delete_after(0)
    files = own.files
    with files.translating_errors("cannot be written", "check that it can be reached and written"):
        # A checkpoint of that step of its own counts until the donor's manifest replaces its own.
        folder = folder_of(step)
        names = [name for name in donor.files.sizes(folder) if not is_hold(name)]
        manifest = donor.files.read(folder, MANIFEST)
        here = files.sizes(folder)
        if MANIFEST not in here or files.read(folder, MANIFEST) != manifest:
            for name in names:
                if name == MANIFEST:
                    continue
                if name in here:  # of a copy that was cut short: no two saves share a shard's name
                    files.delete(folder, name)
                files.write(folder, name, donor.files.chunks(folder, name))
            files.replace(folder, MANIFEST, manifest)
        for name in here:
            if name not in names and not is_hold(name):
                files.delete(folder, name)
    own.delete_after(step)
    return step

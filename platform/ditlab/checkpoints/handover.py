"""Handover of a checkpoint from one run to another, which goes on from it."""

from ditlab.checkpoints.manifest import MANIFEST, folder_of, is_hold
from ditlab.checkpoints.snapshots import average_snapshots
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import Unreachable


def take_over(own: CheckpointStore, donor: CheckpointStore, step: int) -> int:
    """Copy the donor's checkpoint of `step` as the newest one of `own`; later ones of `own` are deleted.

    So are all snapshots of averages of `own`, which belong to the steps that are given up. Where the donor has pruned
    that checkpoint, its newest one is copied. Returns the step that was copied. Cut short, the copy leaves the newest
    checkpoint of `own` as it was, or the donor's, and can be repeated. Raises Unreachable where the donor has none, or
    a store does not answer.
    """
    there = donor.steps()
    if not there:
        raise Unreachable(f"{donor.location} holds no checkpoint to take over.")
    step = step if step in there else there[-1]
    average_snapshots(own).delete_after(0)
    with own.files.translating_errors("cannot be written", "check that it can be reached and written"):
        _copy(own, donor, folder_of(step))
        for old in own.steps():
            if old > step:
                own.files.delete(folder_of(old), MANIFEST)
                own.files.delete_folder(folder_of(old))
    return step


def _copy(own: CheckpointStore, donor: CheckpointStore, folder: str) -> None:
    """Copy one checkpoint over the own one of that step, which counts until the donor's manifest replaces its own."""
    there = [name for name in donor.files.sizes(folder) if not is_hold(name)]
    manifest = donor.files.read(folder, MANIFEST)
    here = own.files.sizes(folder)
    if MANIFEST not in here or own.files.read(folder, MANIFEST) != manifest:
        for name in there:
            if name != MANIFEST:
                if name in here:  # left by a copy that was cut short: no two saves give a shard the same name
                    own.files.delete(folder, name)
                own.files.write(folder, name, donor.files.chunks(folder, name))
        own.files.replace(folder, MANIFEST, manifest)
    for name in here:
        if name not in there and not is_hold(name):
            own.files.delete(folder, name)

"""A run goes on from another run's checkpoint."""

from ditlab.checkpoints.manifest import MANIFEST, folder_of
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import Unreachable


def take_over(own: CheckpointStore, donor: CheckpointStore, step: int) -> int:
    """Makes the donor's checkpoint of `step` the newest one of `own`; later ones of `own` are deleted.

    Where the donor has pruned that checkpoint, its newest one is taken. Returns the step that was taken. Cut short, it
    leaves the newest of `own` as it was, or the donor's, and can be done again. Raises Unreachable where the donor has
    none, or a store does not answer.
    """
    there = donor.steps()
    if not there:
        raise Unreachable(f"{donor.location} holds no checkpoint to take over.")
    step = step if step in there else there[-1]
    with own.files.named("cannot be written", "check that it can be reached and written"):
        _copy(own, donor, folder_of(step))
        for old in own.steps():
            if old > step:
                own.files.delete(folder_of(old), MANIFEST)
                own.files.delete_folder(folder_of(old))
    return step


def _copy(own: CheckpointStore, donor: CheckpointStore, folder: str) -> None:
    """One checkpoint, in place of the own one of that step, which counts until the donor's manifest is placed."""
    there, manifest = donor.files.sizes(folder), donor.files.read(folder, MANIFEST)
    here = own.files.sizes(folder)
    if MANIFEST not in here or own.files.read(folder, MANIFEST) != manifest:
        for name in there:
            if name != MANIFEST:
                if name in here:  # what a copy that was cut short has left: no two saves give a shard the same name
                    own.files.delete(folder, name)
                own.files.write(folder, name, donor.files.chunks(folder, name))
        own.files.place(folder, MANIFEST, manifest)
    for name in here:
        if name not in there:
            own.files.delete(folder, name)

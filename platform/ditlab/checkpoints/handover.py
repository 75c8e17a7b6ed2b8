"""A run goes on from another run's checkpoint."""

from ditlab.checkpoints.manifest import MANIFEST, Unreachable, folder_of
from ditlab.checkpoints.store import CheckpointStore


def take_over(own: CheckpointStore, donor: CheckpointStore, step: int) -> int:
    """Makes the donor's checkpoint of `step` the newest one of `own`; later ones of `own` are deleted.

    Where the donor has pruned that checkpoint, its newest one is taken. Returns the step that was taken. Cut short, it
    leaves `own` with checkpoints that are whole. Raises Unreachable where the donor has none, or a store does not answer.
    """
    there = donor.steps()
    if not there:
        raise Unreachable(f"{donor.location} holds no checkpoint to take over.")
    step = step if step in there else there[-1]
    folder = folder_of(step)
    with own.files.named("cannot be written", "check that it can be reached and written"):
        for old in own.steps():
            if old >= step:
                own.files.delete(folder_of(old), MANIFEST)
                own.files.delete_folder(folder_of(old))
        if folder in own.files.listing():  # what a copy that was cut short has left
            own.files.delete_folder(folder)
        for name in donor.files.sizes(folder):
            if name != MANIFEST:
                own.files.write(folder, name, donor.files.chunks(folder, name))
        own.files.place(folder, MANIFEST, donor.files.read(folder, MANIFEST))
    return step

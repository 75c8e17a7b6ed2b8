"""Snapshots of a run's averages: a store of their own among the run's checkpoints, which is not pruned."""

from ditlab.checkpoints.manifest import MANIFEST, folder_of
from ditlab.checkpoints.store import CheckpointStore

FOLDER = "averages"
"""Folder of the snapshots in that of the run's checkpoints."""


def average_snapshots(checkpoints: CheckpointStore) -> CheckpointStore:
    """Return the store of the snapshots of a run's averages."""
    return checkpoints.child(FOLDER)


def delete_after(snapshots: CheckpointStore, step: int) -> None:
    """Delete the snapshots later than `step`. Raises Unreachable where the store does not answer."""
    with snapshots.files.translating_errors("cannot be written", "delete the later snapshots there by hand"):
        for later in snapshots.steps():
            if later > step:
                # The manifest goes first: a deletion cut short leaves no snapshot that looks whole.
                snapshots.files.delete(folder_of(later), MANIFEST)
                snapshots.files.delete_folder(folder_of(later))

"""Snapshots of a run's averages: a store of their own among the run's checkpoints, which is not pruned."""

from ditlab.averages.names import FOLDER
from ditlab.checkpoints.store import CheckpointStore


def average_snapshots(checkpoints: CheckpointStore) -> CheckpointStore:
    """Return the store of the snapshots of a run's averages."""
    return checkpoints.child(FOLDER)

"""A run as it is handed from launcher to worker: plain values that travel anywhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ditlab.checkpoints.store import CheckpointStore
from ditlab.home import Home, RunFolder
from ditlab.spec.experiment import Experiment, class_for
from ditlab.training.memory import Room


@dataclass(frozen=True)
class RunRequest:
    """Everything that a worker must know."""

    spec: dict[str, Any]
    """The resolved experiment."""
    run_id: str
    home: str
    """DITLAB_HOME, absolute."""
    resumed: bool
    """Whether this run was started before."""
    tags: dict[str, str] = field(default_factory=dict)
    """For the tracked run: where the code came from."""
    room: Room = field(default_factory=Room)
    """What earlier tries found out about memory."""
    board: str = ""
    """Of a sweep's trial, to put evaluations on; empty for a run of its own."""
    gated: bool = False
    """Whether training waits after each evaluation until the trial's board lets it go on."""
    versions: dict[str, str] = field(default_factory=dict)
    """The launcher's, by `node_report.versions`: a node that joined later must have the same. Empty: not compared."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunRequest":
        """The inverse of `dataclasses.asdict`."""
        return cls(**{**values, "room": Room(**values["room"])})

    def experiment(self) -> Experiment:
        return class_for(self.spec).model_validate(self.spec)

    def folder(self) -> RunFolder:
        return Home(Path(self.home)).run(self.run_id)

    def checkpoints(self) -> CheckpointStore:
        """Where the run's checkpoints lie. Raises UserError where that cannot be reached."""
        return checkpoint_store(self.folder(), self.spec)


def checkpoint_store(folder: RunFolder, spec: Mapping[str, Any]) -> CheckpointStore:
    """The run's own folder, or one by its id below `checkpoint.storage`."""
    storage = spec["checkpoint"]["storage"]
    return CheckpointStore.at(storage).child(folder.run_id) if storage else CheckpointStore.at(folder.checkpoints)

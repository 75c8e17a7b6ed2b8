"""A run as it is handed from launcher to worker: plain values that travel anywhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ditlab.home import Home, RunFolder
from ditlab.spec.experiment import Experiment, class_for


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

    def experiment(self) -> Experiment:
        return class_for(self.spec).model_validate(self.spec)

    def folder(self) -> RunFolder:
        return Home(Path(self.home)).run(self.run_id)

    def checkpoints(self) -> Path:
        """The run's checkpoint folder: its own, or one below `checkpoint.storage`."""
        return checkpoint_folder(self.folder(), self.spec)


def checkpoint_folder(folder: RunFolder, spec: Mapping[str, Any]) -> Path:
    storage = spec["checkpoint"]["storage"]
    return Path(storage).expanduser().resolve() / folder.run_id if storage else folder.checkpoints

"""A run as its processes hand it on: the request that travels to workers, and all that is prepared from it once."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from denoisers.parameters import ParameterCount
from ditlab.checkpoints.start_point import StartPoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.yaml_text import MAX_BYTES, parse_yaml
from ditlab.storage.files import write_durably
from ditlab.storage.plain_files import read_plain
from ditlab.training.plan import RunPlan, TrainingRun
from ditlab.training.recovery import MemoryPlan
from ditlab.training.reporting import TrainingProgress


@dataclass(frozen=True)
class RunRequest:
    """Everything that a worker needs to train a run."""

    experiment: Experiment
    """The resolved spec, validated once in each process."""
    run_id: str
    home: Home
    """DITLAB_HOME, absolute."""
    resumed: bool
    """True if this run was started before."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the tracked run, such as the commit of its code."""
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    """Memory settings that earlier attempts arrived at."""
    trial_channel: str = ""
    """Name of the key-value channel that takes a sweep trial's evaluations; empty for a run of its own."""
    gated: bool = False
    """True if training blocks after each evaluation until the sweep's scheduler lets the trial continue."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library versions of the launcher, which a node that joins later must have as well; empty: not compared."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, from which `from_dict` rebuilds the request in another process."""
        return {
            "spec": self.experiment.to_dict(),
            "run_id": self.run_id,
            "home": str(self.home.root),
            "resumed": self.resumed,
            "tags": dict(self.tags),
            "memory": asdict(self.memory),
            "trial_channel": self.trial_channel,
            "gated": self.gated,
            "versions": dict(self.versions),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunRequest":
        """Rebuild a request from `to_dict`'s values: validates the spec."""
        rest = {key: value for key, value in values.items() if key != "spec"}
        experiment = class_for(values["spec"]).model_validate(values["spec"])
        memory = MemoryPlan(**{**values["memory"], "skipped_steps": tuple(values["memory"]["skipped_steps"])})
        return cls(**{**rest, "experiment": experiment, "home": Home(Path(values["home"])), "memory": memory})

    def with_tags(self, tags: Mapping[str, str]) -> "RunRequest":
        """The same request with further tags."""
        return replace(self, tags={**self.tags, **tags})

    @property
    def folder(self) -> RunFolder:
        """Folder of the run."""
        return self.home.run(self.run_id)

    def checkpoints(self) -> CheckpointStore:
        """Store of the run's checkpoints. Raises UserError where it cannot be reached."""
        return checkpoint_store(self.folder, self.experiment.checkpoint.storage)

    def training_run(self, data: DataSplits, plan: RunPlan) -> TrainingRun:
        """Everything that a worker trains from. Raises UserError where the checkpoints cannot be reached."""
        return TrainingRun(
            self.experiment, data, plan, self.checkpoints(), self.home, self.folder.path / "swap", self.memory,
            start_point(self.experiment, self.home, self.run_id),
        )  # fmt: skip


@dataclass(frozen=True)
class RecordedProof:
    """A proof that a run keeps: what `ditlab prove` showed before it began."""

    summary: str
    """Clause for the tag `ditlab.proof`."""
    json: str
    table: str

    def write(self, folder: RunFolder) -> None:
        """Write the proof into the run's folder. Raises OSError where the disk refuses."""
        write_durably(folder.proof, self.json.encode())
        write_durably(folder.proof_table, self.table.encode())


@dataclass(frozen=True)
class PreparedRun:
    """A run that can start: its request, and what was worked out from the spec and the data."""

    request: RunRequest
    data: DataSplits
    plan: RunPlan
    counts: ParameterCount


def checkpoint_store(folder: RunFolder, storage: str | None) -> CheckpointStore:
    """Store of a run's checkpoints: in the run's folder, or by the run's id below `checkpoint.storage`."""
    return CheckpointStore.at(storage).child(folder.run_id) if storage else CheckpointStore.at(folder.checkpoints)


def start_point(experiment: Experiment, home: Home, run_id: str) -> StartPoint | None:
    """Return the checkpoint that a run begins from while it has none of its own; None for a run that is no fork."""
    start = experiment.start
    return StartPoint(start, partial(recorded_checkpoints, home.run(start.run)), run_id) if start else None


def recorded_checkpoints(folder: RunFolder) -> CheckpointStore:
    """Store of a run's checkpoints by its spec as it was recorded, of which nothing else is validated.

    Raises UserError for a run that is not there, and for a spec that cannot be read.
    """
    try:
        spec = parse_yaml(read_plain(folder.spec, MAX_BYTES).decode(), str(folder.spec))
    except FileNotFoundError:
        raise UserError(f"run {folder.run_id} is not there: {folder.spec} is missing; bring it back.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder.spec} cannot be read ({first_line(error)}); put the run's own file there.") from None
    section = spec.get("checkpoint") if isinstance(spec, dict) else None
    storage = section.get("storage") if isinstance(section, dict) else None
    return checkpoint_store(folder, storage if isinstance(storage, str) else None)


@dataclass(frozen=True)
class RunCallbacks:
    """Functions called in the launching process, from its own thread."""

    on_progress: Callable[[TrainingProgress], None]
    """Receives progress for display, a few times a second."""
    warn: Callable[[str], None]
    """Receives warnings, one sentence each."""
    on_failure: Callable[[Mapping[str, str]], None]
    """Receives the tags of each failed attempt, before the run goes on or ends."""

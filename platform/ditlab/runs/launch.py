"""Launch of a run: the one record that goes from the checked spec to the workers, and where
checkpoints lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from ditlab.checkpoints.start_point import StartPoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import DataSplits, open_data
from ditlab.data.stores.copies import Notify, write_to_stderr
from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed, UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.parts import load_part
from ditlab.progress import ignore
from ditlab.runs.cores import Threads
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.yaml_text import read_recorded
from ditlab.tracking.access import resolve_tracking_uri
from ditlab.tracking.journal import recorded_dataset
from ditlab.tracking.names import flatten
from ditlab.training.hooks import StepHook
from ditlab.training.inbox import Inbox
from ditlab.training.plan import RunPlan, TrainingRun, plan_run, rate_change
from ditlab.training.recovery import MemoryPlan
from ditlab.training.reporting import TrainingProgress
from ditlab.weights.initial import InitialWeights
from ditlab_models.parameters import MetaModel


@dataclass(frozen=True)
class Launch:
    """Record from the checked spec to every worker; data, plan and model are opened at first use,
    once a process.
    """

    experiment: Experiment
    """The spec with absolute paths and the tracking address of this launch; validated once in each
    process.
    """
    home: Home
    """DITLAB_HOME, absolute."""
    run_id: str = ""
    """Empty until the run's folder exists."""
    resumed: bool = False
    """True if this run was started before."""
    before: Experiment | None = None
    """The spec that a resumed run had, where this launch changes it."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the tracked run, such as the commit of its code."""
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    """Memory settings that earlier attempts arrived at."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Source, revision, format and hashes of the published weights that the run begins from; {} for
    fresh ones.
    """
    trial_channel: str = ""
    """Name of the key-value channel that takes a sweep trial's evaluations; empty for a run of its
    own.
    """
    gated: bool = False
    """True if training blocks after each evaluation until the sweep's scheduler lets the trial
    continue.
    """
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library versions of the launcher, which a node that joins later must have as well; empty: not
    compared.
    """
    observers: tuple[str, ...] = ()
    """Places of the observers that add-ons bring where the run is launched; each worker must have
    them.
    """
    threads: Threads | None = None
    """Threads of each worker on this machine's CPUs; None with GPUs, and on a cluster. Stays in its
    process.
    """
    start_note: str = ""
    """Line about the checkpoint of another run that this one begins from; stays in its process."""
    resume_note: str = ""
    """Line about the run that `--resume auto` has found, or why none; stays in its process."""
    notify: Notify = field(default=write_to_stderr, compare=False)
    """Receives sentences about data that are fetched; stays in its process."""

    @cached_property
    def data(self) -> DataSplits:
        """Training and held-out rows. Raises UserError for data that cannot be opened."""
        return open_data(self.experiment.data, self.home, notify=self.notify)

    @cached_property
    def plan(self) -> RunPlan:
        """Steps and epochs. Raises UserError for a spec that leaves no steps."""
        return plan_run(self.experiment, self.data)

    @cached_property
    def model(self) -> MetaModel:
        """Network and objective on the meta device. Raises UserError where they do not fit."""
        return build_model(self.experiment)

    def changed(self, **changes: Any) -> Launch:
        """Return the same launch with other fields; what is open stays open."""
        other = replace(self, **changes)
        other.__dict__.update(self.__dict__ | other.__dict__)  # cached properties are kept there
        return other

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, from which `from_dict` rebuilds the launch in another process."""
        return {
            "spec": self.experiment.to_dict(),
            "before": self.before and self.before.to_dict(),
            "home": str(self.home.root),
            "memory": asdict(self.memory),
            **{
                name: getattr(self, name)
                for name in ("run_id", "resumed", "trial_channel", "gated")
            },
            **{name: dict(getattr(self, name)) for name in ("tags", "versions", "weights")},
            "observers": list(self.observers),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Launch:
        """Rebuild a launch from `to_dict`'s values: validates the specs."""
        rest = dict(values)
        spec = rest.pop("spec")
        before = rest.pop("before")
        memory = rest.pop("memory")
        return cls(
            class_for(spec).model_validate(spec),
            Home(Path(rest.pop("home"))),
            before=before and class_for(before).model_validate(before),
            memory=MemoryPlan(**{**memory, "skipped_steps": tuple(memory["skipped_steps"])}),
            observers=tuple(rest.pop("observers")),
            **rest,
        )

    def rate_change(self, step: int) -> str:
        """Sentence on the learning rates around a resume after `step` steps; empty where they are
        as before.
        """
        if self.before:
            return rate_change(self.before, self.experiment, self.data, step)
        return ""

    @property
    def folder(self) -> RunFolder:
        """Folder of the run."""
        return self.home.run(self.run_id)

    @property
    def tracking_uri(self) -> str:
        """Resolved address of the tracked run."""
        return resolve_tracking_uri(self.experiment.tracking.uri, self.home)

    def checkpoints(self) -> CheckpointStore:
        """Store of the run's checkpoints. Raises UserError where it cannot be reached."""
        return checkpoint_store(self.folder, self.experiment.checkpoint.storage)

    def training_run(self) -> TrainingRun:
        """Everything that a worker trains from. Raises UserError where data or checkpoints cannot
        be reached.
        """
        model = self.experiment.model
        initial = None
        if model.init:
            initial = InitialWeights(model, self.home, self.weights)
        evaluator = None
        if self.experiment.evaluation.mode == "async":
            evaluator = Inbox(self.folder.evaluator)
        return TrainingRun(
            self.experiment,
            self.data,
            self.plan,
            self.checkpoints(),
            self.home,
            self.memory,
            start_point(self.experiment, self.home, self.run_id),
            initial,
            evaluator,
            self.gated,
        )


@dataclass(frozen=True)
class StartSituation:
    """Situation in which a check before a run's begin is made (`ditlab.parts.StartCheck`)."""

    threads: int | None
    """Threads of each worker on a CPU; None with GPUs."""
    say: Callable[[str], None]
    """Receives lines for people."""
    stage: Callable[[str], None]
    """Receives what is waited for."""


class StartRefused(RunFailed):
    """A check before a run's begin has found something off, so nothing was started."""

    def __init__(
        self, message: str, kind: str, lines: Sequence[str], output: Mapping[str, Any]
    ) -> None:
        """`lines` are the findings for people; `output` is the object that `ditlab train --json`
        prints.
        """
        super().__init__(message, kind=kind)
        self.lines = lines
        self.output = output


class RecordedProof(NamedTuple):
    """A proof that a run keeps: what `ditlab prove` showed before it began."""

    summary: str
    """Clause for the tag `ditlab.proof`."""
    json: str
    table: str


def build_model(experiment: Experiment) -> MetaModel:
    """Build network and objective on the meta device, and the sampler. Raises UserError where they
    do not fit.
    """
    try:
        model = MetaModel.build(experiment.model, experiment.objective, experiment.training)
        assert model.counts.total
        model.check_rates(experiment.optimizer.lr_patterns)
        experiment.family.build_sampler(experiment.sampling, experiment.model, experiment.objective)
    except ValueError as error:
        raise UserError(str(error)) from error
    return model


def checkpoint_store(folder: RunFolder, storage: str | None) -> CheckpointStore:
    """Store of a run's checkpoints: in the run's folder, or by the run's id below
    `checkpoint.storage`.
    """
    if storage:
        return CheckpointStore.at(storage).child(folder.run_id)
    return CheckpointStore.at(folder.checkpoints)


def start_point(experiment: Experiment, home: Home, run_id: str) -> StartPoint | None:
    """Return the checkpoint that a run begins from while it has none of its own; None for a run
    that is no fork.
    """
    start = experiment.start
    classes = getattr(experiment.model, "num_classes", None)
    if start:
        return StartPoint(
            start, partial(recorded_checkpoints, home.run(start.run)), run_id, classes
        )
    return None


def weights_of(
    experiment: Experiment, home: Home, folder: RunFolder | None = None
) -> InitialWeights | None:
    """Return the published weights that a run begins from, as it recorded them in `folder`; None
    for fresh ones.
    """
    if not experiment.model.init:
        return None
    recorded = {}
    if folder:
        recorded = recorded_dataset(folder.journal).get("weights", {})
    return InitialWeights(experiment.model, home, recorded)


def recorded_checkpoints(folder: RunFolder) -> CheckpointStore:
    """Store of a run's checkpoints, by its spec as recorded. Raises UserError where the spec cannot
    be read.
    """
    try:
        spec = flatten(read_recorded(folder.spec))
    except FileNotFoundError:
        raise UserError(
            f"run {folder.run_id} is not there: {folder.spec} is missing; bring it back."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder.spec} cannot be read ({first_line(error)}); put the run's own file there."
        ) from None
    storage = spec.get("checkpoint.storage", "null")
    if storage == "null":
        return checkpoint_store(folder, None)
    return checkpoint_store(folder, storage)


@dataclass(frozen=True)
class RunCallbacks:
    """Functions called in the launching process, from its own thread."""

    on_progress: Callable[[TrainingProgress], None]
    """Receives progress for display, a few times a second."""
    warn: Callable[[str], None]
    """Receives warnings, one sentence each."""
    on_failure: Callable[[Mapping[str, str]], None]
    """Receives the tags of each failed attempt, before the run goes on or ends."""
    on_stage: Callable[[str], None] = ignore
    """Receives what the run waits for before its first step: `starting workers`."""


def added_hooks(launch: Launch, rank: Rank) -> list[StepHook]:
    """Return a worker's observers from add-ons and other packages
    (`ditlab.parts.Parts.observers`).
    """
    made = (make(launch, rank) for make in observer_makers(launch))
    return [hook for hook in made if hook is not None]


def observer_makers(launch: Launch) -> list[Callable[[Launch, Rank], StepHook | None]]:
    """Return the functions that make observers. Raises UserError for one that is not here or cannot
    be used.
    """
    return [load_part("observer", target.partition(":")[2], target) for target in launch.observers]

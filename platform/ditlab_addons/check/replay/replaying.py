"""Replay of a run: it is opened, what of code, data and device is other here is said, and steps are
done again.

The plan of a replay is a pure decision: from which checkpoint, through which segments of equal
settings. Each segment is trained by one group of workers, in the real training loop, one after the
other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checkpoints.manifest import CheckpointManifest, DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import DataSplits, open_data
from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed, UserError
from ditlab.runs.cores import thread_text
from ditlab.runs.launch import checkpoint_store, start_point, weights_of
from ditlab.spec.plugins import plugin_packages
from ditlab.training.receipts import (
    LIBRARIES,
    code_digest,
    device_name,
    library_versions,
    processor_name,
)
from ditlab.training.recovery import MemoryPlan, OutOfMemory
from ditlab_addons.check.process_group import (
    observed_trainer,
    open_in_worker,
    run_workers,
    unattended_run,
)
from ditlab_addons.check.replay.history import Execution, StepHistory, read_history
from ditlab_addons.check.replay.stepper import ReplayedStep, StepObserver, joined_step

ResolvedSpec = Mapping[str, Any]
"""An experiment in JSON's types, resolved."""


@dataclass(frozen=True)
class Segment:
    """Consecutive steps that were done by equally many workers under one spec."""

    first: int
    """First step (from 1)."""
    last: int
    workers: int
    threads: int | None
    """Threads of each worker; None: torch's number."""
    spec: ResolvedSpec = field(repr=False)
    microbatch_splits: int = 0
    """Number of times the micro-batch was halved."""
    skipped: tuple[int, ...] = ()
    """Steps (from 1) whose batch is not trained on."""

    @property
    def steps(self) -> range:
        """The steps."""
        return range(self.first, self.last + 1)

    def describe(self) -> str:
        """Describe the replay for people who wait."""
        first = f"{self.first:,} to " if self.first < self.last else ""
        threads = f" with {thread_text(self.threads)}" if self.threads else ""
        return f"replaying step {first}{self.last:,}; workers: {self.workers}{threads}"


def replay_segment(
    rank: Rank,
    segment: Segment,
    run_id: str,
    root: str,
    folder: str,
    begin: tuple[str, int] | None,
    shown: Collection[int],
    hands_over: bool,
) -> dict[int, ReplayedStep]:
    """Do the steps of a segment on one worker, the body of its process; return what it observed by
    step.

    Nothing is evaluated, each step is logged, and training goes on whatever the losses, as the run
    has. `begin`: store and step of the checkpoint to begin from; None: what the run itself began
    from. `folder`: of this replay alone; the state after the last step is saved there where the
    segment `hands_over`.
    """
    experiment, home = open_in_worker(segment.spec, root)
    changes = {"training.averages": None, "checkpoint.keep_every": None}
    run = replace(
        unattended_run(experiment, home, Path(folder), changes),
        memory=MemoryPlan(segment.microbatch_splits, tuple(step - 1 for step in segment.skipped)),
        start=start_point(experiment, home, run_id),
        weights=None if begin else weights_of(experiment, home, home.run(run_id)),
    )
    observer = StepObserver(shown, segment.steps)
    with observed_trainer(run, rank, observer) as trainer:
        if begin:
            location, step = begin
            with CheckpointStore.at(location).open(step, verify=False) as reader:
                trainer.checkpoints.load(reader, trainer.state)
        else:
            trainer.checkpoints.load_newest(trainer.state)
        trainer.train_span(segment.last, saves=hands_over)
    return observer.seen


@dataclass(frozen=True)
class ReplayPlan:
    """Way through a run's steps to those that are asked for."""

    origin: int
    """Step of the state to begin from."""
    is_checkpoint: bool
    """True for one of the run's own checkpoints; False for what the run itself began from."""
    segments: tuple[Segment, ...]
    way: tuple[Execution, ...]
    """Executions that are done again, from the origin on."""

    @property
    def last(self) -> int:
        """Last step."""
        return self.segments[-1].last

    @property
    def num_steps(self) -> int:
        """Number of steps to train."""
        return self.last - self.origin

    def describe(self) -> str:
        """Return from where it begins, and how many steps it trains."""
        kind = "checkpoint" if self.is_checkpoint else "step"
        num = f"{self.num_steps:,} step{'s' * (self.num_steps > 1)}"
        return f"from {kind} {self.origin:,}: {num} to train"


def plan_replay(
    history: StepHistory,
    first: int,
    last: int,
    checkpoints: Collection[int],
    spec_of: Callable[[Execution], ResolvedSpec],
) -> ReplayPlan:
    """Plan the replay of steps `first` to `last`, as they led to the last execution of step `last`.

    `checkpoints` are the steps of the run's whole ones, `spec_of` returns the resolved spec by
    which a step was done.
    """
    way = history.lineage(last)
    begun = history.first
    # The run's own checkpoint of a step is that of its last execution.
    usable = [
        step
        for step in checkpoints
        if begun < step < first and way[step - begun - 1] == history.final(step)
    ]
    origin = max(usable, default=begun)
    done = tuple(way[origin - begun :])
    return ReplayPlan(origin, origin > begun, tuple(_segments(done, spec_of)), done)


def _segments(
    way: Sequence[Execution], spec_of: Callable[[Execution], ResolvedSpec]
) -> Iterator[Segment]:
    """Yield the segments of a way: its consecutive executions with the same settings."""

    def settings(execution: Execution) -> tuple[int, int | None, ResolvedSpec, int]:
        """Return workers, threads, spec and splits: an elastic range of the spec decides the
        micro-batches, stays.
        """
        spec = spec_of(execution)
        if isinstance(spec["resources"]["workers"], int):
            spec = {**spec, "resources": {**spec["resources"], "workers": execution.workers}}
        return execution.workers, execution.threads, spec, execution.microbatch_splits

    for values, part in groupby(way, settings):
        steps = list(part)
        skipped = tuple(each.step for each in steps if each.skipped)
        yield Segment(steps[0].step, steps[-1].step, *values, skipped)


@dataclass(frozen=True)
class ReplaySource:
    """A run, opened for replay."""

    run: OpenedRun
    history: StepHistory
    checkpoints: CheckpointStore
    manifests: dict[int, CheckpointManifest]
    """Undamaged manifests of checkpoints, by step."""
    damaged: set[int]
    """Steps of those whose shards were found damaged."""
    data: DataSplits
    num_gpus: int
    """GPUs that the steps are done on; 0: on the CPU."""
    code: str
    """Hash of the code here."""
    remarks: list[str]
    """Sentences on what is other here than the run's, with `anyway`, and on what the run does not
    record.
    """
    _specs: dict[int, ResolvedSpec] = field(default_factory=dict)
    """Specs by attempt, as they were asked for."""

    @property
    def name(self) -> str:
        """The run, for messages."""
        return f"run {self.run.folder.run_id}"

    @property
    def whole(self) -> list[int]:
        """Steps of checkpoints from which a replay can begin."""
        return sorted(self.manifests.keys() - self.damaged)

    @property
    def draws_others(self) -> bool:
        """True if this machine draws other numbers than the run's: a CPU in the place of a GPU."""
        return not self.num_gpus and self.run.experiment.resources.gpus_per_worker > 0

    def spec_of(self, execution: Execution) -> ResolvedSpec:
        """Return the spec by which a step was done, for the device of this replay and the places
        that hold now.

        It is that of a checkpoint which the attempt has written, else of the next attempt with the
        same hash that has one, else the one kept for that hash. Raises UserError where that is
        gone.
        """
        if execution.attempt not in self._specs:
            current = self.run.experiment.to_dict()
            if execution.attempt:
                spec = self._recorded_spec(execution.attempt)
            else:
                spec = current
            spec = {
                **spec,
                **{key: current[key] for key in ("data", "encoders", "start") if key in current},
            }
            if not self.num_gpus:
                spec["resources"] = {**spec["resources"], "gpus_per_worker": 0}
            self._specs[execution.attempt] = spec
        return self._specs[execution.attempt]

    def _recorded_spec(self, attempt: int) -> ResolvedSpec:
        spec_hash = self.history.attempts[attempt].spec_hash
        later = []
        for step, manifest in self.manifests.items():
            writer = self.history.final(step).attempt
            if step > self.history.first and manifest.spec_hash == spec_hash and writer >= attempt:
                later.append((writer, -step))
        if later:
            _, step = min(later)
            return self.manifests[-step].spec
        kept = self.run.kept_spec(spec_hash)
        if kept is None:
            path = self.run.folder.spec_of(spec_hash)
            raise UserError(
                f"{path}, the spec that a resume has changed since, is gone or altered; bring "
                "it back."
            )
        return kept.to_dict()

    def machine_differences(self, executions: Sequence[Execution]) -> list[str]:
        """Return in what this machine is of another kind than those that did some steps, a phrase
        each.

        The last bits of a step depend on device, processor, code and libraries, beside its spec,
        workers and threads.
        """
        here = device_name(torch.device("cuda" if self.num_gpus else "cpu"))
        ours = {
            "code": self.code[:12],
            "device": here,
            "processor": processor_name(),
            **library_versions(),
        }
        found = []
        for number in sorted({execution.attempt for execution in executions}):
            attempt = self.history.attempts.get(number)
            if attempt is None:
                found.append("the run's machine is not recorded")
                continue
            theirs = {
                "code": attempt.code[:12],
                "device": attempt.device,
                "processor": attempt.processor,
                **attempt.versions,
            }
            if (here, attempt.device) != ("cpu", "cpu"):
                theirs["processor"] = ours["processor"]  # it decides no bits of a GPU's
            found += [
                f"{name} {ours.get(name)} (the run's: {theirs.get(name)})"
                for name in ("code", "device", "processor", *LIBRARIES)
                if ours.get(name) != theirs.get(name)
            ]
        return list(dict.fromkeys(found))

    def plan(self, first: int, last: int) -> ReplayPlan:
        """Plan the replay of some steps, from a checkpoint whose shards have their hashes. Raises
        UserError where the run has not done them, the state that it began from is gone, or this
        machine has too few GPUs."""
        history = self.history
        if first > last:
            raise UserError(f"--step {first} is behind --to {last}; give --to a later step.")
        has = f"it has steps {history.first + 1:,} to {history.last:,}"
        if history.last == history.first:
            has = "it has done none yet; wait for its first one"
        for option, step in (("--step", first), ("--to", last)):
            if not history.first < step <= history.last:
                raise UserError(
                    f"{option} {step}: {self.name} ({self.run.record.name}) has no such step; "
                    f"{has}."
                )
        while True:
            plan = plan_replay(history, first, last, self.whole, self.spec_of)
            if not plan.is_checkpoint:
                _open_first_state(self.run)
                break
            try:
                self.checkpoints.open(plan.origin).close()
                break
            except DamagedCheckpoint as error:
                self.remarks.append(f"{error} The replay begins before it.")
                self.damaged.add(plan.origin)
        workers = max(segment.workers for segment in plan.segments)
        if self.num_gpus and workers > self.num_gpus:
            raise UserError(
                f"step {last:,} of {self.name} takes {workers} workers with a GPU each, and "
                f"this machine has {self.num_gpus}; replay it on a machine with {workers} GPUs."
            )
        return plan


def open_source(run: OpenedRun, anyway: bool = False) -> ReplaySource:
    """Open a run for replay, reading alone.

    Raises UserError where the data are not here, and, without `anyway`, where code, data or device
    are other than the run's.
    """
    experiment = run.experiment
    data = open_data(experiment.data, run.home)
    history = read_history(run)
    num_gpus = 0
    if experiment.resources.gpus_per_worker > 0:
        num_gpus = torch.cuda.device_count()
    code = code_digest(tuple(plugin_packages(experiment.to_dict())))
    store = checkpoint_store(run.folder, experiment.checkpoint.storage)
    remarks = [history.note] if history.note else []
    source = ReplaySource(run, history, store, {}, set(), data, num_gpus, code, remarks)
    differences = [*_differences(source)]
    if differences and not anyway:
        raise UserError(
            f"{source.name}: {'; '.join(differences)}. Bring back what the run had, or replay "
            "with --anyway."
        )
    remarks += [f"{clause[0].upper()}{clause[1:]}." for clause in differences]
    for step in store.steps():
        with suppress(DamagedCheckpoint), store.open(step, verify=False) as reader:
            source.manifests[step] = reader.manifest
    return source


def _differences(source: ReplaySource) -> Iterator[str]:
    """Yield a clause on each of data, code and device that is other than the run's."""
    recorded = source.history.data
    here = source.data.fingerprint
    attempts = source.history.attempts.values()
    if recorded and recorded != here:
        yield (
            f"the data are other than the run's (fingerprint {here[:12]}, the run's: "
            f"{recorded[:12]}): the same rows hold other samples"
        )
    codes = [attempt.code for attempt in attempts]
    if codes and source.code not in codes:
        yield (
            f"the code is other than the run's (hash {source.code:.12}, the run's: "
            f"{codes[-1]:.12}): what differs may be due to the code"
        )
    if source.draws_others:
        names = ", ".join(sorted({attempt.device for attempt in attempts})) or "one"
        yield (
            f"this machine has no GPU, and the run was trained on {names}: a CPU draws other "
            "times and noise"
        )


def _open_first_state(run: OpenedRun) -> None:
    """Open what the run itself began from: a checkpoint of its parent, or published weights. Raises
    UserError where that is gone."""
    point = start_point(run.experiment, run.home, run.folder.run_id)
    weights = weights_of(run.experiment, run.home, run.folder)
    if point:
        point.open(verify=False).close()
    elif weights:
        weights.open()


@dataclass(frozen=True)
class ReplayedSteps:
    """Steps of a run that were done again."""

    steps: tuple[ReplayedStep, ...]
    """Replayed steps, ascending."""
    way: tuple[Execution, ...]
    """Executions that were done again to come to these steps, themselves among them."""
    origin: str
    """From where the replay began, and how many steps it trained."""


def replay_steps(
    source: ReplaySource,
    first: int,
    last: int,
    shown: Collection[int] = (),
    change: Callable[[ReplayPlan], ReplayPlan] = lambda plan: plan,
) -> ReplayedSteps:
    """Do steps `first` to `last` of a run again, by its training loop, without writing anything
    into the run.

    Each step is done with its own workers, microbatch splits and skipped steps as its receipts have
    them, from the newest whole checkpoint before it, or from what the run itself began from.
    `shown`: steps of which each sample's loss and each parameter's norms are measured. `change`
    alters the plan. Nothing is written but a temporary folder.

    Raises:
        UserError: a state is gone, or this machine has too few GPUs.
        RunFailed: a step does not fit into this machine's memory.
    """
    run = source.run
    plan = change(source.plan(first, last))
    origin = plan.describe()
    run.progress(origin, 0, None, "")
    found: list[ReplayedStep] = []
    with tempfile.TemporaryDirectory(prefix="ditlab-replay-") as folder:
        begin = None
        if plan.is_checkpoint:
            begin = (source.checkpoints.location, plan.origin)
        for segment in plan.segments:
            replayed = partial(
                run.progress, segment.describe(), total=len(segment.steps), unit="steps"
            )
            replayed(0)
            task = (
                segment,
                run.folder.run_id,
                str(run.home.root),
                folder,
                begin,
                shown,
                segment.last < plan.last,
            )
            try:
                parts = run_workers(
                    replay_segment,
                    task,
                    segment.workers,
                    source.num_gpus > 0,
                    segment.threads,
                    on_done=replayed,
                )
            except OutOfMemory as error:
                raise RunFailed(
                    f"step {error.step + 1} does not fit into this machine's memory with "
                    f"{segment.workers} workers ({error.message}); replay it on a larger one.",
                    kind="out_of_memory",
                ) from error
            found += [
                joined_step([part[number] for part in parts], plan.way[number - plan.origin - 1])
                for number in segment.steps
                if number >= first
            ]
            begin = str(Path(folder, "checkpoints")), segment.last
    return ReplayedSteps(tuple(found), plan.way, origin)

"""Replay of a run: it is opened, what of code, data and device is other here is said, and steps are done again.

The plan of a replay is a pure decision: from which checkpoint, through which segments of equal settings. Each segment
is trained by one group of workers, in the real training loop, one after the other.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checkpoints.manifest import CheckpointManifest, DamagedCheckpoint, folder_of
from ditlab.checkpoints.start_point import kept_scalars
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import DataSplits, open_data
from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed, UserError
from ditlab.progress import ignore
from ditlab.receipts.records import joined_digest
from ditlab.reports.formatting import format_duration
from ditlab.runs.cores import thread_text
from ditlab.runs.description import run_time
from ditlab.runs.launch import checkpoint_store, start_point, weights_of
from ditlab.spec.plugins import plugin_packages
from ditlab.tracking.journal import read_content
from ditlab.training.plan import TrainingRun, plan_run
from ditlab.training.receipts import LIBRARIES, code_digest, device_name, library_versions, processor_name
from ditlab.training.recovery import MemoryPlan, OutOfMemory
from ditlab.training.trainer import Trainer
from ditlab_addons.check.process_group import open_in_worker, run_workers
from ditlab_addons.check.replay.history import (
    Execution,
    StepHistory,
    read_history,
)
from ditlab_addons.check.replay.stepper import ReplayedStep, StepObserver

OTHER_CODE = "the code is other than the run's (hash {:.12}, the run's: {:.12}): what differs may be the code's doing"


@dataclass(frozen=True)
class Segment:
    """Consecutive steps that were done by equally many workers under one spec."""

    first: int
    """First step (from 1)."""
    last: int
    workers: int
    threads: int | None
    """Threads of each worker; None: torch's number."""
    spec: Mapping[str, Any] = field(repr=False)
    """The experiment, resolved."""
    microbatch_splits: int = 0
    """Number of times the micro-batch was halved."""
    skipped: tuple[int, ...] = ()
    """Steps (from 1) whose batch is not trained on."""
    is_changed: bool = False
    """True for a spec that is not the run's own, as in a what-if."""


def replay_segment(
    rank: Rank, segment: Segment, run_id: str, root: str, folder: str, begin: tuple[str, int] | None,
    shown: Collection[int], hands_over: bool,
) -> dict[int, ReplayedStep]:  # fmt: skip
    """Do the steps of a segment on one worker, the body of its process; return what it observed by step.

    Nothing is evaluated, each step is logged, and training goes on whatever the losses, as the run has. `begin`: store
    and step of the checkpoint to begin from; None: what the run itself began from. `folder`: of this replay alone; the
    state after the last step is saved there where the segment `hands_over`.
    """
    experiment, home, data = open_in_worker(segment.spec, root)
    experiment = experiment.replace_all({
        "evaluation.every": None, "evaluation.samples": 0, "evaluation.quality": 0, "tracking.every": 1,
        "training.averages": None, "training.non_finite": {"policy": "skip", "limit": 2**31 - 1},
        "checkpoint.storage": None, "checkpoint.keep": 1, "checkpoint.keep_every": None,
    })  # fmt: skip
    memory = MemoryPlan(segment.microbatch_splits, tuple(step - 1 for step in segment.skipped))
    run = TrainingRun(
        experiment, data, plan_run(experiment, data), CheckpointStore.at(Path(folder, "checkpoints")), home,
        Path(folder, "swap"), memory, start_point(experiment, home, run_id),
        None if begin else weights_of(experiment, home, home.run(run_id)),
    )  # fmt: skip
    observer = StepObserver(shown, range(segment.first, segment.last + 1))
    with Trainer(run, rank, observer) as trainer:
        if begin:
            with CheckpointStore.at(begin[0]).open(begin[1], verify=False) as reader:
                scalars = kept_scalars(reader.manifest, experiment) if segment.is_changed else None
                trainer.checkpoints.load(reader, trainer.state, scalars)
        else:
            trainer.checkpoints.load_newest(trainer.state)
        trainer.train_span(segment.last, saves=hands_over)
    return observer.seen


@dataclass(frozen=True)
class ReplayPlan:
    """One way through a run's steps, and those of them that are asked for."""

    origin: int
    """Step of the state to begin from."""
    is_checkpoint: bool
    """True for one of the run's own checkpoints; False for what the run itself began from."""
    segments: tuple[Segment, ...]
    way: tuple[Execution, ...]
    """Executions that are done again, from the origin on."""
    executions: tuple[Execution, ...]
    """Executions of the way that are replayed for their own sake, in the order of their steps."""
    variant: Segment | None = None
    """The last step once more under another spec, from the same state."""

    def with_variant(self, spec: Mapping[str, Any], workers: int) -> ReplayPlan:
        """Return the plan with its last step done once more under another spec, from the same state."""
        *before, final = self.segments
        last = final.last
        if final.first < last:
            before.append(replace(final, last=last - 1, skipped=tuple(step for step in final.skipped if step < last)))
        own = replace(final, first=last, skipped=tuple(step for step in final.skipped if step == last))
        variant = replace(own, spec=spec, workers=workers, skipped=(), is_changed=True)
        return replace(self, segments=(*before, own), variant=variant)


def plan_replay(
    history: StepHistory, targets: Sequence[Execution], checkpoints: Collection[int],
    spec_of: Callable[[Execution], Mapping[str, Any]],
) -> list[ReplayPlan]:  # fmt: skip
    """Plan the replay of some executions, those that lie on one way together.

    `checkpoints` are the steps of the run's whole ones, `spec_of` returns the resolved spec by which a step was done.
    Each way that a kill or a roll-back cut off takes a pass of its own, and so does a target that a later checkpoint
    brings nearer.
    """

    def settings(execution: Execution) -> tuple[int, int | None, int, Mapping[str, Any]]:
        """Return workers, threads, splits, and the spec for them: an elastic range decides the micro-batches, stays."""
        spec, workers = spec_of(execution), execution.workers
        resources = spec["resources"]
        if isinstance(resources["workers"], int):
            spec = {**spec, "resources": {**resources, "workers": workers}}
        return workers, execution.threads, execution.microbatch_splits, spec

    plans, left = [], sorted(targets, key=lambda each: each.step)
    while left:
        way = history.lineage(left[-1])
        known = {id(each) for each in way}
        steps = {each.step for each in way if not each.is_recorded}
        taken = [each for each in left if id(each) in known or (not each.is_recorded and each.step in steps)]
        left = [each for each in left if not any(each is other for other in taken)]
        usable = [
            step for step in checkpoints if history.first < step < way[-1].step and history.is_final_at(way, step)
        ]
        groups: list[list[Execution]] = []
        for target in taken:
            if groups and not any(groups[-1][-1].step < step < target.step for step in usable):
                groups[-1].append(target)
            else:
                groups.append([target])
        for executions in groups:
            begin = max((step for step in usable if step < executions[0].step), default=history.first)
            done = tuple(way[begin - history.first : executions[-1].step - history.first])
            segments = []
            for (workers, threads, splits, spec), part in groupby(done, settings):
                steps_of = list(part)
                skipped = tuple(each.step for each in steps_of if each.skipped)
                ends = steps_of[0].step, steps_of[-1].step
                segments.append(Segment(*ends, workers, threads, spec, splits, skipped))
            plans.append(ReplayPlan(begin, begin > history.first, tuple(segments), done, tuple(executions)))
    return plans


def run_plan(source: ReplaySource, plan: ReplayPlan, shown: Collection[int] = ()) -> list[ReplayedStep]:
    """Do the segments of a plan, each with its own workers; return the steps that the plan is for.

    `shown`: steps to measure sample by sample. Nothing is written but a temporary folder, which is removed. Raises
    RunFailed where a step does not fit into this machine's memory.
    """
    wanted, run = {execution.step: execution for execution in plan.executions}, source.run
    found: list[ReplayedStep] = []
    with tempfile.TemporaryDirectory(prefix="ditlab-replay-") as folder:
        begin = (source.checkpoints.location, plan.origin) if plan.is_checkpoint else None
        for segment in (*plan.segments, *([plan.variant] if plan.variant else [])):
            is_last = segment is plan.segments[-1] or segment.is_changed
            steps = f"{segment.first:,} to {segment.last:,}" if segment.first < segment.last else f"{segment.last:,}"
            other = " under another spec" if segment.is_changed else ""
            threads = f" with {thread_text(segment.threads)}" if segment.threads else ""
            what = f"replaying step {steps}{other}; workers: {segment.workers}{threads}"
            replayed = partial(run.progress, what, total=segment.last - segment.first + 1, unit="steps")
            replayed(0)
            task = segment, run.folder.run_id, str(run.home.root), folder, begin, frozenset(shown), not is_last
            try:
                parts = run_workers(
                    replay_segment, task, segment.workers, source.num_gpus > 0, segment.threads, on_done=replayed
                )
            except OutOfMemory as error:
                raise RunFailed(
                    f"step {error.step + 1} does not fit into this machine's memory with {segment.workers} workers "
                    f"({error.message}); replay it on a larger one.",
                    kind="out_of_memory",
                ) from error
            for number in wanted.keys() & range(segment.first, segment.last + 1):
                own = [part[number] for part in parts]  # places follow each other in the order of ranks
                samples = [sample for part in own for sample in part.samples]
                step = replace(
                    own[0], execution=wanted[number], is_variant=segment.is_changed,
                    rows=np.concatenate([part.rows for part in own]),
                    indices=np.concatenate([part.indices for part in own]),
                    samples=sorted(samples, key=lambda sample: sample.place),
                    digest=joined_digest([part.digest for part in own]),
                )  # fmt: skip
                found.append(step)
            if not is_last:
                begin = str(Path(folder, "checkpoints")), segment.last
    return found


@dataclass(frozen=True)
class ReplaySource:
    """A run, opened for replay."""

    run: OpenedRun
    history: StepHistory
    checkpoints: CheckpointStore
    manifests: Mapping[int, CheckpointManifest]
    """Undamaged manifests of checkpoints, by step."""
    whole: list[int]
    """Steps of those checkpoints, without the ones whose shards were found damaged."""
    data: DataSplits
    num_gpus: int
    """GPUs that the steps are done on; 0: on the CPU."""
    code: str
    """Hash of the code here."""
    anyway: bool = False
    """Go on with other code than that which did a step."""
    on_cost: Callable[[str, bool], None] = ignore
    """Receives what a replay will take, in a sentence, and whether that is more than the training took; may raise."""
    remarks: list[str] = field(default_factory=list)
    """Sentences on what is other here than the run's, with `anyway`, and on what the run does not record."""

    def spec_of(self, execution: Execution) -> Mapping[str, Any]:
        """Return the spec by which a step was done, for the device of this replay and the places that hold now.

        It is that of a checkpoint which the attempt has written, else of the next attempt with the same hash that has
        one, else the one kept for that hash. Raises UserError where that is gone.
        """
        spec = current = self._current_spec
        if execution.is_recorded:
            spec_hash = self.history.attempts[execution.attempt].spec_hash
            own = {
                step: self.history.final(step).attempt
                for step, manifest in self.manifests.items()
                if step > self.history.first and manifest.spec_hash == spec_hash
            }
            later = [
                step for step in sorted(own, key=lambda step: (own[step], -step)) if own[step] >= execution.attempt
            ]
            spec = self.manifests[later[0]].spec if later else self._kept_spec(spec_hash)
        spec = {**spec, **{key: current[key] for key in ("data", "encoders", "start") if key in current}}
        return spec if self.num_gpus else {**spec, "resources": {**spec["resources"], "gpus_per_worker": 0}}

    def _kept_spec(self, spec_hash: str) -> Mapping[str, Any]:
        if spec_hash not in self._kept:
            found = self.run.kept_spec(spec_hash)
            if found is None:
                path = self.run.folder.spec_of(spec_hash)
                raise UserError(f"{path}, the spec that a resume has changed since, is gone or altered; bring it back.")
            self._kept[spec_hash] = found.to_dict()
        return self._kept[spec_hash]

    @cached_property
    def _kept(self) -> dict[str, Mapping[str, Any]]:
        return {}

    @cached_property
    def _current_spec(self) -> Mapping[str, Any]:
        return self.run.experiment.to_dict()

    def tell_cost(self, plans: Sequence[ReplayPlan], limit: float = math.inf) -> None:
        """Tell `on_cost` how many steps some plans train and how long that takes, `limit` seconds at most.

        From the mean time of the run's own steps, and the processor time of this process so far for each start of
        workers: they load and open what it has. Of a run without times only the number of steps is known.
        """
        steps = sum(plan.segments[-1].last - plan.origin + (plan.variant is not None) for plan in plans)
        starts = sum(len(plan.segments) + (plan.variant is not None) for plan in plans)
        text = f"{steps:,} step{'s' * (steps > 1)} to train again, {starts} start{'s' * (starts > 1)} of workers"
        with suppress(OSError):
            if took := run_time(read_content(self.run.folder.journal)):
                own = took.total - took.seconds.get("evaluation", 0.0) - took.seconds.get("checkpoint", 0.0)
                seconds = min(limit, steps * own / took.num_steps + starts * time.process_time())
                training = took.total / took.num_steps * (self.history.last - self.history.first)
                text += f": about {format_duration(seconds)} at the speed of the run's own steps"
                text += f"; its training took {format_duration(training)}"
                self.on_cost(f"{text}.", seconds > training)
                return
        self.on_cost(f"{text}; the run has no times to tell from how long that takes.", False)

    def machine_differences(self, executions: Sequence[Execution]) -> list[str]:
        """Return in what this machine is of another kind than those that did some steps, a phrase each.

        The last bits of a step depend on device, processor and libraries, beside its spec, workers and threads.
        """
        device, versions = device_name(torch.device("cuda" if self.num_gpus else "cpu")), library_versions()
        found = []
        for number in sorted({execution.attempt for execution in executions}):
            if not (attempt := self.history.attempts.get(number)):
                found.append("the run's machine is not recorded")
                continue
            pairs: dict[str, tuple[str | None, str | None]] = {"device": (device, attempt.device)}
            if device == attempt.device == "cpu":
                pairs["processor"] = processor_name(), attempt.processor
            pairs |= {name: (versions.get(name), attempt.versions.get(name)) for name in LIBRARIES}
            found += [
                f"{name} {ours} (the run's: {theirs})" for name, (ours, theirs) in pairs.items() if ours != theirs
            ]
        return list(dict.fromkeys(found))

    def targets(self, first: int, last: int) -> list[Execution]:
        """Return the last execution of each step of a range. Raises UserError for steps that the run has not done."""
        history, about = self.history, f"run {self.run.folder.run_id} ({self.run.record.name})"
        if first > last:
            raise UserError(f"--step {first} is behind --to {last}; give --to a later step.")
        for option, step in (("--step", first), ("--to", last)):
            if not history.first < step <= history.last:
                has = f"it has steps {history.first + 1:,} to {history.last:,}"
                if history.last == history.first:
                    has = "it has done none yet; wait for its first one"
                raise UserError(f"{option} {step}: {about} has no such step; {has}.")
        return [history.final(step) for step in range(first, last + 1)]


def open_source(run: OpenedRun, anyway: bool = False, on_cost: Callable[[str, bool], None] = ignore) -> ReplaySource:
    """Open a run for replay, reading alone.

    Raises UserError where the data are not here, and, without `anyway`, where code, data or device are other than the
    run's.
    """
    experiment, home = run.experiment, run.home
    data = open_data(experiment.data, home)
    history = read_history(run)
    remarks = [history.note] if history.note else []
    num_gpus = torch.cuda.device_count() if experiment.resources.gpus_per_worker > 0 else 0
    attempts = history.attempts.values()
    differences = []
    if history.data and history.data != data.fingerprint:
        differences.append(
            f"the data are other than the run's (fingerprint {data.fingerprint[:12]}, the run's: "
            f"{history.data[:12]}): the same rows hold other samples"
        )
    code = code_digest(tuple(plugin_packages(experiment.to_dict())))
    codes = [attempt.code for attempt in attempts]
    if codes and code not in codes:
        differences.append(OTHER_CODE.format(code, codes[-1]))
    if experiment.resources.gpus_per_worker > 0 and not num_gpus:
        names = ", ".join(sorted({attempt.device for attempt in attempts})) or "one"
        differences.append(
            f"this machine has no GPU, and the run was trained on {names}: a CPU draws other times and noise, so that "
            "losses agree as those of other draws do"
        )
    if differences and not anyway:
        raise UserError(
            f"run {run.folder.run_id}: {'; '.join(differences)}. Bring back what the run had, or replay with --anyway."
        )
    remarks += [f"{difference[0].upper()}{difference[1:]}." for difference in differences]
    store = checkpoint_store(run.folder, experiment.checkpoint.storage)
    manifests, whole = dict[int, CheckpointManifest](), list[int]()
    for step in store.steps():
        with suppress(DamagedCheckpoint), store.open(step, verify=False) as reader:
            manifests[step], sizes = reader.manifest, store.files.sizes(folder_of(step))
            if all(sizes.get(name) == shard.size for name, shard in reader.manifest.shards.items()):
                whole.append(step)
            else:
                remarks.append(f"The checkpoint of step {step:,} is not whole; no replay begins from it.")
    return ReplaySource(run, history, store, manifests, whole, data, num_gpus, code, anyway, on_cost, remarks)


@dataclass(frozen=True)
class ReplayedSteps:
    """Steps of a run that were done again."""

    steps: tuple[ReplayedStep, ...]
    """Replayed steps, ascending; two of one step where a kill or a roll-back cut one execution of it off."""
    way: tuple[Execution, ...]
    """Executions that were done again to come to these steps, themselves among them."""
    origins: tuple[str, ...]
    """From where each pass began, and how many steps it trained."""


def replay_executions(
    source: ReplaySource, targets: Sequence[Execution], shown: Collection[int] = (),
    change: Callable[[ReplayPlan], ReplayPlan] = lambda plan: plan,
) -> ReplayedSteps:  # fmt: skip
    """Do some executions of a run's steps again, by its training loop, without writing anything into the run.

    Each step is done with its own workers, microbatch splits and skipped steps as its receipts have them, from the
    newest whole checkpoint before it, or from what the run itself began from. `shown`: steps of which each sample's
    loss and each parameter's norms are measured. `change` alters each plan.

    Raises:
        UserError: a state is gone, or the steps were done by other code than here, or by more GPUs.
        RunFailed: a step does not fit into this machine's memory.
    """
    run = source.run
    while True:
        plans = [change(plan) for plan in plan_replay(source.history, targets, source.whole, source.spec_of)]
        found, origins, checked = [], [], 0
        try:
            for checked in sorted({plan.origin for plan in plans if plan.is_checkpoint}):
                source.checkpoints.open(checked).close()  # hashes it
        except DamagedCheckpoint as error:
            source.remarks.append(f"{error} The replay begins before it.")
            source.whole.remove(checked)
            continue
        _check_plans(source, plans)
        source.tell_cost(plans)
        source = replace(source, on_cost=ignore)  # once
        try:
            for plan in plans:
                origins.append(_describe_origin(source, plan))
                run.progress(origins[-1], 0, None, "")
                found += run_plan(source, plan, shown)
        except DamagedCheckpoint:
            there = source.checkpoints.steps()
            if all(plan.origin in there for plan in plans if plan.is_checkpoint):
                raise  # else a run in training has pruned it meanwhile
            continue
        way = tuple(execution for plan in plans for execution in plan.way)
        return ReplayedSteps(tuple(sorted(found, key=lambda step: step.step)), way, tuple(origins))


def _check_plans(source: ReplaySource, plans: Sequence[ReplayPlan]) -> None:
    """Raise UserError for a fork's parent that is gone, for too few GPUs, and for other code unless `anyway`."""
    run = source.run
    name = f"run {run.folder.run_id}"
    for plan in plans:
        if plan.is_checkpoint:
            continue
        origin, problem, remedy = "its parent's checkpoint", "that is gone", "bring it back"
        try:
            if point := start_point(run.experiment, run.home, run.folder.run_id):
                point.open(verify=False).close()
            elif weights := weights_of(run.experiment, run.home, run.folder):
                origin, problem, remedy = "the published weights it began with", "these are not here", "bring them back"
                weights.open()
        except UserError as error:
            usable = next((step for step in source.whole if step < source.history.last), None)
            reason = str(error) if run.experiment.start else str(error).partition(";")[0]
            if usable is not None:
                remedy += f", or replay step {usable + 1} or a later one, from checkpoint {usable} of its own (1 step)"
            raise UserError(
                f"step {plan.executions[0].step:,} of {name} is replayed from {origin}, and {problem}: "
                f"{reason.rstrip('.')}; {remedy}."
            ) from None
    workers = max(segment.workers for plan in plans for segment in plan.segments)
    if source.num_gpus and workers > source.num_gpus:
        raise UserError(
            f"step {plans[-1].executions[-1].step:,} of {name} takes {workers} workers with a GPU each, and this "
            f"machine has {source.num_gpus}; replay it on a machine with {workers} GPUs."
        )
    for number in sorted({execution.attempt for plan in plans for execution in plan.way}):
        attempt = source.history.attempts.get(number)
        if attempt and attempt.code != source.code and not any("code is other" in text for text in source.remarks):
            text = f"attempt {number}: {OTHER_CODE.format(source.code, attempt.code)}"
            if not source.anyway:
                raise UserError(f"{name}, {text}. Bring back what the run had, or replay with --anyway.")
            source.remarks.append(f"{text[0].upper()}{text[1:]}.")


def _describe_origin(source: ReplaySource, plan: ReplayPlan) -> str:
    """Return from where a pass begins, and how many steps it trains."""
    num_steps = plan.segments[-1].last - plan.origin
    num = f"{num_steps:,} step{'s' if num_steps > 1 else ''} to train"
    if plan.is_checkpoint:
        return f"from checkpoint {plan.origin:,}: {num}"
    start, wanted = source.run.experiment.start, plan.executions[0].step
    where = f"from checkpoint {start.step:,} of run {start.run}" if start else "from step 0"
    if wanted > plan.origin + 1:
        where += f", as no checkpoint before step {wanted:,} is left"
        where += f" (the earliest is of step {min(source.whole):,})" if source.whole else ""
    return f"{where}: {num}"

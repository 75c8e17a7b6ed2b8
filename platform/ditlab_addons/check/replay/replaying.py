"""Replay of a run: it is opened, what of code, data and device is other here is said, and steps are done again.

The plan of a replay is a pure decision: from which checkpoint, through which segments of equal settings. Each segment
is trained by one group of workers, in the real training loop, one after the other.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, groupby
from operator import not_
from pathlib import Path
from typing import Any

import torch

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checkpoints.manifest import CheckpointManifest, DamagedCheckpoint, folder_of
from ditlab.checkpoints.start_point import kept_scalars
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import DataSplits, open_data
from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed, UserError
from ditlab.progress import ignore
from ditlab.reports.formatting import format_duration
from ditlab.runs.cores import thread_text
from ditlab.runs.description import run_time
from ditlab.runs.launch import checkpoint_store, start_point, weights_of
from ditlab.spec.plugins import plugin_packages
from ditlab.tracking.journal import read_content
from ditlab.training.receipts import LIBRARIES, code_digest, device_name, library_versions, processor_name
from ditlab.training.recovery import MemoryPlan, OutOfMemory
from ditlab.training.trainer import Trainer
from ditlab_addons.check.process_group import open_in_worker, run_workers, unattended_run
from ditlab_addons.check.replay.history import Execution, StepHistory, read_history
from ditlab_addons.check.replay.stepper import ReplayedStep, StepObserver, joined_step

OnCost = Callable[[str, bool], None]
"""Receiver of what a replay will take, in a sentence, and of whether that is more than the training took; may raise."""
ResolvedSpec = Mapping[str, Any]
"""An experiment in JSON's types, resolved."""
OTHER_CODE = "the code is other than the run's (hash {:.12}, the run's: {:.12}): what differs may be the code's doing"
ANYWAY = "Bring back what the run had, or replay with --anyway."


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
    is_changed: bool = False
    """True for a spec that is not the run's own, as in a what-if."""

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return self.last - self.first + 1

    def describe(self) -> str:
        """Describe the replay for people who wait."""
        steps = f"{self.last:,}"
        if self.first < self.last:
            steps = f"{self.first:,} to {steps}"
        if self.is_changed:
            steps += " under another spec"
        threads = f" with {thread_text(self.threads)}" if self.threads else ""
        return f"replaying step {steps}; workers: {self.workers}{threads}"


def replay_segment(
    rank: Rank, segment: Segment, run_id: str, root: str, folder: str, begin: tuple[str, int] | None,
    shown: Collection[int], hands_over: bool,
) -> dict[int, ReplayedStep]:  # fmt: skip
    """Do the steps of a segment on one worker, the body of its process; return what it observed by step.

    Nothing is evaluated, each step is logged, and training goes on whatever the losses, as the run has. `begin`: store
    and step of the checkpoint to begin from; None: what the run itself began from. `folder`: of this replay alone; the
    state after the last step is saved there where the segment `hands_over`.
    """
    experiment, home = open_in_worker(segment.spec, root)
    changes = {"training.averages": None, "checkpoint.keep_every": None}
    run = replace(
        unattended_run(experiment, home, Path(folder), changes),
        memory=MemoryPlan(segment.microbatch_splits, tuple(step - 1 for step in segment.skipped)),
        start=start_point(experiment, home, run_id),
        weights=None if begin else weights_of(experiment, home, home.run(run_id)),
    )
    observer = StepObserver(shown, range(segment.first, segment.last + 1))
    with Trainer(run, rank, observer) as trainer:
        if begin:
            location, step = begin
            with CheckpointStore.at(location).open(step, verify=False) as reader:
                scalars = kept_scalars(reader.manifest, run.experiment) if segment.is_changed else None
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

    @property
    def last(self) -> int:
        """Last step."""
        return self.segments[-1].last

    @property
    def num_steps(self) -> int:
        """Number of steps to train."""
        return sum(segment.num_steps for segment in self.segments)

    def with_variant(self, spec: ResolvedSpec, workers: int) -> ReplayPlan:
        """Return the plan with its last step, which is not skipped, done once more under another spec, from the same
        state."""
        *before, final = self.segments
        if final.first < final.last:
            before.append(replace(final, last=final.last - 1))
        own = replace(final, first=final.last, skipped=())
        variant = replace(own, spec=spec, workers=workers, is_changed=True)
        return replace(self, segments=(*before, own, variant))


def plan_replay(
    history: StepHistory, targets: Sequence[Execution], checkpoints: Collection[int],
    spec_of: Callable[[Execution], ResolvedSpec],
) -> list[ReplayPlan]:  # fmt: skip
    """Plan the replay of some executions, those that lie on one way together.

    `checkpoints` are the steps of the run's whole ones, `spec_of` returns the resolved spec by which a step was done.
    Each way that a kill or a roll-back cut off takes a pass of its own, and so does a target that a later checkpoint
    brings nearer.
    """
    plans: list[ReplayPlan] = []
    first = history.first
    left = sorted(targets, key=lambda each: each.step)
    while left:
        way = history.lineage(left[-1])
        # The run's own checkpoint of a step is that of its last execution.
        usable = [step for step in checkpoints if first < step < left[-1].step]
        usable = [step for step in usable if way[step - first - 1] == history.final(step)]
        begin = max(usable, default=first)
        while begin > first and way[begin - first - 1] in left:  # it is replayed too, on the way to this one
            begin = max((step for step in usable if step < begin), default=first)
        done = tuple(way[begin - first :])
        taken = [each.step > begin and each == way[each.step - first - 1] for each in left]
        executions = tuple(compress(left, taken))
        plans.insert(0, ReplayPlan(begin, begin > first, tuple(_segments(done, spec_of)), done, executions))
        left = list(compress(left, map(not_, taken)))
    return plans


def _segments(way: Sequence[Execution], spec_of: Callable[[Execution], ResolvedSpec]) -> Iterator[Segment]:
    """Yield the segments of a way: its consecutive executions with the same settings."""

    def settings(execution: Execution) -> tuple[int, int | None, ResolvedSpec, int]:
        """Return workers, threads, spec and splits: an elastic range of the spec decides the micro-batches, stays."""
        spec = spec_of(execution)
        if isinstance(spec["resources"]["workers"], int):
            spec = {**spec, "resources": {**spec["resources"], "workers": execution.workers}}
        return execution.workers, execution.threads, spec, execution.microbatch_splits

    for values, part in groupby(way, settings):
        steps = list(part)
        skipped = tuple(each.step for each in steps if each.skipped)
        yield Segment(steps[0].step, steps[-1].step, *values, skipped)


def run_plan(source: ReplaySource, plan: ReplayPlan, shown: Collection[int] = ()) -> list[ReplayedStep]:
    """Do the segments of a plan, each with its own workers; return the steps that the plan is for.

    `shown`: steps to measure sample by sample. Nothing is written but a temporary folder, which is removed. Raises
    RunFailed where a step does not fit into this machine's memory.
    """
    run = source.run
    wanted = {execution.step: execution for execution in plan.executions}
    found: list[ReplayedStep] = []
    with tempfile.TemporaryDirectory(prefix="ditlab-replay-") as folder:
        begin = (source.checkpoints.location, plan.origin) if plan.is_checkpoint else None
        for segment in plan.segments:
            hands_over = segment.last < plan.last
            replayed = partial(run.progress, segment.describe(), total=segment.num_steps, unit="steps")
            replayed(0)
            task = segment, run.folder.run_id, str(run.home.root), folder, begin, frozenset(shown), hands_over
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
                step = joined_step([part[number] for part in parts])
                found.append(replace(step, execution=wanted[number], is_variant=segment.is_changed))
            if hands_over:
                begin = str(Path(folder, "checkpoints")), segment.last
    return found


@dataclass(frozen=True)
class ReplaySource:
    """A run, opened for replay."""

    run: OpenedRun
    history: StepHistory
    checkpoints: CheckpointStore
    manifests: dict[int, CheckpointManifest]
    """Undamaged manifests of checkpoints, by step."""
    whole: list[int]
    """Steps of those checkpoints, without the ones whose shards were found damaged."""
    data: DataSplits
    num_gpus: int
    """GPUs that the steps are done on; 0: on the CPU."""
    code: str
    """Hash of the code here."""
    anyway: bool
    """Go on with other code than that which did a step."""
    on_cost: OnCost
    remarks: list[str]
    """Sentences on what is other here than the run's, with `anyway`, and on what the run does not record."""
    _specs: dict[int, ResolvedSpec] = field(default_factory=dict)
    """Specs by attempt, as they were asked for."""

    @property
    def name(self) -> str:
        """The run, for messages."""
        return f"run {self.run.folder.run_id}"

    @property
    def draws_others(self) -> bool:
        """True if this machine draws other numbers than the run's: a CPU in the place of a GPU."""
        return not self.num_gpus and self.run.experiment.resources.gpus_per_worker > 0

    def spec_of(self, execution: Execution) -> ResolvedSpec:
        """Return the spec by which a step was done, for the device of this replay and the places that hold now.

        It is that of a checkpoint which the attempt has written, else of the next attempt with the same hash that has
        one, else the one kept for that hash. Raises UserError where that is gone.
        """
        if execution.attempt not in self._specs:
            current = self.run.experiment.to_dict()
            spec = self._recorded_spec(execution.attempt) if execution.is_recorded else current
            spec = {**spec, **{key: current[key] for key in ("data", "encoders", "start") if key in current}}
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
            raise UserError(f"{path}, the spec that a resume has changed since, is gone or altered; bring it back.")
        return kept.to_dict()

    def tell_cost(self, plans: Sequence[ReplayPlan], limit: float = math.inf) -> None:
        """Tell `on_cost` how many steps some plans train and how long that takes, `limit` seconds at most.

        From the mean time of the run's own steps, and the processor time of this process so far for each start of
        workers: they load and open what it has. Of a run without times only the number of steps is known.
        """
        steps = sum(plan.num_steps for plan in plans)
        starts = sum(len(plan.segments) for plan in plans)
        text = f"{steps:,} step{'s' * (steps > 1)} to train again, {starts} start{'s' * (starts > 1)} of workers"
        took = None
        with suppress(OSError):
            took = run_time(read_content(self.run.folder.journal))
        if not took:
            self.on_cost(f"{text}; the run has no times to tell from how long that takes.", False)
            return
        own = took.total - took.seconds.get("evaluation", 0.0) - took.seconds.get("checkpoint", 0.0)
        seconds = min(limit, steps * own / took.num_steps + starts * time.process_time())
        training = took.total / took.num_steps * (self.history.last - self.history.first)
        text += f": about {format_duration(seconds)} at the speed of the run's own steps"
        self.on_cost(f"{text}; its training took {format_duration(training)}.", seconds > training)

    def machine_differences(self, executions: Sequence[Execution]) -> list[str]:
        """Return in what this machine is of another kind than those that did some steps, a phrase each.

        The last bits of a step depend on device, processor and libraries, beside its spec, workers and threads.
        """
        here = device_name(torch.device("cuda" if self.num_gpus else "cpu"))
        ours = {"device": here, "processor": processor_name(), **library_versions()}
        found = []
        for number in sorted({execution.attempt for execution in executions}):
            attempt = self.history.attempts.get(number)
            if attempt is None:
                found.append("the run's machine is not recorded")
                continue
            theirs = {"device": attempt.device, "processor": attempt.processor, **attempt.versions}
            if (here, attempt.device) != ("cpu", "cpu"):
                theirs["processor"] = ours["processor"]  # it decides no bits of a GPU's
            found += [
                f"{name} {ours.get(name)} (the run's: {theirs.get(name)})"
                for name in ("device", "processor", *LIBRARIES)
                if ours.get(name) != theirs.get(name)
            ]
        return list(dict.fromkeys(found))

    def targets(self, first: int, last: int) -> list[Execution]:
        """Return the last execution of each step of a range. Raises UserError for steps that the run has not done."""
        history = self.history
        if first > last:
            raise UserError(f"--step {first} is behind --to {last}; give --to a later step.")
        has = f"it has steps {history.first + 1:,} to {history.last:,}"
        if history.last == history.first:
            has = "it has done none yet; wait for its first one"
        for option, step in (("--step", first), ("--to", last)):
            if not history.first < step <= history.last:
                raise UserError(f"{option} {step}: {self.name} ({self.run.record.name}) has no such step; {has}.")
        return [history.final(step) for step in range(first, last + 1)]


def open_source(run: OpenedRun, anyway: bool = False, on_cost: OnCost = ignore) -> ReplaySource:
    """Open a run for replay, reading alone.

    Raises UserError where the data are not here, and, without `anyway`, where code, data or device are other than the
    run's.
    """
    experiment = run.experiment
    data = open_data(experiment.data, run.home)
    history = read_history(run)
    num_gpus = torch.cuda.device_count() if experiment.resources.gpus_per_worker > 0 else 0
    code = code_digest(tuple(plugin_packages(experiment.to_dict())))
    store = checkpoint_store(run.folder, experiment.checkpoint.storage)
    remarks = [history.note] if history.note else []
    source = ReplaySource(run, history, store, {}, [], data, num_gpus, code, anyway, on_cost, remarks)
    differences = [*_differences(source)]
    if differences and not anyway:
        raise UserError(f"{source.name}: {'; '.join(differences)}. {ANYWAY}")
    remarks += map(_sentence, differences)
    for step in store.steps():
        with suppress(DamagedCheckpoint), store.open(step, verify=False) as reader:
            source.manifests[step] = reader.manifest
            sizes = store.files.sizes(folder_of(step))
            if all(sizes.get(name) == shard.size for name, shard in reader.manifest.shards.items()):
                source.whole.append(step)
            else:
                remarks.append(f"The checkpoint of step {step:,} is not whole; no replay begins from it.")
    return source


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."


def _differences(source: ReplaySource) -> Iterator[str]:
    """Yield a clause on each of data, code and device that is other than the run's."""
    recorded = source.history.data
    here = source.data.fingerprint
    attempts = source.history.attempts.values()
    if recorded and recorded != here:
        yield (
            f"the data are other than the run's (fingerprint {here[:12]}, the run's: {recorded[:12]}): the same rows "
            "hold other samples"
        )
    codes = [attempt.code for attempt in attempts]
    if codes and source.code not in codes:
        yield OTHER_CODE.format(source.code, codes[-1])
    if source.draws_others:
        names = ", ".join(sorted({attempt.device for attempt in attempts})) or "one"
        yield (
            f"this machine has no GPU, and the run was trained on {names}: a CPU draws other times and noise, so that "
            "losses agree as those of other draws do"
        )


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
    while True:
        plans = [change(plan) for plan in plan_replay(source.history, targets, source.whole, source.spec_of)]
        begins = sorted({plan.origin for plan in plans if plan.is_checkpoint})
        if _drop_damaged(source, begins):
            continue
        _check_plans(source, plans)
        source.tell_cost(plans)
        source = replace(source, on_cost=ignore)  # once
        found: list[ReplayedStep] = []
        origins = []
        try:
            for plan in plans:
                origins.append(_describe_origin(source, plan))
                source.run.progress(origins[-1], 0, None, "")
                found += run_plan(source, plan, shown)
        except DamagedCheckpoint:
            if not _drop_damaged(source, begins):
                raise
            continue  # a run in training has pruned it meanwhile
        way = tuple(execution for plan in plans for execution in plan.way)
        return ReplayedSteps(tuple(sorted(found, key=lambda step: step.step)), way, tuple(origins))


def _drop_damaged(source: ReplaySource, steps: Sequence[int]) -> bool:
    """Hash checkpoints; take the first that is not whole out of the source's, and return True if there is one."""
    for step in steps:
        try:
            source.checkpoints.open(step).close()
        except DamagedCheckpoint as error:
            source.remarks.append(f"{error} The replay begins before it.")
            source.whole.remove(step)
            return True
    return False


def _check_plans(source: ReplaySource, plans: Sequence[ReplayPlan]) -> None:
    """Raise UserError for a fork's parent that is gone, for too few GPUs, and for other code unless `anyway`."""
    for plan in plans:
        if not plan.is_checkpoint:
            _check_first_state(source, plan.executions[0].step)
    workers = max(segment.workers for plan in plans for segment in plan.segments)
    if source.num_gpus and workers > source.num_gpus:
        raise UserError(
            f"step {plans[-1].last:,} of {source.name} takes {workers} workers with a GPU each, and this machine has "
            f"{source.num_gpus}; replay it on a machine with {workers} GPUs."
        )
    for number in sorted({execution.attempt for plan in plans for execution in plan.way}):
        attempt = source.history.attempts.get(number)
        if attempt and attempt.code != source.code and not any("code is other" in text for text in source.remarks):
            clause = f"attempt {number}: {OTHER_CODE.format(source.code, attempt.code)}"
            if not source.anyway:
                raise UserError(f"{source.name}, {clause}. {ANYWAY}")
            source.remarks.append(_sentence(clause))


def _check_first_state(source: ReplaySource, step: int) -> None:
    """Raise UserError where the state that the run began from, from which `step` is replayed, is gone."""
    run = source.run
    words = "its parent's checkpoint, and that is gone: {}; bring it back"
    try:
        point = start_point(run.experiment, run.home, run.folder.run_id)
        weights = weights_of(run.experiment, run.home, run.folder)
        if point:
            point.open(verify=False).close()
        elif weights:
            words = "the published weights it began with, and these are not here: {}; bring them back"
            weights.open()
    except UserError as error:
        reason = str(error) if run.experiment.start else str(error).partition(";")[0]
        text = f"step {step:,} of {source.name} is replayed from {words.format(reason.rstrip('.'))}"
        usable = next((step for step in source.whole if step < source.history.last), None)
        if usable is not None:
            text += f", or replay step {usable + 1} or a later one, from checkpoint {usable} of its own (1 step)"
        raise UserError(f"{text}.") from None


def _describe_origin(source: ReplaySource, plan: ReplayPlan) -> str:
    """Return from where a pass begins, and how many steps it trains."""
    num_steps = plan.last - plan.origin
    num = f"{num_steps:,} step{'s' if num_steps > 1 else ''} to train"
    if plan.is_checkpoint:
        return f"from checkpoint {plan.origin:,}: {num}"
    start = source.run.experiment.start
    where = f"from checkpoint {start.step:,} of run {start.run}" if start else "from step 0"
    wanted = plan.executions[0].step
    if wanted > plan.origin + 1:
        where += f", as no checkpoint before step {wanted:,} is left"
        if source.whole:
            where += f" (the earliest is of step {min(source.whole):,})"
    return f"{where}: {num}"

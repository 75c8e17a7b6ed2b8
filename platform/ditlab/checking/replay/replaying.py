"""Replay of a run: it is opened, what of code, data and device is other here is said, and steps are done again."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.replay.history import (
    Execution,
    JournaledStep,
    RecordedRun,
    StepHistory,
    journaled_steps,
    machine_differences,
    read_recorded,
)
from ditlab.checking.replay.segment import ReplayPlan, plan_replay, run_plan
from ditlab.checking.replay.stepper import ReplayedStep
from ditlab.checkpoints.manifest import DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import DataSplits, open_data
from ditlab.errors import UserError
from ditlab.runs.launch import checkpoint_store, start_point
from ditlab.spec.plugins import plugin_packages
from ditlab.training.receipts import code_digest


@dataclass(frozen=True)
class ReplaySource:
    """A run, opened for replay."""

    run: OpenedRun
    recorded: RecordedRun
    checkpoints: CheckpointStore
    whole: list[int]
    """Steps of checkpoints with an undamaged manifest, without those that were found damaged since."""
    data: DataSplits
    num_gpus: int
    """GPUs that the steps are done on; 0: on the CPU."""
    code: str
    """Hash of the code here."""
    anyway: bool = False
    """Go on with other code than that which did a step."""
    remarks: list[str] = field(default_factory=list)
    """Sentences on what is other here than the run's, with `anyway`."""

    @property
    def history(self) -> StepHistory:
        """Executions of the run's steps."""
        return self.recorded.history

    @cached_property
    def journaled(self) -> Mapping[int, JournaledStep]:
        """Steps of the run's journal."""
        return journaled_steps(self.recorded.journal)

    @cached_property
    def _specs(self) -> tuple[Mapping[str, Any], Mapping[int, Mapping[str, Any]]]:
        """The spec in the run's folder, and those of its checkpoints by the attempt that wrote them."""
        found = {}
        for step in self.checkpoints.steps():
            with suppress(DamagedCheckpoint), self.checkpoints.open(step, verify=False) as reader:
                if step > self.history.first and (attempt := self.history.final(step).attempt):
                    found[attempt] = reader.manifest.spec
        return self.run.experiment.to_dict(), found

    def spec_of(self, execution: Execution) -> Mapping[str, Any]:
        """Return the spec by which a step was done, for the device of this replay and the places that hold now.

        It is that of a checkpoint which the attempt has written, else of the next attempt that has one, else the run's.
        """
        current, specs = self._specs
        later = [attempt for attempt in specs if attempt >= execution.attempt]
        spec = specs[min(later)] if execution.is_recorded and later else current
        spec = {**spec, **{key: current[key] for key in ("data", "encoders", "start") if key in current}}
        return spec if self.num_gpus else {**spec, "resources": {**spec["resources"], "gpus_per_worker": 0}}

    def machine_differences(self, executions: Sequence[Execution]) -> list[str]:
        """Return in what this machine is of another kind than those that did some steps, a phrase each."""
        found: dict[str, None] = {}
        for number in sorted({execution.attempt for execution in executions}):
            attempt = self.recorded.attempts.get(number)
            found |= dict.fromkeys(
                machine_differences(attempt, self.num_gpus > 0) if attempt else ["the run's machine is not recorded"]
            )
        return list(found)

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


def open_source(run: OpenedRun, anyway: bool = False) -> ReplaySource:
    """Open a run for replay, reading alone.

    Raises UserError where the data are not here, and, without `anyway`, where code, data or device are other than the
    run's.
    """
    experiment, home = run.experiment, run.home
    data = open_data(experiment.data, home)
    recorded = read_recorded(run)
    remarks = [recorded.history.note] if recorded.history.note else []
    num_gpus = torch.cuda.device_count() if experiment.resources.gpus_per_worker > 0 else 0
    attempts = recorded.attempts.values()
    differences = []
    if recorded.data and recorded.data != data.fingerprint:
        differences.append(
            f"the data are other than the run's (fingerprint {data.fingerprint[:12]}, the run's: "
            f"{recorded.data[:12]}): the same rows hold other samples"
        )
    code = code_digest(tuple(plugin_packages(experiment.to_dict())))
    codes = [attempt.code for attempt in attempts]
    if codes and code not in codes:
        differences.append(_other_code(code, codes[-1]))
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
    store, whole = checkpoint_store(run.folder, experiment.checkpoint.storage), []
    for step in store.steps():
        with suppress(DamagedCheckpoint), store.open(step, verify=False) as reader:
            sizes = store.files.sizes(reader.location.rstrip("/").rpartition("/")[2])
            if all(sizes.get(name) == digest.size for name, digest in reader.manifest.shards.items()):
                whole.append(step)
    return ReplaySource(run, recorded, store, whole, data, num_gpus, code, anyway, remarks)


def _other_code(here: str, theirs: str) -> str:
    return (
        f"the code is other than the run's (hash {here[:12]}, the run's: {theirs[:12]}): what differs may be the "
        "code's doing"
    )


@dataclass(frozen=True)
class ReplayedSteps:
    """Steps of a run that were done again."""

    run_id: str
    name: str
    last: int
    """Last step that the run has done."""
    steps: tuple[ReplayedStep, ...]
    """Replayed steps, ascending; two of one step where a kill or a roll-back cut one execution of it off."""
    way: tuple[Execution, ...]
    """Executions that were done again to come to these steps, themselves among them."""
    origins: tuple[str, ...]
    """From where each pass began, and how many steps it trained."""
    remarks: tuple[str, ...]
    """Sentences on what differs here from the run's, and on what the run does not record."""


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
        try:
            for plan in plans:
                origins.append(_describe_origin(source, plan))
                run.progress(origins[-1], 0, None, "")
                found += run_plan(
                    plan, run.folder.run_id, run.home, source.checkpoints, source.num_gpus > 0, shown, run.progress
                )
        except DamagedCheckpoint:
            there = source.checkpoints.steps()
            if all(plan.origin in there for plan in plans if plan.is_checkpoint):
                raise  # else a run in training has pruned it meanwhile
            continue
        return ReplayedSteps(
            run.folder.run_id, run.record.name, source.history.last, tuple(sorted(found, key=lambda step: step.step)),
            tuple(execution for plan in plans for execution in plan.way), tuple(origins), tuple(source.remarks),
        )  # fmt: skip


def _check_plans(source: ReplaySource, plans: Sequence[ReplayPlan]) -> None:
    """Raise UserError for a fork's parent that is gone, for too few GPUs, and for other code unless `anyway`."""
    run = source.run
    name = f"run {run.folder.run_id}"
    for plan in plans:
        point = None if plan.is_checkpoint else start_point(run.experiment, run.home, run.folder.run_id)
        try:
            if point is not None:
                point.open(verify=False).close()
        except UserError as error:
            usable = next((step for step in source.whole if step < source.history.last), None)
            remedy = "bring it back"
            if usable is not None:
                remedy += f", or replay step {usable + 1} or a later one, from checkpoint {usable} of its own (1 step)"
            raise UserError(
                f"step {plan.executions[0].step:,} of {name} is replayed from its parent's checkpoint, and that is "
                f"gone: {str(error).rstrip('.')}; {remedy}."
            ) from None
    workers = max(segment.workers for plan in plans for segment in plan.segments)
    if source.num_gpus and workers > source.num_gpus:
        raise UserError(
            f"step {plans[-1].executions[-1].step:,} of {name} takes {workers} workers with a GPU each, and this "
            f"machine has {source.num_gpus}; replay it on a machine with {workers} GPUs."
        )
    for number in sorted({execution.attempt for plan in plans for execution in plan.way}):
        attempt = source.recorded.attempts.get(number)
        if attempt and attempt.code != source.code and not any("code is other" in text for text in source.remarks):
            text = f"attempt {number}: {_other_code(source.code, attempt.code)}"
            if not source.anyway:
                raise UserError(f"{name}, {text}. Bring back what the run had, or replay with --anyway.")
            source.remarks.append(f"{text[0].upper()}{text[1:]}.")


def _describe_origin(source: ReplaySource, plan: ReplayPlan) -> str:
    """Return from where a pass begins, and how many steps it trains."""
    num = f"{plan.num_steps:,} step{'s' if plan.num_steps > 1 else ''} to train"
    if plan.is_checkpoint:
        return f"from checkpoint {plan.origin:,}: {num}"
    start, wanted = source.run.experiment.start, plan.executions[0].step
    where = f"from checkpoint {start.step:,} of run {start.run}" if start else "from step 0"
    if wanted > plan.origin + 1:
        where += f", as no checkpoint before step {wanted:,} is left"
        where += f" (the earliest is of step {min(source.whole):,})" if source.whole else ""
    return f"{where}: {num}"

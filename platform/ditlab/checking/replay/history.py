"""Step history of a run: which steps were done when, by which workers, machines and specs, as its records have it.

It is read from receipts, else from journal and spec. Steps that a run has journaled and that no receipt accounts for
were done, but are not in `steps.bin`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checkpoints.manifest import DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import UserError
from ditlab.receipts.reading import Receipts, read_receipts
from ditlab.receipts.records import LEFT_OUT, RecordedAttempt
from ditlab.spec.start import first_step
from ditlab.tracking.history import Series, series_of
from ditlab.tracking.journal import JournalContent, read_content
from ditlab.training.receipts import LIBRARIES, device_name, library_versions, processor_name


@dataclass(frozen=True)
class MachineKind:
    """Device, processor and libraries, on which the last bits of a step depend beside its spec, workers and threads."""

    device: str
    """`cpu`, or the GPU's name."""
    processor: str
    versions: Mapping[str, str]
    """Versions by library."""

    def differences(self, here: MachineKind) -> list[str]:
        """Return what is other here, a phrase each; [] on a machine of the same kind."""
        found = []
        if self.device != here.device:
            found.append(f"device {here.device} (the run's: {self.device})")
        if self.processor != here.processor and self.device == here.device == "cpu":
            found.append(f"processor {here.processor} (the run's: {self.processor})")
        for name in LIBRARIES:
            if (theirs := self.versions.get(name)) != (ours := here.versions.get(name)):
                found.append(f"{name} {ours} (the run's: {theirs})")
        return found


def machine_here(use_gpu: bool) -> MachineKind:
    """Return the kind of this machine, on its GPU or on its CPU."""
    return MachineKind(device_name(torch.device("cuda" if use_gpu else "cpu")), processor_name(), library_versions())


@dataclass(frozen=True)
class Execution:
    """One execution of a step; a step is done again after a kill, a roll-back or a resume from before it."""

    step: int
    """From 1."""
    attempt: int
    """Number of the attempt, from 1; 0 where nothing was recorded."""
    workers: int
    microbatch_splits: int = 0
    """Number of times the micro-batch was halved."""
    threads: int | None = None
    """Threads of each worker; None: not recorded."""
    skipped: bool = False
    """True if its batch was taken from the order, and not trained on."""
    loss: float | None = None
    """float32, as recorded; None where nothing was."""
    norm: float | None = None
    """Gradient norm before clipping, float32."""
    lr: float | None = None
    samples: int | None = None
    """Digest of the samples and draws."""

    @property
    def is_recorded(self) -> bool:
        """True if receipts hold this step."""
        return self.attempt > 0


@dataclass(frozen=True)
class StepHistory:
    """Executions of a run in the order in which they were recorded."""

    executions: Sequence[Execution]
    default: Execution
    """Settings of steps that nothing was recorded of."""
    last: int
    """Last step that the run has done."""
    first: int = 0
    """Steps that were done before the run's own first one: those of a fork's parent."""
    note: str = ""
    """A sentence on what is not recorded; empty for none."""

    @cached_property
    def _final(self) -> dict[int, int]:
        return {execution.step: index for index, execution in enumerate(self.executions)}

    def final(self, step: int) -> Execution:
        """Return the last execution of a step: the one in the history of the run's weights."""
        index = self._final.get(step)
        return replace(self.default, step=step) if index is None else self.executions[index]

    def all_of(self, step: int) -> list[Execution]:
        """Return every recorded execution of a step, the first one first."""
        return [execution for execution in self.executions if execution.step == step]

    def lineage(self, execution: Execution) -> list[Execution]:
        """Return the executions that led to one, and itself: for each step from the run's first one, its last one
        before."""
        index = next((i for i, each in enumerate(self.executions) if each is execution), None)
        if index is None:
            return [self.final(step) for step in range(self.first + 1, execution.step + 1)]
        found: dict[int, Execution] = {execution.step: execution}
        for each in reversed(self.executions[:index]):
            if each.step < execution.step:
                found.setdefault(each.step, each)
        steps = range(self.first + 1, execution.step + 1)
        return [found.get(step) or replace(self.default, step=step) for step in steps]

    def is_final_at(self, lineage: Sequence[Execution], step: int) -> bool:
        """Return True if the run's checkpoint of a step holds what a lineage had come to there."""
        if step == self.first:
            return True
        index, own = self._final.get(step), lineage[step - self.first - 1]
        return not own.is_recorded if index is None else own is self.executions[index]


@dataclass(frozen=True)
class RecordedRun:
    """A run's record of its step history, and of what its numbers depend on."""

    history: StepHistory
    machines: Mapping[int, MachineKind]
    """Kinds of the machines that its steps were done on, by attempt; {} where they are not recorded."""
    journal: JournalContent
    data: str = ""
    """Fingerprint of the training data; empty where it is not recorded."""
    codes: Mapping[int, str] = field(default_factory=dict)
    """Hash of the code that did its steps, by attempt; {} where it is not recorded."""


def read_recorded(run: OpenedRun) -> RecordedRun:
    """Read a run's receipts and journal; without receipts, take the workers of its spec."""
    try:
        journal = read_content(run.folder.journal)
    except OSError:
        journal = JournalContent()
    data = next((each["fingerprint"] for each in journal.events if each["kind"] == "dataset"), "")
    resources = run.experiment.resources
    default = Execution(0, 0, resources.max_workers, threads=resources.cpus_per_worker)
    first = first_step(run.experiment.start)
    last = max([first, run.record.step, *journaled_steps(journal)])
    try:
        receipts = read_receipts(run.folder)
    except UserError as error:
        note = (
            f"{str(error).rstrip('.')}: each step is replayed with the workers of the spec ({default.workers}), "
            "and its machine is not known."
        )
        return RecordedRun(StepHistory([], default, last, first, note), {}, journal, data)
    attempts = receipts.attempts
    executions = with_unwritten(_recorded_executions(receipts), attempts, journal)
    problems = [receipts.damage] if receipts.damage else []
    if num_lost := int((~np.isin(receipts.rows["attempt"], list(attempts))).sum()):
        problems.append(f"{num_lost:,} rows are of attempts whose line in {run.folder.receipt_attempts} is missing")
    note = f"Damaged receipts: {'; '.join(problems)}; steps without one are replayed by the spec." if problems else ""
    last = max([last, *(execution.step for execution in executions)])
    newest = attempts[max(attempts)] if attempts else None
    machines = {
        number: MachineKind(attempt.device, attempt.processor, attempt.versions) for number, attempt in attempts.items()
    }
    return RecordedRun(
        StepHistory(executions, default, last, first, note), machines, journal, newest.data if newest else data,
        {number: attempt.code for number, attempt in attempts.items()},
    )  # fmt: skip


def _recorded_executions(receipts: Receipts) -> list[Execution]:
    """Executions of all rows whose attempt is known; the rest is replayed by the spec."""
    found = []
    for row in receipts.rows:
        attempt = receipts.attempts.get(int(row["attempt"]))
        if attempt is not None:
            found.append(
                Execution(
                    int(row["step"]), attempt.attempt, attempt.workers, attempt.halvings, attempt.threads or None,
                    bool(row["flags"] & LEFT_OUT), float(row["loss"]), float(row["norm"]), float(row["lr"]),
                    int(row["samples"]),
                )
            )  # fmt: skip
    return found


def with_unwritten(
    executions: Sequence[Execution], attempts: Mapping[int, RecordedAttempt], journal: JournalContent
) -> list[Execution]:
    """Return the executions, and behind each attempt's rows those of its steps that the journal alone has.

    A step's loss is journaled before its row is written: a kill in between costs the row, a power failure those not yet
    on the disk. The journal has each step once, by the first attempt that came so far. Where no row of the step has its
    numbers, it counts as done by the attempt whose rows end nearest before it.
    """
    rows: dict[int, list[Execution]] = {}
    ends = {number: attempt.step for number, attempt in sorted(attempts.items())}
    for execution in executions:
        rows.setdefault(execution.step, []).append(execution)
        ends[execution.attempt] = max(ends[execution.attempt], execution.step)
    reached = dict(ends)
    for step, logged in journaled_steps(journal).items():
        cut_off = [number for number in reversed(ends) if ends[number] < step and attempts[number].step < step]
        if cut_off and not any(logged.is_of(each) for each in rows.get(step, ())):
            reached[max(cut_off, key=lambda number: reached[number])] = step
    found = []
    for number, attempt in sorted(attempts.items()):
        found += [execution for execution in executions if execution.attempt == number]
        for step in range(ends[number] + 1, reached[number] + 1):
            skipped = step in attempt.left_out
            settings = (attempt.workers, attempt.halvings, attempt.threads or None, skipped)
            found.append(Execution(step, number, *settings))
    return found


@dataclass(frozen=True)
class JournaledStep:
    """Numbers of a step as the journal has them: of the first execution that logged it."""

    step: int
    time: int
    """Milliseconds since 1970."""
    loss: float
    norm: float | None = None
    lr: float | None = None

    def is_of(self, execution: Execution) -> bool:
        """Return True if an execution's receipt has these numbers, as float32."""
        return _same(execution.loss, self.loss) and (self.norm is None or _same(execution.norm, self.norm))


def journaled_steps(journal: JournalContent) -> dict[int, JournaledStep]:
    """Return the steps whose loss a journal has, ascending."""
    series = series_of(journal, ("train/",))
    found: dict[int, JournaledStep] = {}
    norms, rates = (_first_values(series.get(name)) for name in ("train/grad_norm", "train/lr"))
    losses = series.get("train/loss") or Series()
    for step, loss, time in zip(losses.steps.tolist(), losses.values.tolist(), losses.times.tolist(), strict=True):
        found.setdefault(step, JournaledStep(step, time, loss, norms.get(step), rates.get(step)))
    return dict(sorted(found.items()))


def _first_values(series: Series | None) -> dict[int, float]:
    if series is None:
        return {}
    return dict(zip(series.steps.tolist()[::-1], series.values.tolist()[::-1], strict=True))


def _same(recorded: float | None, journaled: float) -> bool:
    if recorded is None:
        return False
    one, two = np.float32(recorded), np.float32(journaled)
    return bool(one == two or (np.isnan(one) and np.isnan(two)))


class AttemptSpecs:
    """Specs by attempt: that of a checkpoint it has written, else of the next attempt that has one, else the run's."""

    def __init__(
        self, history: StepHistory, checkpoints: CheckpointStore, current: Mapping[str, Any], on_cpu: bool = False
    ) -> None:
        """Read the manifests of the run's checkpoints; `current` is the spec in its folder.

        `on_cpu`: every step is replayed on the CPU, whatever it was trained on.
        """
        self._specs: dict[int, Mapping[str, Any]] = {}
        self._current, self._on_cpu = current, on_cpu
        for step in checkpoints.steps():
            with suppress(DamagedCheckpoint), checkpoints.open(step, verify=False) as reader:
                if step > history.first and (attempt := history.final(step).attempt):
                    self._specs[attempt] = reader.manifest.spec

    def __call__(self, execution: Execution) -> Mapping[str, Any]:
        """Return the spec by which a step was done, in the places that hold now: the run may have been moved."""
        later = [attempt for attempt in self._specs if attempt >= execution.attempt]
        spec = self._specs[min(later)] if execution.is_recorded and later else self._current
        spec = {**spec, **{key: self._current[key] for key in ("data", "encoders", "start") if key in self._current}}
        return {**spec, "resources": {**spec["resources"], "gpus_per_worker": 0}} if self._on_cpu else spec

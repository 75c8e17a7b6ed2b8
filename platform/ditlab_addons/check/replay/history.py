"""Step history of a run: which steps were done when, by which workers, machines and specs, as its
records have it.

It is read from receipts, else from journal and spec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ditlab.analysis.opened_run import OpenedRun
from ditlab.errors import UserError
from ditlab.receipts.reading import read_receipts
from ditlab.receipts.records import LEFT_OUT, RecordedAttempt
from ditlab.spec.start import first_step
from ditlab.tracking.history import Series, series_of
from ditlab.tracking.journal import JournalContent, read_content


@dataclass(frozen=True)
class Execution:
    """One execution of a step, or what the journal has of it; a step is done again after a kill, a
    roll-back or a resume from before it."""

    step: int
    """From 1."""
    attempt: int = 0
    """Number of the attempt, from 1; 0 where nothing was recorded."""
    workers: int = 0
    microbatch_splits: int = 0
    """Number of times the micro-batch was halved."""
    threads: int | None = None
    """Threads of each worker; None: not recorded."""
    skipped: bool = False
    """True if its batch was taken from the order, and not trained on."""
    loss: float | None = None
    """As recorded: float32 in receipts; None where nothing was."""
    norm: float | None = None
    """Gradient norm before clipping."""
    lr: float | None = None
    samples: int | None = None
    """Digest of the samples and draws; None without a receipt."""


METRICS = {"loss": "train/loss", "norm": "train/grad_norm", "lr": "train/lr"}
"""Metric of a step by field of its execution, and column of its receipt."""


@dataclass
class StepHistory:
    """Executions of a run in the order in which they were recorded, and what their numbers depend
    on.
    """

    executions: Sequence[Execution]
    default: Execution
    """Settings of steps that nothing was recorded of: those of the last attempt, else of the
    spec.
    """
    last: int
    """Last step that the run has done."""
    first: int = 0
    """Steps that were done before the run's own first one: those of a fork's parent."""
    note: str = ""
    """A sentence on what is not recorded; empty for none."""
    journaled: Mapping[int, Execution] = field(default_factory=dict)
    """Steps of the journal, with its numbers."""
    attempts: Mapping[int, RecordedAttempt] = field(default_factory=dict)
    """Attempts by number; {} where they are not recorded."""
    data: str = ""
    """Fingerprint of the training data; empty where it is not recorded."""

    @cached_property
    def _final(self) -> dict[int, Execution]:
        return {execution.step: execution for execution in self.executions}

    def final(self, step: int) -> Execution:
        """Return the last execution of a step: the one in the history of the run's weights."""
        return self._final.get(step) or replace(self.default, step=step)

    def lineage(self, step: int) -> list[Execution]:
        """Return the executions that led to the last one of a step, and itself: for each step from
        the run's first one, its last one before."""
        target = self.final(step)
        found = {}
        for each in self.executions:
            if each is target:
                break
            found[each.step] = each
        found[step] = target
        return [
            found.get(each) or replace(self.default, step=each)
            for each in range(self.first + 1, step + 1)
        ]


def read_history(run: OpenedRun) -> StepHistory:
    """Read a run's receipts and journal; without receipts, take the workers of its spec."""
    try:
        journal = read_content(run.folder.journal)
    except OSError:
        journal = JournalContent()
    journaled = journaled_steps(journal)
    resources = run.experiment.resources
    first = first_step(run.experiment.start)
    history = StepHistory(
        [],
        Execution(0, workers=resources.max_workers, threads=resources.cpus_per_worker),
        max([first, run.record.step, *journaled]),
        first,
        journaled=journaled,
        data=next(
            (each["fingerprint"] for each in journal.events if each["kind"] == "dataset"), ""
        ),
    )
    try:
        receipts = read_receipts(run.folder)
    except UserError as error:
        history.note = f"{error} Each step is replayed with the workers of the spec."
        return history
    attempts = receipts.attempts
    executions = [
        _recorded(row, attempts[int(row["attempt"])])
        for row in receipts.rows
        if row["attempt"] in attempts
    ]
    problems = [receipts.damage] if receipts.damage else []
    num_lost = len(receipts.rows) - len(executions)
    if num_lost:
        problems.append(
            f"{num_lost:,} rows are of attempts whose line in {run.folder.receipt_attempts} is "
            "missing"
        )
    if problems:
        history.note = (
            f"Damaged receipts: {'; '.join(problems)}; steps without one are replayed as the "
            "last attempt's."
        )
    if attempts:
        last = attempts[max(attempts)]
        history.default = _of_attempt(0, last)
        history.data = last.data
    history.executions = executions
    history.attempts = attempts
    history.last = max([history.last, *(each.step for each in executions)])
    return history


def _of_attempt(step: int, attempt: RecordedAttempt) -> Execution:
    """Return the execution of a step with an attempt's settings."""
    return Execution(
        step, attempt.attempt, attempt.workers, attempt.microbatch_splits, attempt.threads or None
    )


def _recorded(row: np.void, attempt: RecordedAttempt) -> Execution:
    """Return the execution of a row of receipts."""
    return replace(
        _of_attempt(int(row["step"]), attempt),
        skipped=bool(row["flags"] & LEFT_OUT),
        samples=int(row["samples"]),
        **{name: row[name].item() for name in METRICS},
    )


def journaled_steps(journal: JournalContent) -> dict[int, Execution]:
    """Return the steps whose loss a journal has, ascending."""
    values: dict[str, Any] = {
        # the first value of each step stays
        name: dict(zip(each.steps.tolist()[::-1], each.values.tolist()[::-1], strict=True))
        for name, each in journaled_numbers(journal).items()
    }
    return {
        step: Execution(step, **{name: each.get(step) for name, each in values.items()})
        for step in sorted(values["loss"])
    }


def journaled_numbers(journal: JournalContent) -> dict[str, Series]:
    """Return what a journal has of loss, gradient norm and learning rate, by column of the
    receipts.
    """
    series = series_of(journal, tuple(METRICS.values()))
    return {name: series.get(metric) or Series() for name, metric in METRICS.items()}

"""Step history of a run: which steps were done when, by which workers, machines and specs, as its records have it.

It is read from receipts, else from journal and spec. Steps that a run has journaled and that no receipt accounts for
were done, but are not in `steps.bin`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ditlab.analysis.opened_run import OpenedRun
from ditlab.errors import UserError
from ditlab.receipts.reading import read_receipts
from ditlab.receipts.records import LEFT_OUT, VERBS, RecordedAttempt
from ditlab.spec.start import first_step
from ditlab.tracking.history import Series, series_of
from ditlab.tracking.journal import JournalContent, read_content


@dataclass(frozen=True)
class Execution:
    """One execution of a step, or what the journal has of its first one that logged it; a step is done again after a
    kill, a roll-back or a resume from before it."""

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
    """Digest of the samples and draws."""
    asked: str = ""
    """Verb that the run was asked for after it (`ditlab ask`); empty for none."""

    @property
    def is_recorded(self) -> bool:
        """True if receipts hold this step."""
        return self.attempt > 0

    def logged(self, numbers: Execution) -> bool:
        """Return True if the journal's numbers of the step are those of this execution's receipt, as float32."""
        if self.loss is None or self.norm is None:
            return False
        norm = self.norm if numbers.norm is None else numbers.norm
        recorded = np.array([self.loss, self.norm], np.float32)
        return np.array_equal(recorded, np.array([numbers.loss, norm], np.float32), equal_nan=True)


@dataclass(frozen=True)
class StepHistory:
    """Executions of a run in the order in which they were recorded, and what their numbers depend on."""

    executions: Sequence[Execution]
    default: Execution
    """Settings of steps that nothing was recorded of."""
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

    def all_of(self, step: int) -> list[Execution]:
        """Return every recorded execution of a step, the first one first."""
        return [execution for execution in self.executions if execution.step == step]

    def lineage(self, execution: Execution) -> list[Execution]:
        """Return the executions that led to one, and itself: for each step from the run's first one, its last one
        before."""
        found = {}
        for each in self.executions:
            if each is execution:
                break
            found[each.step] = each
        found[execution.step] = execution
        steps = range(self.first + 1, execution.step + 1)
        return [found.get(step) or replace(self.default, step=step) for step in steps]


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
        [], Execution(0, workers=resources.max_workers, threads=resources.cpus_per_worker),
        max([first, run.record.step, *journaled]), first, journaled=journaled,
        data=next((each["fingerprint"] for each in journal.events if each["kind"] == "dataset"), ""),
    )  # fmt: skip
    try:
        receipts = read_receipts(run.folder)
    except UserError as error:
        note = (
            f"{str(error).rstrip('.')}: each step is replayed with the workers of the spec ({resources.max_workers}), "
            "and its machine is not known."
        )
        return replace(history, note=note)
    attempts = receipts.attempts
    rows = [row for row in receipts.rows if int(row["attempt"]) in attempts]
    recorded = [_recorded(row, attempts[int(row["attempt"])]) for row in rows]
    problems = [receipts.damage] if receipts.damage else []
    num_lost = len(receipts.rows) - len(rows)
    if num_lost:
        problems.append(f"{num_lost:,} rows are of attempts whose line in {run.folder.receipt_attempts} is missing")
    note = f"Damaged receipts: {'; '.join(problems)}; steps without one are replayed by the spec." if problems else ""
    executions = with_unwritten(recorded, attempts, journaled)
    return replace(
        history, executions=executions, note=note, attempts=attempts,
        last=max([history.last, *(execution.step for execution in executions)]),
        data=attempts[max(attempts)].data if attempts else history.data,
    )  # fmt: skip


def _recorded(row: np.void, attempt: RecordedAttempt) -> Execution:
    """Return the execution of a row of receipts."""
    asked = int(row["asked"])
    return Execution(
        int(row["step"]), attempt.attempt, attempt.workers, attempt.halvings, attempt.threads or None,
        bool(row["flags"] & LEFT_OUT), float(row["loss"]), float(row["norm"]), float(row["lr"]), int(row["samples"]),
        VERBS[asked - 1] if 0 < asked <= len(VERBS) else "",
    )  # fmt: skip


def with_unwritten(
    executions: Sequence[Execution], attempts: Mapping[int, RecordedAttempt], journaled: Mapping[int, Execution]
) -> list[Execution]:
    """Return the executions, and behind each attempt's rows those of its steps that the journal alone has.

    A step's loss is journaled before its row is written: a kill in between costs the row. Where no row of a step has
    the journal's numbers, it counts as done by the attempt whose rows end nearest before it.
    """
    rows: dict[int, list[Execution]] = {number: [] for number in sorted(attempts)}
    written = set()
    for execution in executions:
        rows[execution.attempt].append(execution)
        numbers = journaled.get(execution.step)
        if numbers and execution.logged(numbers):
            written.add(execution.step)
    ends = {number: max([attempts[number].step, *(each.step for each in rows[number])]) for number in rows}
    reached = dict(ends)
    for step in journaled:
        cut_off = [number for number in ends if ends[number] < step]
        if cut_off and step not in written:
            reached[max(cut_off, key=lambda number: (reached[number], number))] = step
    found = []
    for number, own in rows.items():
        attempt = attempts[number]
        found += own
        for step in range(ends[number] + 1, reached[number] + 1):
            skipped = step in attempt.left_out
            threads = attempt.threads or None
            found.append(Execution(step, number, attempt.workers, attempt.halvings, threads, skipped))
    return found


def journaled_steps(journal: JournalContent) -> dict[int, Execution]:
    """Return the steps whose loss a journal has, ascending."""
    series = series_of(journal, ("train/",))
    losses, norms, rates = (
        # the first value of each step stays
        dict(zip(each.steps.tolist()[::-1], each.values.tolist()[::-1], strict=True))
        for each in (series.get(f"train/{name}") or Series() for name in ("loss", "grad_norm", "lr"))
    )
    return {
        step: Execution(step, loss=losses[step], norm=norms.get(step), lr=rates.get(step)) for step in sorted(losses)
    }

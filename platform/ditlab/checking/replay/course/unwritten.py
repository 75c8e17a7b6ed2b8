"""Steps that a run has journaled and that no receipt accounts for: done, but not in `steps.bin`.

A step's loss is journaled before its row is written, which a kill in between costs; a power failure costs the rows that
were not yet on the disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ditlab.checking.replay.course.course import Execution
from ditlab.receipts.records import RecordedAttempt
from ditlab.tracking.history import Series, series_of
from ditlab.tracking.journal import JournalContent

WORKERS, THREADS = "ditlab.workers", "ditlab.threads"


def with_unwritten(
    executions: Sequence[Execution], attempts: Mapping[int, RecordedAttempt], journal: JournalContent
) -> list[Execution]:
    """Return the executions with those of journaled steps that no row accounts for, behind their attempt's rows.

    The journal has each step once, by the first attempt that came so far. Where that attempt's row has other numbers,
    one before it had come so far already; where no attempt's rows reach the step, the last one has.
    """
    rows = {(execution.attempt, execution.step): execution for execution in executions}
    ends = {number: attempt.step for number, attempt in sorted(attempts.items())}
    for execution in executions:
        ends[execution.attempt] = max(ends[execution.attempt], execution.step)
    reached = dict(ends)
    for step, logged in journaled_steps(journal).items():
        first = next((number for number, end in reached.items() if end >= step), None)
        if first is not None:
            row = rows.get((first, step))
            if step > ends[first] or (row is not None and logged.is_of(row)):
                continue
        settings = _settings_at(journal, logged.time)
        open_ends = [
            number
            for number in reversed(ends)
            if ends[number] < step and attempts[number].step < step and (first is None or number < first)
        ]
        alike = [each for each in open_ends if (attempts[each].workers, attempts[each].threads) == settings]
        if number := next(iter(alike or open_ends), None):
            reached[number] = step
    added = {
        number: [_execution(step, attempts[number]) for step in range(ends[number] + 1, reached[number] + 1)]
        for number in ends
    }
    return _inserted(executions, added)


@dataclass(frozen=True)
class JournaledStep:
    """Numbers of a step as the journal has them: of the first doing that logged it."""

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


def _execution(step: int, attempt: RecordedAttempt) -> Execution:
    left_out = step in attempt.left_out
    return Execution(
        step, attempt.attempt, attempt.workers, attempt.halvings, attempt.threads or None, left_out=left_out
    )


def _inserted(executions: Sequence[Execution], added: Mapping[int, list[Execution]]) -> list[Execution]:
    """Return the executions with added ones behind the rows of their attempt, and before those of the next."""
    rest = dict(added)
    found: list[Execution] = []
    for execution in executions:
        for number in [number for number in sorted(rest) if number < execution.attempt]:
            found += rest.pop(number)
        found.append(execution)
    for number in sorted(rest):
        found += rest[number]
    return found


def _settings_at(journal: JournalContent, time: int) -> tuple[int, int] | None:
    """Return workers and threads as the run's tags had them at a time; None where they are not known."""
    found: dict[str, str] = {}
    for event in journal.events:
        if event["kind"] == "tags" and event["time"] <= time:
            found |= {name: value for name, value in event["values"].items() if name in (WORKERS, THREADS)}
    if not all(found.get(name, "").isdecimal() for name in (WORKERS, THREADS)):
        return None
    return int(found[WORKERS]), int(found[THREADS])

"""Receipts read: the attempts and steps of a run from its files, the chain of their digests checked."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ditlab.errors import UserError, first_line
from ditlab.home import RunFolder
from ditlab.receipts.records import ORIGIN, ROW, RecordedAttempt, intact_rows, next_head, parse_attempt
from ditlab.storage.files import MAX_LINES_BYTES, parse_json_lines
from ditlab.storage.plain_files import MIB, read_plain

MAX_BYTES = 4096 * MIB
"""Bytes of `steps.bin` that are read: a hundred million steps."""


@dataclass(frozen=True)
class Receipts:
    """Rows and attempts of a run, in the order in which they were written."""

    rows: np.ndarray
    """Every step that was done, also those done again, (rows,) of `records.ROW`."""
    attempts: dict[int, RecordedAttempt]
    """Attempts by number."""
    damage: str
    """A sentence on what could not be read; empty for nothing."""

    @cached_property
    def steps(self) -> np.ndarray:
        """The last row of each step, ascending, (steps,) of `records.ROW`."""
        return _last_of_each(self.rows)

    def of_step(self, step: int) -> np.ndarray:
        """Return every row of a step, the first one first, (rows,) of `records.ROW`."""
        return self.rows[self.rows["step"] == step]

    def history(self, step: int, since: int = 0) -> np.ndarray:
        """Return the rows that led to the last state after `step` steps, from step `since` + 1 on.

        Of a step that was done several times, the last one before. Raises UserError where a row is missing.

        Returns:
            Rows, ascending, (step - since,) of `records.ROW`.
        """
        found = np.flatnonzero(self.rows["step"] == step)
        before = self.rows[: found[-1] + 1] if len(found) else self.rows[:0]
        steps = _last_of_each(before[(before["step"] > since) & (before["step"] <= step)])
        if step > since and len(steps) != step - since:
            known = set(steps["step"].tolist())
            missing = next(number for number in range(step, since, -1) if number not in known)
            raise UserError(f"the receipts have no row of step {missing}{f' ({self.damage})' if self.damage else ''}.")
        return steps

    def chain(self, step: int, since: int = 0) -> str:
        """Return the head of the chain from `since` on, after `step`, in hexadecimal. Raises UserError as `history`."""
        head, before = ORIGIN, 0
        for row in self.history(step, since):
            attempt = int(row["attempt"])
            head = next_head(head, row.tobytes(), self.attempt(attempt) if attempt != before else None)
            before = attempt
        return head

    def attempt(self, number: int) -> RecordedAttempt:
        """Return an attempt. Raises UserError where its line is missing or damaged."""
        if number not in self.attempts:
            raise UserError(f"the receipts have no whole line of attempt {number}.")
        return self.attempts[number]


def _last_of_each(rows: np.ndarray) -> np.ndarray:
    _, from_end = np.unique(rows["step"][::-1], return_index=True)
    return rows[::-1][from_end]


def read_receipts(folder: RunFolder) -> Receipts:
    """Read a run's receipts, up to the first row that is damaged. Raises UserError where there are none."""
    try:
        content = read_plain(folder.receipt_rows, MAX_BYTES)
        attempts = read_plain(folder.receipt_attempts, MAX_LINES_BYTES)
    except FileNotFoundError:
        raise UserError(
            f"run {folder.run_id} has no receipts: an earlier version trained it, or {folder.receipts} was deleted."
        ) from None
    except OSError as error:
        raise UserError(f"the receipts of run {folder.run_id} cannot be read ({first_line(error)}).") from None
    rows, lines = intact_rows(content), parse_json_lines(attempts)
    parsed = [parse_attempt(record) for record in lines.records]
    damaged = lines.num_damaged + parsed.count(None)
    problems = []
    if len(rows) * ROW.itemsize < len(content):
        problems.append(f"{folder.receipt_rows} is damaged from row {len(rows) + 1} on")
    if damaged:
        problems.append(f"{folder.receipt_attempts} has {damaged} damaged line{'s' if damaged > 1 else ''}")
    elif not attempts.endswith(b"\n"):
        problems.append(f"{folder.receipt_attempts} ends within a line")
    by_number = {each.attempt: each for each in parsed if each is not None}
    return Receipts(rows, by_number, "; ".join(problems))

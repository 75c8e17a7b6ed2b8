"""Record of a run's course: its receipts, else its journal and spec."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.replay.course.course import Course, Execution
from ditlab.checking.replay.course.machine import MachineKind
from ditlab.checking.replay.course.unwritten import journaled_steps, with_unwritten
from ditlab.errors import UserError
from ditlab.receipts.reading import Receipts, read_receipts
from ditlab.receipts.records import LEFT_OUT, RecordedAttempt
from ditlab.spec.composition.start import first_step
from ditlab.tracking.journal import JournalContent
from ditlab.tracking.journal_index import read_content


@dataclass(frozen=True)
class RecordedRun:
    """A run's record of its course, and of what its numbers depend on."""

    course: Course
    machines: Mapping[int, MachineKind]
    """Kinds of the machines that its steps were done on, by attempt; {} where they are not recorded."""
    journal: JournalContent
    data: str = ""
    """Fingerprint of the training data; empty where it is not recorded."""
    codes: Mapping[int, str] = field(default_factory=dict)
    """Hash of the code that did its steps, by attempt; {} where it is not recorded."""


def read_recorded(run: OpenedRun) -> RecordedRun:
    """Read a run's receipts; without them, take workers from its spec, and left-out steps from its tags.

    Reads alone: no index of the journal is saved.
    """
    try:
        journal = read_content(run.folder.journal, save_index=False)
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
        left_out = [_left_out_step(default, step) for step in _left_out(journal)]
        return RecordedRun(Course(left_out, default, last, first, note), {}, journal, data)
    attempts = receipts.attempts
    executions = _executions(receipts)
    executions = with_unwritten(executions, attempts, journal)
    problems = [receipts.damage] if receipts.damage else []
    if num_lost := int((~np.isin(receipts.rows["attempt"], list(attempts))).sum()):
        problems.append(f"{num_lost:,} rows are of attempts whose line in {run.folder.receipt_attempts} is missing")
    note = f"Damaged receipts: {'; '.join(problems)}; steps without one are replayed by the spec." if problems else ""
    last = max([last, *(execution.step for execution in executions)])
    newest = attempts[max(attempts)] if attempts else None
    machines = {number: _machine(attempt) for number, attempt in attempts.items()}
    return RecordedRun(
        Course(executions, default, last, first, note), machines, journal, newest.data if newest else data,
        {number: attempt.code for number, attempt in attempts.items()},
    )  # fmt: skip


def _left_out_step(default: Execution, step: int) -> Execution:
    """Return the doing of a step that was left out, by the default settings."""
    return Execution(step, 0, default.workers, threads=default.threads, left_out=True)


def _executions(receipts: Receipts) -> list[Execution]:
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


def _machine(attempt: RecordedAttempt) -> MachineKind:
    return MachineKind(attempt.device, attempt.processor, attempt.versions)


def _left_out(journal: JournalContent) -> list[int]:
    """Steps that a run's tags say it left out."""
    text = ""
    for event in journal.events:
        if event["kind"] == "tags":
            text = event["values"].get("ditlab.left_out_steps", text)
    return sorted({int(part) for part in text.split(",") if part.strip().isdecimal()})

"""A sweep from its first trial to its report."""

import json
import math
import time
from contextlib import suppress

from ditlab.cluster.workers.channel import INTERRUPTED, KeyValueChannel
from ditlab.cluster.workers.heartbeat import CHANNEL_ERRORS
from ditlab.errors import RunFailed, UserError
from ditlab.reports.sweeps.records import ENDED, Trial
from ditlab.runs.locks import lock_run
from ditlab.runs.signals import StopRequests, stop_signals
from ditlab.storage.files import write_durably
from ditlab.sweeps.finish import SweepResult, end_sweep, num_ended
from ditlab.sweeps.folder import record_of
from ditlab.sweeps.parent import ParentRun
from ditlab.sweeps.prepare import ReadySweep
from ditlab.sweeps.results import collect, past_curves
from ditlab.sweeps.table import SweepTable
from ditlab.sweeps.trials import PlannedTrial
from ditlab.sweeps.tune.tuning import Tuning
from ditlab.tracking.journal.history import final_metrics
from ditlab.tracking.records import update_record

LOOK = 0.5  # seconds between looks at the trials
CLOCK = 10.0  # seconds between notes of the time that was used


class Running:
    """One session of a sweep. Ray is connected."""

    def __init__(self, ready: ReadySweep) -> None:
        assert ready.folder
        self._ready, self._folder = ready, ready.folder
        self._id = ready.folder.folder.run_id
        self._board = KeyValueChannel(f"sweep-{self._id}")
        self._before, self._began = ready.folder.elapsed(), time.monotonic()
        self._noted = 0.0
        self._rows: dict[int, Trial] = {}
        self._ended: set[int] = set()
        self._warned: dict[int, int] = {}
        self._is_late = False

    def run(self) -> SweepResult:
        """Raises RunFailed where no trial gave a value, or Tune itself failed; the sweep can be resumed then."""
        ready, folder = self._ready, self._folder.folder
        with lock_run(folder), ParentRun(ready) as parent:
            update_record(folder, status="running", message="", trials=ready.num_trials, total_steps=ready.num_trials)
            self._board.clear()
            past = past_curves(ready.sweep, collect(ready, self._seconds()))
            tuning = Tuning(ready, self._board, past)
            try:
                with stop_signals() as wishes:
                    self._follow(tuning, wishes, parent)
                status = self._status(wishes)
            except KeyboardInterrupt:
                update_record(folder, status="interrupted", message="ended at once")
                raise
            self._note_time()
            with suppress(*CHANNEL_ERRORS):
                self._board.clear()
            result = end_sweep(ready, status, self._seconds(), parent)
        if tuning.error:
            raise RunFailed(
                f"sweep {self._id}: Ray Tune failed ({type(tuning.error).__name__}: {tuning.error}); "
                f"`ditlab tune --resume {self._id}` goes on.",
                kind="crash",
            ) from tuning.error
        if status == "failed":
            raise RunFailed(
                f"sweep {self._id}: {ready.num_trials - num_ended(ready)} trials could not be run; "
                f"`ditlab tune --resume {self._id}` tries again.",
                kind="crash",
            )
        return result

    def _follow(self, tuning: Tuning, wishes: StopRequests, parent: ParentRun) -> None:
        sweep = self._ready.sweep
        with SweepTable(f"{sweep.name} ({self._id})", sweep.metrics, list(sweep.space)) as table:
            table.known([one.trial.number for one in self._ready.past if one.has_ended])
            tuning.start()
            is_stopping = False
            while tuning.is_alive():
                tuning.join(LOOK)
                self._is_late = sweep.time_budget is not None and self._seconds() > sweep.time_budget
                if (wishes.count or self._is_late) and not is_stopping:
                    is_stopping = True
                    self._board.put("stop", INTERRUPTED)
                    tuning.stop()
                    why = "time_budget is used up" if self._is_late else "stopping"
                    more = "" if self._is_late else "; once more ends at once"
                    table.warn(f"{why}: trials that run save a checkpoint{more}.")
                rows = self._look(table)
                leader = self._leader(rows)
                table.update(rows, leader, self._counts(rows))
                parent.show(rows, leader)
                self._note_time_now_and_then()

    def _look(self, table: SweepTable) -> list[Trial]:
        rows = []
        for trial in self._folder.trials():
            if trial.number not in self._ended:
                # A file or a board that cannot be read now may be at the next look.
                with suppress(UserError, *CHANNEL_ERRORS):
                    self._rows[trial.number] = self._row(trial, table)
            rows.append(self._rows.get(trial.number) or _waiting(trial))
        return rows

    def _row(self, trial: PlannedTrial, table: SweepTable) -> Trial:
        number, record = trial.number, record_of(self._ready.home, trial.run_id)
        self._pass_on_warnings(number, table)
        if record is None:
            return _waiting(trial)
        if record.status in ENDED:
            self._ended.add(number)
            metrics, step = final_metrics(self._ready.home.run(trial.run_id)), record.step
        else:
            progress = self._board.get(f"progress/{number}") or {}
            metrics, step = progress.get("metrics", {}), max(progress.get("step", 0), record.step)
        return Trial(
            number,
            trial.run_id,
            trial.values,
            record.status,
            step,
            record.total_steps,
            0.0,
            metrics,
            {},
            record.message,
        )

    def _pass_on_warnings(self, number: int, table: SweepTable) -> None:
        messages = self._board.get(f"warnings/{number}") or []
        for message in messages[self._warned.get(number, 0) :]:
            table.warn(f"trial {number}: {message}")
        self._warned[number] = len(messages)

    def _leader(self, rows: list[Trial]) -> int | None:
        """The number of the best trial that has finished, by the first metric."""
        name, sign = self._ready.sweep.metrics[0], -1 if self._ready.sweep.modes[0] == "max" else 1
        done = [row for row in rows if row.status == "finished" and math.isfinite(row.metrics.get(name, math.nan))]
        return min(done, key=lambda row: (sign * row.metrics[name], row.number)).number if done else None

    def _counts(self, rows: list[Trial]) -> str:
        counts = {status: sum(row.status == status for row in rows) for status in ("running", *ENDED)}
        told = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
        return f"{told or 'starting'} of {self._ready.num_trials}"

    def _status(self, wishes: StopRequests) -> str:
        if num_ended(self._ready) >= self._ready.num_trials:
            return "finished"
        return "interrupted" if wishes.count else "stopped" if self._is_late else "failed"

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._began

    def _note_time_now_and_then(self) -> None:
        if time.monotonic() - self._noted > CLOCK:
            self._noted = time.monotonic()
            self._note_time()

    def _note_time(self) -> None:
        with suppress(OSError):  # a full disk costs the clock some seconds, not the sweep
            write_durably(self._folder.clock, json.dumps({"seconds": self._seconds()}).encode())


def _waiting(trial: PlannedTrial) -> Trial:
    return Trial(trial.number, trial.run_id, trial.values, "waiting", 0, 0, 0.0, {}, {})

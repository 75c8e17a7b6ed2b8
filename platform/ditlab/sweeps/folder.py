"""Folder of a sweep: its spec, its ledger of trials, its report. Only the sweep's own process writes it."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.spec.recorded import load_recorded
from ditlab.spec.sweep.loading import load_sweep
from ditlab.spec.sweep.spec import Sweep
from ditlab.storage.files import encode_json_line, parse_json_line, write_durably
from ditlab.storage.plain_files import read_plain
from ditlab.sweeps.ledger import append_trial, read_ledger
from ditlab.sweeps.trials import PlannedTrial
from ditlab.tracking.records import RunRecord, read_record


@dataclass(frozen=True)
class SweepFolder:
    """Paths of one sweep in its run's folder, and access to its files."""

    folder: RunFolder

    @property
    def sweep_id(self) -> str:
        """Id of the sweep, which is its run's id."""
        return self.folder.run_id

    @property
    def spec(self) -> Path:
        """The resolved sweep (YAML)."""
        return self.folder.path / "sweep.yaml"

    @property
    def ledger(self) -> Path:
        """One line a trial (JSON), on the disk before the trial starts."""
        return self.folder.path / "trials.jsonl"

    @property
    def report(self) -> Path:
        """Folder of the figures, the tables and best.yaml."""
        return self.folder.path / "report"

    @property
    def clock(self) -> Path:
        """Duration of all sessions so far (JSON)."""
        return self.folder.path / "elapsed.json"

    def load_sweep(self) -> Sweep:
        """Read and validate the sweep. Raises UserError if the folder belongs to an ordinary run.

        Logs a warning where its file was changed since it was written.
        """
        if not os.path.lexists(self.spec):
            raise UserError(f"run {self.folder.run_id} is no sweep: it has no {self.spec.name}; give a sweep's id.")
        return load_recorded(self.spec, load_sweep)

    def planned_trials(self) -> list[PlannedTrial]:
        """Read the ledger: every planned trial, by number, without torn and damaged lines."""
        return read_ledger(self.ledger).trials

    def plan_trial(self, home: Home, number: int, values: Mapping[str, Any]) -> PlannedTrial:
        """Append a trial to the ledger; it is on the disk when this returns."""
        trial = PlannedTrial(number, _new_run_id(home), dict(values))
        append_trial(self.ledger, trial)
        return trial

    def load_elapsed(self) -> float:
        """Read the seconds that earlier sessions took; 0.0 where the file is missing or damaged."""
        return self._read_clock() or 0.0

    def is_clock_damaged(self) -> bool:
        """Return True if there is a file of the elapsed time, and it cannot be read."""
        return os.path.lexists(self.clock) and self._read_clock() is None

    def _read_clock(self) -> float | None:
        try:
            record = parse_json_line(read_plain(self.clock, 4096)) or {}
        except OSError:
            return None
        seconds = record.get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e12:
            return None
        return float(seconds)

    def save_elapsed(self, seconds: float) -> None:
        """Write the seconds that all sessions took. Raises OSError where the disk refuses."""
        write_durably(self.clock, encode_json_line({"seconds": seconds}))


def find_record(home: Home, trial: PlannedTrial) -> RunRecord | None:
    """Read the record of a trial's run; None before the trial has started."""
    folder = home.run(trial.run_id)
    return read_record(folder) if folder.record.exists() else None


def _new_run_id(home: Home) -> str:
    """Make a run id that no folder has yet."""
    while (home.run(run_id := secrets.token_hex(4))).path.exists():
        pass
    return run_id

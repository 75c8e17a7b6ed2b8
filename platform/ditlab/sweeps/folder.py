"""A sweep's folder: what it is, and which trial is which run. Written by the sweep's own process alone."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.spec.loading import load_sweep
from ditlab.spec.sweep.sweep import Sweep
from ditlab.storage.files import append_json_line, read_json_lines
from ditlab.sweeps.trials import PlannedTrial
from ditlab.tracking.records import RunRecord, read_record


@dataclass(frozen=True)
class SweepFolder:
    """The paths of one sweep, in its run's folder, and its ledger."""

    folder: RunFolder

    @property
    def spec(self) -> Path:
        """The resolved sweep (YAML)."""
        return self.folder.path / "sweep.yaml"

    @property
    def ledger(self) -> Path:
        """A line a trial (JSON), on the disk before the trial begins."""
        return self.folder.path / "trials.jsonl"

    @property
    def report(self) -> Path:
        """Figures, tables, best.yaml."""
        return self.folder.path / "report"

    @property
    def clock(self) -> Path:
        """Seconds that earlier sessions of the sweep took (JSON)."""
        return self.folder.path / "elapsed.json"

    def sweep(self) -> Sweep:
        """Raises UserError where the folder is no sweep's."""
        if not self.spec.exists():
            raise UserError(f"run {self.folder.run_id} is no sweep: it has no {self.spec.name}; give a sweep's id.")
        return load_sweep(self.spec, ())

    def trials(self) -> list[PlannedTrial]:
        """Every trial that was planned, by number. What a killed process left of its last line is passed over."""
        return [PlannedTrial(**line) for line in read_json_lines(self.ledger)]

    def plan(self, home: Home, number: int, values: Mapping[str, Any]) -> PlannedTrial:
        """Writes a trial down; on the disk when this returns."""
        trial = PlannedTrial(number, _new_id(home), dict(values))
        append_json_line(self.ledger, asdict(trial))
        return trial

    def elapsed(self) -> float:
        try:
            return float(json.loads(self.clock.read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0


def _new_id(home: Home) -> str:
    while (home.run(run_id := secrets.token_hex(4))).path.exists():
        pass
    return run_id


def record_of(home: Home, run_id: str) -> RunRecord | None:
    """A trial's record, None before it has begun."""
    folder = home.run(run_id)
    return read_record(folder) if folder.record.exists() else None

"""The start of a run whose journal has lost that line."""

from __future__ import annotations

from datetime import datetime

from ditlab.errors import UserError
from ditlab.home import RunFolder
from ditlab.spec.loading import build_experiment
from ditlab.spec.recorded import load_recorded_experiment
from ditlab.spec.sweep.loading import load_sweep
from ditlab.tracking.journal.format import JournalRecord
from ditlab.tracking.run_record import UnreadableRecord, read_run_record


def lost_start(folder: RunFolder) -> JournalRecord | None:
    """Make a journal's `start` record from the run's record and spec; None where these are damaged, too."""
    try:
        record = read_run_record(folder)
        if record.trials:
            base = load_sweep(folder.path / "sweep.yaml", ()).base
            experiment = build_experiment(base, str(folder.path)).tracking.experiment
        else:
            experiment = load_recorded_experiment(folder.spec).tracking.experiment
    except (UnreadableRecord, UserError):
        return None
    started = int(datetime.fromisoformat(record.created).timestamp() * 1000)
    start = {
        "kind": "start", "time": started, "run_id": record.run_id,
        "name": record.name, "experiment": experiment, "family": record.family,
    }  # fmt: skip
    return {**start, "parent": record.parent} if record.parent else start

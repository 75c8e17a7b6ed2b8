"""Trials of a sweep: planned ones, those of earlier sessions, the experiments that they train, and takeovers.

A takeover of population-based training is a checkpoint that a trial took over, and its values from then on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ditlab.home import RunFolder
from ditlab.reports.sweep_records import ENDED
from ditlab.spec.experiment import Experiment
from ditlab.spec.sweep import Pbt, Sweep
from ditlab.spec.sweep_space import experiment_for
from ditlab.storage.files import append_json_line, read_json_lines
from ditlab.tracking.journal_writer import JournalWriter

MAX_TAG_CHARACTERS = 5000  # MLflow's limit
MAX_FILE_BYTES = 16 << 20


@dataclass(frozen=True)
class PlannedTrial:
    """One line of the sweep's ledger."""

    number: int
    run_id: str
    """Id of the trial's run, which may not exist yet."""
    values: dict[str, Any]
    """Value by axis path; the initial ones in population-based training."""


@dataclass(frozen=True)
class PastTrial:
    """State in which an earlier session left a trial."""

    trial: PlannedTrial
    status: str
    """finished | stopped | failed, or another status where the trial has not ended."""
    step: int
    values: tuple[float, ...]
    """Last values of the sweep's metrics; empty where one is missing."""

    @property
    def has_ended(self) -> bool:
        """True if the trial is not run again."""
        return self.status in ENDED


@dataclass(frozen=True)
class PastCurve:
    """Metric of an ended trial by step."""

    trial_id: str
    steps: Sequence[int]
    values: Sequence[float]


def trial_experiment(sweep: Sweep, trial: PlannedTrial) -> Experiment:
    """Validate the experiment of a trial. Raises UserError for values that make no valid experiment."""
    experiment = experiment_for(sweep, trial.values, f"{sweep.name}-{trial.number:03d}")
    if isinstance(sweep.scheduler, Pbt):
        # Another trial takes over the checkpoint of the evaluation by which this one was chosen.
        kept = max(experiment.checkpoint.keep, 3)  # so that it is not pruned while another trial copies it
        checkpointing = {"every": experiment.evaluation.every, "keep": kept}
        checkpoint = experiment.checkpoint.model_copy(update=checkpointing)
        experiment = experiment.model_copy(update={"checkpoint": checkpoint})
    return experiment


@dataclass(frozen=True)
class Takeover:
    """One takeover of another trial's checkpoint."""

    step: int
    """Step that the trial had reached."""
    donor: str
    """Run id of the trial whose checkpoint was taken over."""
    donor_step: int
    """Step of that checkpoint."""
    values: dict[str, Any]
    """Value by axis path after the mutation."""
    key: str
    """Unique key of the takeover."""

    def sentence(self) -> str:
        """Describe the takeover."""
        values = ", ".join(f"{path}={_short(value)}" for path, value in self.values.items())
        return f"step {self.step}: took over run {self.donor} at step {self.donor_step}, with {values}"


def record_takeover(folder: RunFolder, takeover: Takeover, before: Experiment) -> None:
    """Write a takeover to the run's folder and tags, and its numbers as metrics `pbt/<axis>`.

    `before` is the trial's experiment up to now, whose values become the first points of the metrics.
    """
    past = read_takeovers(folder)
    append_json_line(_path(folder), asdict(takeover))
    journal = JournalWriter(folder)
    try:
        if not past:
            spec = before.to_dict()
            journal.log_metrics(0, _numbers({path: _value_at(spec, path) for path in takeover.values}))
        journal.log_metrics(takeover.step, _numbers(takeover.values))
        sentences = "; ".join(each.sentence() for each in (*past, takeover))
        journal.append("tags", values={"ditlab.exploits": sentences[-MAX_TAG_CHARACTERS:]})
    finally:
        journal.close()


def read_takeovers(folder: RunFolder) -> list[Takeover]:
    """Read all takeovers of a run, in order, without damaged lines."""
    return _read(folder)[0]


def count_damaged_takeovers(folder: RunFolder) -> int:
    """Count the lines of a run's takeovers that are damaged; a file that cannot be read counts as one."""
    return _read(folder)[1]


def _read(folder: RunFolder) -> tuple[list[Takeover], int]:
    """Return (takeovers in order, number of damaged lines)."""
    try:
        lines = read_json_lines(_path(folder), MAX_FILE_BYTES)
    except OSError:
        return [], 1
    found = [takeover for line in lines.records if (takeover := _parse(line))]
    return found, lines.num_damaged + len(lines.records) - len(found)


def _parse(line: Mapping[str, Any]) -> Takeover | None:
    """The takeover of a line; None where a field is missing, of another type, or unknown."""
    if line.keys() != {each.name for each in fields(Takeover)}:
        return None
    is_typed = (
        all(type(line[name]) is int and line[name] >= 0 for name in ("step", "donor_step"))
        and all(isinstance(line[name], str) for name in ("donor", "key"))
        and isinstance(line["values"], dict)
    )
    return Takeover(**line) if is_typed else None


def _path(folder: RunFolder) -> Path:
    return folder.path / "exploits.jsonl"


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Keep the numbers among values, under their metric names."""
    return {
        f"pbt/{path}": float(value)
        for path, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _value_at(spec: Any, path: str) -> Any:
    for key in path.split("."):
        spec = spec[key]
    return spec


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)

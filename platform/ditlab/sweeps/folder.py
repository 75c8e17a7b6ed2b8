"""Folder of a sweep: its spec, its ledger of trials, its report. Only the sweep's own process writes it.

The ledger has one line a trial, on the disk before the trial starts. Damaged lines are passed over, and counted.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.spec.files import load_recorded, load_recorded_experiment
from ditlab.spec.overrides import value_at
from ditlab.spec.sweep import Sweep, load_sweep
from ditlab.spec.sweep_axes import Axis, LogUniform, Uniform
from ditlab.spec.sweep_space import draw_values, experiment_for, written
from ditlab.storage.files import append_json_line, encode_json_line, parse_json_line, read_json_lines, write_durably
from ditlab.storage.plain_files import read_plain
from ditlab.sweeps.trials import PlannedTrial
from ditlab.tracking.records import RunRecord, list_runs, read_record

MAX_LEDGER_BYTES = 64 << 20


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


@dataclass(frozen=True)
class Ledger:
    """Trials of a ledger, by number."""

    trials: list[PlannedTrial]
    num_damaged: int = 0
    """Lines that were passed over: damaged, of another shape, or of a trial that an earlier line holds."""
    fault: str = ""
    """Reason why the file cannot be read at all."""
    found: tuple[int, ...] = ()
    """Numbers of trials whose lines are lost, and whose runs were found."""

    @property
    def is_whole(self) -> bool:
        """True if every line is a trial of the sweep, and no trial is lost."""
        return not (self.num_damaged or self.fault or self.found)

    def sentences(self, path: Path) -> list[str]:
        """Describe what is wrong with the ledger; [] for a whole one."""
        if self.is_whole:
            return []
        lines = f"{self.num_damaged} damaged line{'s' if self.num_damaged > 1 else ''} passed over"
        what = f"cannot be read ({self.fault})" if self.fault else lines if self.num_damaged else "lines are missing"
        numbers = ", ".join(map(str, self.found[:8])) + (", ..." if len(self.found) > 8 else "")
        known = f"; trials {numbers} are known by their runs" if len(self.found) > 1 else ""
        if len(self.found) == 1:
            known = f"; trial {numbers} is known by its run"
        return [f"{path}: {what}{known}."]


def read_ledger(path: Path) -> Ledger:
    """Read a ledger: the first line of each trial, by number. Reads nothing but the file, and raises nothing."""
    try:
        lines = read_json_lines(path, MAX_LEDGER_BYTES)
    except OSError as error:
        return Ledger([], fault=first_line(error))
    trials: dict[int, PlannedTrial] = {}
    run_ids: set[str] = set()
    num_damaged = lines.num_damaged
    for line in lines.records:
        trial = _parse_trial(line)
        if trial is None or trial.number in trials or trial.run_id in run_ids:
            num_damaged += 1
            continue
        trials[trial.number] = trial
        run_ids.add(trial.run_id)
    return Ledger([trials[number] for number in sorted(trials)], num_damaged)


def append_trial(path: Path, trial: PlannedTrial) -> None:
    """Append a trial; it is on the disk when this returns."""
    append_json_line(path, asdict(trial))


def check_ledger(
    path: Path, sweep: Sweep, enumerated: Sequence[Mapping[str, Any]], home: Home, sweep_id: str
) -> Ledger:
    """Read a ledger, drop lines that are no trials of the sweep, and find the runs of trials whose lines are lost.

    `enumerated` are the values of the trials by number, where they are known beforehand. Writes nothing. Raises
    UserError where it is the sweep that does not fit its ledger, and not a line of it.
    """
    ledger = read_ledger(path)
    runs = {record.run_id: record for record in list_runs(home) if record.parent}
    trials: dict[int, PlannedTrial] = {}
    others: list[PlannedTrial] = []
    for trial in ledger.trials:
        run = runs.get(trial.run_id)
        if run is not None and not run.is_altered and (run.parent, run.trial) != (sweep_id, trial.number):
            continue
        if _belongs(trial, sweep, enumerated):
            trials[trial.number] = trial
        else:
            others.append(trial)
    if others:
        raise UserError(
            f"sweep {sweep_id}: trial {others[0].number} has {written(others[0].values)} in {path}, which its "
            f"sweep.yaml does not make ({len(others)} trials differ); restore sweep.yaml, or start a new sweep without "
            "--resume."
        )
    num_damaged = ledger.num_damaged + len(ledger.trials) - len(trials)
    found = []
    for run in sorted(runs.values(), key=lambda run: run.created):
        if run.parent == sweep_id and run.trial not in trials and not run.is_altered:
            lost = _trial_of(home.run(run.run_id), run.trial, sweep, enumerated)
            if lost is not None:
                trials[run.trial] = lost
                found.append(run.trial)
    numbers = sorted(trials)
    return Ledger([trials[number] for number in numbers], num_damaged, ledger.fault, tuple(sorted(found)))


def write_ledger(path: Path, trials: Sequence[PlannedTrial]) -> None:
    """Write a ledger anew; a file in its place is kept beside it as `trials.jsonl.damaged`. Raises OSError."""
    if os.path.lexists(path):
        path.replace(path.with_name(f"{path.name}.damaged"))
    write_durably(path, b"".join(encode_json_line(asdict(trial)) for trial in trials))


def _parse_trial(line: Mapping[str, Any]) -> PlannedTrial | None:
    """The trial of a line; None where a field is missing, of another type, or unknown."""
    if line.keys() != {"number", "run_id", "values"}:
        return None
    number, run_id, values = line["number"], line["run_id"], line["values"]
    is_typed = type(number) is int and number >= 0 and isinstance(run_id, str) and isinstance(values, dict)
    if not is_typed or run_id in ("", ".", "..") or "/" in run_id or not run_id.isprintable():
        return None
    return PlannedTrial(number, run_id, values)


def _belongs(trial: PlannedTrial, sweep: Sweep, enumerated: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if a trial's values are those of its number, or, in a search, values of the sweep's axes."""
    if enumerated:
        return trial.number < len(enumerated) and dict(enumerated[trial.number]) == trial.values
    try:
        drawn = draw_values(sweep.space, lambda path, _: trial.values[path])
        if drawn != trial.values or not all(_takes(sweep.space[path], value) for path, value in drawn.items()):
            return False
        experiment_for(sweep, drawn)
    except (KeyError, UserError):
        return False
    return trial.number < (sweep.trials or 0)


def _takes(axis: Axis, value: Any) -> bool:
    if isinstance(axis, Uniform | LogUniform):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (axis.low <= value <= axis.high or math.isclose(value, axis.high))
    return axis.takes(value)


def _trial_of(
    run: RunFolder, number: int, sweep: Sweep, enumerated: Sequence[Mapping[str, Any]]
) -> PlannedTrial | None:
    """The trial that a run of the sweep trains, from its spec; None where it is none of the sweep's."""
    if enumerated:
        is_one = 0 <= number < len(enumerated)
        return PlannedTrial(number, run.run_id, dict(enumerated[number])) if is_one else None
    try:
        spec = load_recorded_experiment(run.spec).to_dict()
        values = draw_values(sweep.space, lambda path, _: value_at(spec, path.split(".")))
    except (UserError, KeyError, TypeError):
        return None
    trial = PlannedTrial(number, run.run_id, values)
    return trial if number >= 0 and _belongs(trial, sweep, enumerated) else None

"""Folder of a sweep: its spec, its ledger of trials, their takeovers. Only the sweep's own process
writes it.

The ledger has one line a trial, on the disk before the trial starts. A takeover of population-based
training is a checkpoint that a trial took over, and its values from then on. Damaged lines are
skipped, and counted.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from ditlab.errors import UserError
from ditlab.home import Below, Home, RunFolder
from ditlab.reports.sweep_records import Trial, configurations_of
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_recorded
from ditlab.spec.sweep import Pbt, Sweep, load_sweep
from ditlab.spec.sweep_space import experiment_for
from ditlab.spec.values import value_at
from ditlab.storage.files import (
    append_json_line,
    append_json_lines,
    encode_json_line,
    parse_json_line,
    read_json_lines,
    write_durably,
)
from ditlab.storage.plain_files import read_plain
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import RunRecord, read_record

MAX_LEDGER_BYTES = 64 << 20
MAX_TAG_CHARACTERS = 5000  # MLflow's limit
LineT = TypeVar("LineT")


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
    """Key of the takeover, unique among those of the trial."""

    def sentence(self) -> str:
        """Describe the takeover."""
        shown = []
        for path, value in self.values.items():
            text = f"{value:.6g}" if isinstance(value, float) else json.dumps(value)
            shown.append(f"{path}={text}")
        values = ", ".join(shown)
        return (
            f"step {self.step}: took over run {self.donor} at step {self.donor_step}, with {values}"
        )


@dataclass(frozen=True)
class SweepFolder:
    """Paths of one sweep in its run's folder, and access to its files."""

    folder: RunFolder

    @property
    def sweep_id(self) -> str:
        """Id of the sweep, which is its run's id."""
        return self.folder.run_id

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.folder.path

    spec = Below("sweep.yaml")
    """The resolved sweep (YAML)."""
    ledger = Below("trials.jsonl")
    """One line a trial (JSON), on the disk before the trial starts."""
    report = Below("report")
    """Folder of the figures, the tables and best.yaml."""
    clock = Below("elapsed.json")
    """Duration of all sessions so far (JSON)."""

    def load_sweep(self) -> Sweep:
        """Read and validate the sweep. Raises UserError if the folder belongs to an ordinary run.

        Logs a warning where its file was changed since it was written.
        """
        if not os.path.lexists(self.spec):
            raise UserError(
                f"run {self.folder.run_id} is no sweep: it has no {self.spec.name}; give a "
                "sweep's id."
            )
        return load_recorded(self.spec, load_sweep)

    def planned_trials(self) -> list[Trial]:
        """Read the ledger: every planned trial, by number, without torn and damaged lines."""
        trials: dict[int, Trial] = {}
        for trial in _read_lines(self.ledger, Trial)[0]:
            trials.setdefault(trial.number, trial)  # the first line counts
        return [trials[number] for number in sorted(trials)]

    def plan_trial(
        self,
        home: Home,
        number: int,
        values: Mapping[str, Any],
        configuration: int = -1,
        seed: int | None = None,
    ) -> Trial:
        """Append a trial to the ledger, with a run id that no folder has; it is on the disk when
        this returns.
        """
        return self.plan_trials(home, [(number, values, configuration, seed)])[0]

    def plan_trials(
        self, home: Home, places: Sequence[tuple[int, Mapping[str, Any], int, int | None]]
    ) -> list[Trial]:
        """Append trials by number, values, configuration and seed, as `plan_trial` does one; the
        disk is waited for once.
        """
        found: dict[str, Trial] = {}
        for number, values, configuration, seed in places:
            run_id = secrets.token_hex(4)
            while run_id in found or home.run(run_id).path.exists():
                run_id = secrets.token_hex(4)
            found[run_id] = Trial(
                number, run_id, dict(values), configuration=configuration, seed=seed
            )
        append_json_lines(self.ledger, (trial.to_dict() for trial in found.values()))
        return list(found.values())

    def load_elapsed(self) -> float:
        """Read the seconds that earlier sessions took; 0.0 where the file is missing or damaged."""
        seconds = None
        with suppress(OSError):
            seconds = (parse_json_line(read_plain(self.clock, 4096)) or {}).get("seconds")
        return seconds if isinstance(seconds, float) else 0.0

    def save_elapsed(self, seconds: float) -> None:
        """Write the seconds that all sessions took. Raises OSError where the disk refuses."""
        write_durably(self.clock, encode_json_line({"seconds": float(seconds)}))

    def damage(self, home: Home) -> list[str]:
        """Return a sentence for each damaged file of the sweep; [] where all are whole."""
        found = []
        num = _read_lines(self.ledger, Trial)[1]
        if num:
            found.append(
                f"{self.ledger}: damaged lines are skipped ({num}); a trial without a line "
                "is run again."
            )
        if os.path.lexists(self.clock) and not self.load_elapsed():
            found.append(f"{self.clock} is damaged: the time of earlier sessions counts as none.")
        paths = [_takeovers(home.run(trial.run_id)) for trial in self.planned_trials()]
        num = sum(_read_lines(path, Takeover)[1] for path in paths)
        if num:
            what = f"takeovers of sweep {self.sweep_id}: damaged lines are skipped ({num})"
            found.append(f"{what}; those trials have earlier values.")
        return found


def _read_lines(path: Path, kind: type[LineT]) -> tuple[list[LineT], int]:
    """Return (records of a file's lines, number of damaged lines); a file that cannot be read
    counts as one.
    """
    try:
        lines = read_json_lines(path, MAX_LEDGER_BYTES)
    except OSError:
        return [], 1
    found = []
    for record in lines.records:
        with suppress(TypeError):  # a line of another file
            found.append(kind(**record))
    return found, lines.num_damaged + len(lines.records) - len(found)


def find_record(home: Home, trial: Trial) -> RunRecord | None:
    """Read the record of a trial's run; None before the trial has started."""
    folder = home.run(trial.run_id)
    if folder.record.exists():
        return read_record(folder)
    return None


def trial_experiment(sweep: Sweep, trial: Trial) -> Experiment:
    """Validate the experiment of a trial. Raises UserError for values that make no valid
    experiment.
    """
    seed = trial.seed
    name = f"{sweep.name}-{trial.configuration:03d}"
    if seed is not None:
        name += f"-seed{seed}"
    experiment = experiment_for(sweep, trial.values, name, seed=seed)
    if not isinstance(sweep.scheduler, Pbt):
        return experiment
    # Another trial takes over the checkpoint of the evaluation by which this one was chosen: three
    # are kept, so that it is not pruned while it is copied.
    kept = {"every": experiment.evaluation.every, "keep": max(experiment.checkpoint.keep, 3)}
    return experiment.model_copy(
        update={"checkpoint": experiment.checkpoint.model_copy(update=kept)}
    )


def seed_of(sweep: Sweep, trial: Trial) -> int | None:
    """Seed of a trial of the ledger in `sweep.seed_list`; the first for one that was planned before
    there were more.
    """
    if trial.seed is None:
        return sweep.seed_list[0]
    return trial.seed


def sweep_configurations(sweep: Sweep, trials: Sequence[Trial]) -> list[Trial]:
    """Make the configurations of the trials of a sweep with several seeds; of one seed, return the
    trials.
    """
    if sweep.num_seeds < 2:
        return list(trials)
    return configurations_of(
        [replace(trial, seed=seed_of(sweep, trial)) for trial in trials], sweep.metrics
    )


def free_numbers(trials: Sequence[Trial]) -> Iterator[int]:
    """Numbers of new trials, ascending: those that no trial of the ledger has."""
    used = {trial.number for trial in trials}
    return (number for number in count() if number not in used)


def record_takeover(folder: RunFolder, takeover: Takeover, before: Experiment) -> None:
    """Write a takeover to the run's folder and tags, and its numbers as metrics `pbt/<axis>`.

    `before` is the trial's experiment up to now, whose values become the first points of the
    metrics.
    """

    def numbers(values: Mapping[str, Any]) -> dict[str, float]:
        found = {}
        for path, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[f"pbt/{path}"] = float(value)
        return found

    past = read_takeovers(folder)
    append_json_line(_takeovers(folder), asdict(takeover))
    journal = JournalWriter(folder)
    try:
        if not past:
            spec = before.to_dict()
            journal.log_metrics(
                0, numbers({path: value_at(spec, path.split(".")) for path in takeover.values})
            )
        journal.log_metrics(takeover.step, numbers(takeover.values))
        sentences = "; ".join(each.sentence() for each in (*past, takeover))
        journal.append("tags", values={"ditlab.exploits": sentences[-MAX_TAG_CHARACTERS:]})
    finally:
        journal.close()


def read_takeovers(folder: RunFolder) -> list[Takeover]:
    """Read all takeovers of a run, in order, without damaged lines."""
    return _read_lines(_takeovers(folder), Takeover)[0]


def current_values(home: Home, trial: Trial) -> dict[str, Any]:
    """Value by axis path that a trial trains with: those of its last takeover, else those of the
    ledger.
    """
    takeovers = read_takeovers(home.run(trial.run_id))
    if takeovers:
        return takeovers[-1].values
    return dict(trial.values)


def _takeovers(folder: RunFolder) -> Path:
    return folder.path / "exploits.jsonl"

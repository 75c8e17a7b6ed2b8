"""Runs as `ditlab compare` needs them: with whatever there is of a journal and a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from denoisers.counts import count_parameters
from ditlab.analysis.saved_run import SavedRun
from ditlab.cli.common import building, say
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.reports.comparison.curves import track, training_clock
from ditlab.reports.comparison.records import HELD_OUT, TRAIN_LOSS, ComparedRun
from ditlab.runs.request import checkpoint_store
from ditlab.spec.experiment import Experiment
from ditlab.spec.loading import load_experiment
from ditlab.tracking.journal.format import read_records
from ditlab.tracking.journal.history import Series, metric_history
from ditlab.tracking.parameters import flatten
from ditlab.tracking.records import RunRecord, find_training_run
from ditlab.tracking.tracker import RunTracker

MAX_RUNS = 8
"""As many as there are colours that can be told apart."""


@dataclass(frozen=True)
class OpenedRun:
    """A run, trained or on its way."""

    home: Home
    folder: RunFolder
    record: RunRecord
    experiment: Experiment

    def saved(self) -> SavedRun | None:
        """The run with its newest whole checkpoint; None where there is none yet."""
        spec = self.experiment.to_dict()
        checkpoint = checkpoint_store(self.folder, spec).newest(say)
        return None if checkpoint is None else SavedRun(self.home, self.folder, self.record, spec, checkpoint)

    def tracker(self) -> RunTracker:
        """The run's tracker, reopened."""
        tracking = self.experiment.tracking
        return RunTracker(self.folder, tracking.uri, self.home, warn=say, budget=tracking.budget)


def open_runs(texts: Sequence[str]) -> list[OpenedRun]:
    """The runs that `texts` mean (ids, prefixes or names). Raises UserError for any that cannot be compared."""
    if len(texts) < 2:
        raise UserError(f"RUN names {len(texts) or 'no'} run: a comparison needs two; `ditlab runs` lists them.")
    if len(texts) > MAX_RUNS:
        raise UserError(f"RUN names {len(texts)} runs: a comparison shows at most {MAX_RUNS}; name fewer.")
    home, opened = Home.from_environment(), dict[str, OpenedRun]()
    for text in texts:
        found = find_training_run(home, text)
        run_id = found.folder.run_id
        if run_id in opened:
            raise UserError(f"RUN {text} is run {run_id}, which is named already; name each run once, by its id.")
        if found.note:
            say(found.note)
        opened[run_id] = OpenedRun(home, found.folder, found.record, load_experiment(found.folder.spec))
    return list(opened.values())


def summarise(run: OpenedRun) -> ComparedRun:
    """All that is known of a run without its weights."""
    experiment, history, journal = run.experiment, metric_history(run.folder), _read_journal(run.folder)
    with building():
        batch_size, counts = experiment.batch.size, count_parameters(experiment.model, experiment.objective)
    loss = history.get(TRAIN_LOSS, Series())
    evaluated = {step for name, series in history.items() if name.startswith(HELD_OUT) for step in series.steps}
    clock = training_clock(loss.steps, loss.times, journal.starts, sorted(evaluated))
    weights: dict[str, float] = experiment.objective.weights.model_dump()
    speeds = np.array(history.get("train/samples_per_second", Series()).values)
    speeds = speeds[np.isfinite(speeds) & (speeds > 0)]
    return ComparedRun(
        run_id=run.folder.run_id,
        name=run.record.name,
        family=experiment.model.family,
        status=run.record.status,
        step=max([run.record.step, *loss.steps[-1:]]),
        batch_size=batch_size,
        spec=flatten(experiment.to_dict()),
        weights=sorted(weights, key=lambda name: -weights[name]),
        data=_data(experiment, journal.fingerprint),
        components=counts.components,
        training_only=counts.training_only,
        tracks={
            name: track(series.steps, series.values, batch_size, clock)
            for name, series in history.items()
            if name == TRAIN_LOSS or name.startswith(HELD_OUT)
        },
        samples_per_second=float(np.median(speeds)) if len(speeds) else None,
    )


@dataclass
class _Journal:
    starts: list[int]
    """When it was begun and resumed, milliseconds since 1970."""
    fingerprint: str
    """Of the training store; empty where the journal does not tell."""


def _read_journal(folder: RunFolder) -> _Journal:
    journal = _Journal([], "")
    if folder.journal.exists():
        for record in read_records(folder.journal):
            if record["kind"] == "start":
                journal.starts.append(record["time"])
            elif record["kind"] == "dataset":
                journal.fingerprint = record["fingerprint"]
    return journal


def _data(experiment: Experiment, fingerprint: str) -> str:
    """Training store, or what the spec says of it; and which of its rows are held out and looked at."""
    spec: dict[str, Any] = experiment.data.model_dump(mode="json")
    hold_out = spec.pop("hold_out", None)
    return f"{fingerprint or flatten(spec)}, hold_out={hold_out}, limit={experiment.evaluation.limit}"

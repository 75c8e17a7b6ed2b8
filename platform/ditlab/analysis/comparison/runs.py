"""Runs to compare: their records, curves and parameters, with whatever there is of a journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from denoisers.parameter_counts import count_parameters
from ditlab.analysis.opened_run import OpenedRun, open_found
from ditlab.analysis.user_errors import building
from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.receipts.records import TAG_PREFIX, Measurement
from ditlab.reports.comparison_records import HELD_OUT, TRAIN_LOSS, ComparedRun, ForkPoint, run_curve, training_clock
from ditlab.runs.lineage import ancestors
from ditlab.spec.experiment import Experiment
from ditlab.tracking.history import Series, series_of
from ditlab.tracking.journal import JournalContent
from ditlab.tracking.journal_index import damaged_lines, read_content
from ditlab.tracking.names import flatten
from ditlab.tracking.records import find_training_run, list_runs

EVAL_TAG = f"{TAG_PREFIX}eval"
MAX_RUNS = 8
"""Most runs of a comparison: the number of colours that can be told apart."""


def open_runs(
    texts: Sequence[str], home: Home, warn: Callable[[str], None], progress: Progress = ignore_progress
) -> list[OpenedRun]:
    """Open the runs that `texts` name (ids, prefixes or names). Raises UserError for any that cannot be compared."""
    if len(texts) < 2:
        raise UserError(f"RUN names {len(texts) or 'no'} run: a comparison needs two; `ditlab runs` lists them.")
    if len(texts) > MAX_RUNS:
        raise UserError(f"RUN names {len(texts)} runs: a comparison shows at most {MAX_RUNS}; name fewer.")
    opened: dict[str, OpenedRun] = {}
    for text in texts:
        found = find_training_run(home, text)
        run_id = found.folder.run_id
        if run_id in opened:
            raise UserError(f"RUN {text} is run {run_id}, which is named already; name each run once, by its id.")
        opened[run_id] = open_found(found, home, warn, progress)
    return list(opened.values())


def summarise(run: OpenedRun) -> ComparedRun:
    """Summarise a run from its record, spec and journal, without its weights."""
    experiment, content = run.experiment, _read_journal(run)
    history, events = series_of(content), _events(content)
    with building():
        batch_size, counts = experiment.batch.size, count_parameters(experiment.model, experiment.objective)
    loss = history.get(TRAIN_LOSS, Series())
    evaluated = [series.steps for name, series in history.items() if name.startswith(HELD_OUT)]
    steps = np.unique(np.concatenate(evaluated)) if evaluated else ()
    clock = training_clock(loss.steps, loss.times, events.starts, steps)
    weights: dict[str, float] = experiment.objective.weights.model_dump()
    speeds = history.get("train/samples_per_second", Series()).values
    speeds = speeds[np.isfinite(speeds) & (speeds > 0)]
    return ComparedRun(
        run_id=run.folder.run_id,
        name=run.record.name,
        family=experiment.model.family,
        status=run.record.status,
        step=max([run.record.step, *loss.steps[-1:].tolist()]),
        batch_size=batch_size,
        spec=flatten(experiment.to_dict()),
        weights=sorted(weights, key=lambda name: -weights[name]),
        data=_data(experiment, events.fingerprint),
        components=counts.components,
        training_only=counts.training_only,
        curves={
            name: run_curve(series.steps, series.values, batch_size, clock)
            for name, series in history.items()
            if name == TRAIN_LOSS or name.startswith(HELD_OUT)
        },
        samples_per_second=float(np.median(speeds)) if len(speeds) else None,
        measurement=events.measurement,
        line=_line(run),
    )


def _line(run: OpenedRun) -> list[ForkPoint]:
    if not run.record.start:
        return []
    records = {record.run_id: record for record in list_runs(run.home)}
    return [ForkPoint(point.run, point.step or 0) for point in ancestors(records, run.folder.run_id)]


@dataclass
class _Events:
    starts: list[int]
    """Times of its start and its resumptions, milliseconds since 1970."""
    fingerprint: str
    """Fingerprint of the training store; empty where the journal holds none."""
    measurement: Measurement | None = None
    """Measurement behind the last held-out metrics; None: the journal holds no tag of it."""


def _read_journal(run: OpenedRun) -> JournalContent:
    try:
        content = read_content(run.folder.journal)
    except FileNotFoundError:
        return JournalContent()
    except OSError as error:
        run.warn(f"{run.folder.journal} cannot be read ({first_line(error)}), so the run has no curves here")
        return JournalContent()
    if content.num_damaged:
        run.warn(f"journal of run {run.folder.run_id}: {damaged_lines(content.num_damaged)}")
    return content


def _events(content: JournalContent) -> _Events:
    events = _Events([], "")
    for record in content.events:
        if record["kind"] == "start":
            events.starts.append(record["time"])
        elif record["kind"] == "dataset":
            events.fingerprint = record["fingerprint"]
        elif record["kind"] == "tags" and EVAL_TAG in record["values"]:
            events.measurement = Measurement.parse(record["values"][EVAL_TAG])
    return events


def _data(experiment: Experiment, fingerprint: str) -> str:
    """A text that is equal for runs with the same training and held-out samples, whatever a mixture's weights."""
    spec: dict[str, Any] = experiment.data.model_dump(mode="json")
    parts: dict[str, Any] = spec.get("parts", {})
    held_out = {name: _hold_out(part) for name, part in sorted(parts.items())} if parts else _hold_out(spec)
    return f"{fingerprint or flatten(spec)}, hold_out={held_out}, limit={experiment.evaluation.limit}"


def _hold_out(spec: dict[str, Any]) -> str:
    """Take what decides the held-out samples out of the plain values of a source; return it as a text."""
    order, hold_out = spec.pop("order", {"kind": "full"})["kind"], spec.pop("hold_out", None)
    return f"{hold_out}{', by blocks' if order == 'lanes' else ''}"

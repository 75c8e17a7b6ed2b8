"""Comparison of runs: a page, its pictures and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ditlab.analysis.drawing import draw as draw_samples
from ditlab.analysis.opened_run import OpenedRun, SavedRun, logged_records, open_found
from ditlab.analysis.sample_options import SampleOptions
from ditlab.analysis.user_errors import building, output_folder, writing
from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.receipts.records import TAG_PREFIX, Measurement
from ditlab.reports.comparison import (
    MEASURED,
    TRAIN_LOSS,
    ComparedRun,
    Comparison,
    ForkPoint,
    RunCurve,
    RunSamples,
    group_of,
    training_seconds,
)
from ditlab.reports.comparison_page import summary_text, write_comparison
from ditlab.runs.lineage import ancestors
from ditlab.spec.experiment import Experiment
from ditlab.tracking.history import SPEED, JournalFacts, Series, series_of
from ditlab.tracking.journal import JournalContent, damaged_lines, read_content
from ditlab.tracking.names import flatten
from ditlab.tracking.records import find_run, find_training_run, group_members, list_runs
from ditlab.training.evaluation import read_by_sample
from ditlab_models.parameters import count_parameters

MAX_RUNS = 8
"""Most runs of a comparison: the number of colours that can be told apart."""
GROUPS = ("eval", "quality")
"""Groups of metrics whose measurements are compared."""


@dataclass(frozen=True)
class RunComparison:
    """A comparison of runs, written as a page."""

    files: list[Path]
    """`comparison.html` (one file), `comparison.md` and the pictures."""
    runs: list[ComparedRun]
    """The compared runs: parameters, curves, speed, samples."""
    summary: str
    """The result in a sentence or two."""
    unsent: dict[str, int] = field(default_factory=dict)
    """Records that wait for MLflow, by each run that the page was added to: 0 where it has arrived."""


def compare_runs(
    names: Sequence[str],
    home: Home,
    warn: Callable[[str], None],
    progress: Progress = ignore_progress,
    *,
    out: Path | None,
    grid: int,
    seed: int,
    batch: int,
    log: bool,
) -> RunComparison:
    """Compare the runs that `names` name, and write the page into `out` (None: `comparisons/` below DITLAB_HOME).

    A name may be that of a group of seeds, or `SWEEP.ARM`: its runs are one line, with means and intervals over seeds.
    `grid` samples of each run are drawn and shown; with `log` the page becomes an artifact of every run, or of a
    group's first. Raises UserError for runs that cannot be compared.
    """
    groups = open_groups(names, home, warn, progress)
    if log:
        home.check_place()
    name = f"comparisons/{'-'.join(group.run_id for group in groups)}"
    folder = output_folder(out or home.root / name)
    compared = []
    for group in groups:
        members = [summarise(run) for run in group.runs]
        if grid:  # those of the first run of a group
            progress(f"opening run {group.runs[0].folder.run_id} ({members[0].name})", 0, None, "")
            members[0] = _with_samples(group.runs[0], members[0], partial(draw, grid=grid, seed=seed, batch=batch))
        compared.append(group_of(group.run_id, group.name, members) if len(members) > 1 else members[0])
    progress("drawing the page", 0, None, "")
    with writing(folder):
        comparison = Comparison(compared, seed)
        files = write_comparison(comparison, folder)
    unsent: dict[str, int] = {}
    for run in [group.runs[0] for group in groups] if log else ():
        progress("sending the page to MLflow", len(unsent), len(groups), "runs")
        with logged_records(run.tracker()) as tracker:
            tracker.log_artifact(files[0], name)
        unsent[run.folder.run_id] = tracker.num_unsent
    return RunComparison(files, compared, summary_text(comparison), unsent)


def _with_samples(run: OpenedRun, found: ComparedRun, drawing: Callable[[SavedRun], RunSamples]) -> ComparedRun:
    """A summary with samples of the run's checkpoint, or the reason for their lack."""
    drawn, reason = None, "it has no checkpoint yet"
    try:
        if saved := run.saved_if_any():
            drawn, reason = drawing(saved), ""
    except UserError as error:  # weights that cannot be read
        reason = str(error).rstrip(".")
    return replace(found, drawn=drawn, why_no_samples=reason)


class OpenedGroup(NamedTuple):
    """Runs that are one line of a comparison: one, or several that differ in the seed alone."""

    run_id: str
    name: str
    runs: list[OpenedRun]


def open_groups(
    texts: Sequence[str], home: Home, warn: Callable[[str], None], progress: Progress = ignore_progress
) -> list[OpenedGroup]:
    """Open the runs and groups that `texts` name (ids, prefixes or names; `SWEEP.ARM`).

    Raises UserError for any that cannot be compared.
    """
    if not 2 <= len(texts) <= MAX_RUNS:
        raise UserError(f"RUN names {len(texts)} runs: a comparison takes 2 to {MAX_RUNS}; `ditlab runs` lists them.")
    known = {record.run_id: record for record in list_runs(home)}
    members = group_members(known.values())
    groups = []
    named = set[str]()
    for text in texts:
        group = _group_id(home, text)
        found = [find_training_run(home, record.run_id) for record in members.get(group, ())]
        found = found or [find_training_run(home, text)]
        for each in found:
            run_id = each.folder.run_id
            if run_id in named:
                raise UserError(f"RUN {text} is run {run_id}, which is named already; name each run once, by its id.")
            named.add(run_id)
        runs = [open_found(each, home, warn, progress) for each in found]
        first = runs[0]
        if len(runs) == 1:
            groups.append(OpenedGroup(first.folder.run_id, first.record.name, runs))
        else:
            name = known[group].name if group in known else first.record.name.rpartition("-seed")[0]
            groups.append(OpenedGroup(group, name, runs))
    return groups


def _group_id(home: Home, text: str) -> str:
    """Id of the group that a text may name: `SWEEP.ARM`, or a group's run by id, prefix or name."""
    sweep, _, arm = text.rpartition(".")
    with suppress(UserError):
        return find_run(home, text).record.run_id
    with suppress(UserError):
        return f"{find_run(home, sweep).record.run_id}.{arm}" if sweep else ""
    return ""


def summarise(run: OpenedRun) -> ComparedRun:
    """Summarise a run from its record, spec and journal, without its weights."""
    experiment, record = run.experiment, run.record
    content = _read_journal(run)
    facts = JournalFacts.of(content)
    with building():
        counts = count_parameters(experiment.model, experiment.objective, experiment.training)
    history = series_of(content)
    loss = history.get(TRAIN_LOSS, Series())
    weights: dict[str, float] = experiment.objective.weights.model_dump()
    speed = history.get(SPEED, Series())
    is_known = np.isfinite(speed.values) & (speed.values > 0)
    speeds = speed.values[is_known]

    def curve(series: Series) -> RunCurve:
        seconds = training_seconds(series.steps, speed.steps[is_known], speeds, experiment.batch.size)
        return RunCurve(series.steps.astype(float), seconds, series.values)

    records = {each.run_id: each for each in list_runs(run.home)} if record.start else {}
    return ComparedRun(
        run_id=run.folder.run_id,
        name=record.name,
        family=experiment.model.family,
        status=record.status,
        step=max([record.step, *loss.steps[-1:].tolist()]),
        batch_size=experiment.batch.size,
        spec=flatten(experiment.to_dict()),
        weights=sorted(weights, key=lambda name: -weights[name]),
        data=_data(experiment, facts.dataset.get("fingerprint", "")),
        components=counts.components,
        curves={
            name: curve(series) for name, series in history.items() if name == TRAIN_LOSS or name.startswith(MEASURED)
        },
        samples_per_second=float(np.median(speeds)) if len(speeds) else None,
        measured={group: found for group in GROUPS if (found := _measurement(facts.tags, group))},
        cost=facts.cost,
        by_sample=partial(read_by_sample, run.folder),
        line=[ForkPoint(point.run, point.step or 0) for point in ancestors(records, run.folder.run_id)],
        draws=experiment.draws(),
    )


def _measurement(tags: Mapping[str, str], group: str) -> Measurement | None:
    tag = tags.get(f"{TAG_PREFIX}{group}")
    return Measurement.parse(tag) if tag else None


def _read_journal(run: OpenedRun) -> JournalContent:
    """Content of a run's journal, empty where it cannot be read; warns of what is wrong with it."""
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


def _data(experiment: Experiment, fingerprint: str) -> str:
    """A text that is equal for runs with the same training and held-out samples, whatever a mixture's weights."""
    spec: dict[str, Any] = experiment.data.model_dump(mode="json")
    held_out = {}
    for name, part in sorted(spec.get("parts", {"": spec}).items()):
        order = part.pop("order", {"kind": "full"})["kind"]
        hold_out = part.pop("hold_out", None)
        held_out[name] = f"{hold_out}{'' if order == 'full' else ', by blocks'}"
    return f"{fingerprint or flatten(spec)}, hold_out={held_out}, limit={experiment.evaluation.limit}"


def draw(saved: SavedRun, grid: int, seed: int, batch: int) -> RunSamples:
    """Draw samples of a run under its own sampling settings, `batch` at once; those of `ditlab sample` with the seed.

    Raises UserError where the weights cannot be read, or there are no rows to complete.
    """
    drawn = draw_samples(saved, SampleOptions(grid, seed=seed, batch=batch))
    sampling = flatten(saved.experiment.to_dict()["sampling"])
    return RunSamples(
        step=drawn.step,
        settings=", ".join(f"{name}={value}" for name, value in sampling.items()),
        num=len(drawn),
        seconds=drawn.seconds / len(drawn),
        grid=drawn.plot.figure,
    )

"""Comparison of runs: which runs are compared, their summaries and samples, the page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ditlab.analysis.drawing import draw as draw_samples
from ditlab.analysis.opened_run import OpenedRun, SavedRun, open_found
from ditlab.analysis.sample_options import SampleOptions
from ditlab.analysis.user_errors import building, output_folder, writing
from ditlab.api.pages import log_files
from ditlab.api.run import Run
from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.receipts.records import recorded_measurements
from ditlab.runs.cores import computing_beside_others
from ditlab.runs.lineage import ancestors
from ditlab.spec.experiment import Experiment
from ditlab.tracking.history import SPEED, JournalFacts, Series, series_of
from ditlab.tracking.journal import TRAIN_LOSS, JournalContent, damaged_lines, read_content
from ditlab.tracking.names import flatten
from ditlab.tracking.records import (
    FoundRun,
    RunRecord,
    find_run,
    find_training_run,
    list_runs,
)
from ditlab.training.evaluation import read_by_sample
from ditlab_addons.compare.comparison import (
    MEASURED,
    ComparedRun,
    Comparison,
    ForkPoint,
    RunCurve,
    RunSamples,
    group_of,
    training_seconds,
)
from ditlab_addons.compare.page import summary_text, write_comparison
from ditlab_models.parameters import count_parameters

MAX_RUNS = 8
"""Most runs of a comparison: the number of colours that an eye can distinguish."""
_log = logging.getLogger("ditlab")


@dataclass(frozen=True)
class RunComparison:
    """A comparison of runs, written as a page."""

    files: list[Path]
    """`comparison.html` (one file), `comparison.md` and the pictures."""
    runs: list[ComparedRun]
    """The compared runs: parameters, curves, speed, samples."""
    summary: str
    """The result in a sentence or two."""
    unsent: dict[str, int]
    """Records that wait for MLflow, by each run that the page was added to: 0 where it has
    arrived.
    """


def compare(
    *runs: str | Run,
    out: str | Path | None = None,
    grid: int = 25,
    seed: int = 0,
    batch: int = 64,
    log: bool = True,
    warn: Callable[[str], None] | None = None,
    on_progress: Progress = ignore_progress,
) -> RunComparison:
    """Compare two to eight runs: spec differences, parameters, curves, speed, measured metrics and
    samples.

    A run may be named by a group of seeds, or `SWEEP.NUMBER`: its runs are one line, with means and
    intervals over seeds. Writes `comparison.html`, `comparison.md` and pictures into `out` (None:
    `comparisons/` below DITLAB_HOME). `grid` samples of each run are shown, drawn `batch` at once;
    with `log` the page becomes an artifact of every run, or of a group's first. `warn` receives
    warnings (None: the logger `ditlab`), `on_progress` (task, done, total or None, unit). Raises
    UserError for runs that cannot be compared.
    """
    names = [run.id if isinstance(run, Run) else run for run in runs]
    warn = warn or _log.warning
    with computing_beside_others(warn):
        home = Home.from_environment()
        groups = open_groups(names, home, warn, on_progress)
        if log:
            home.check_place()
        name = f"comparisons/{'-'.join(group.run_id for group in groups)}"
        folder = output_folder(home.root / name if out is None else Path(out))
        compared = []
        for group in groups:
            members = [summarise(run) for run in group.runs]
            if grid:  # those of the first run of a group
                first = group.runs[0]
                on_progress(f"opening run {first.folder.run_id} ({members[0].name})", 0, None, "")
                members[0] = _with_samples(first, members[0], grid, seed, batch)
            if len(members) > 1:
                compared.append(group_of(group.run_id, group.name, members))
            else:
                compared.append(members[0])
        on_progress("drawing the page", 0, None, "")
        with writing(folder):
            comparison = Comparison(compared, seed)
            files = write_comparison(comparison, folder)
        unsent: dict[str, int] = {}
        if not log:
            groups = []
        for group in groups:
            on_progress("sending the page to MLflow", len(unsent), len(groups), "runs")
            run_folder = group.runs[0].folder
            unsent[run_folder.run_id] = log_files(home, run_folder, files[:1], warn, name)
        return RunComparison(files, compared, summary_text(comparison), unsent)


def _with_samples(
    run: OpenedRun, found: ComparedRun, grid: int, seed: int, batch: int
) -> ComparedRun:
    """Return a summary with samples of the run's checkpoint, or with the reason for their lack."""
    try:
        saved = run.saved_if_any()
        if saved is None:
            return replace(found, why_no_samples="it has no checkpoint yet")
        return replace(found, drawn=draw(saved, grid, seed, batch))
    except UserError as error:  # weights that cannot be read
        return replace(found, why_no_samples=str(error).rstrip("."))


class OpenedGroup(NamedTuple):
    """Runs that are one line of a comparison: one, or several that differ in the seed alone."""

    run_id: str
    name: str
    runs: list[OpenedRun]


def open_groups(
    texts: Sequence[str],
    home: Home,
    warn: Callable[[str], None],
    progress: Progress = ignore_progress,
) -> list[OpenedGroup]:
    """Open the runs and groups that `texts` name (ids, prefixes or names; `SWEEP.NUMBER`).

    Raises UserError for any that cannot be compared.
    """
    if not 2 <= len(texts) <= MAX_RUNS:
        raise UserError(
            f"RUN names {len(texts)} runs: a comparison takes 2 to {MAX_RUNS}; `ditlab runs` "
            "lists them."
        )
    records = list_runs(home)
    names = {record.run_id: record.name for record in records}
    groups = []
    named = set[str]()
    for text in texts:
        group = _group_id(home, text)
        members = [record for record in records if record.group == group and not record.trials]
        if group and len(members) > 1:
            members.sort(key=lambda record: record.trial)
            found = [FoundRun(home.run(record.run_id), record) for record in members]
            name = names.get(group, members[0].name.rpartition("-seed")[0])
        else:
            found = [find_training_run(home, text)]
            group = found[0].folder.run_id
            name = found[0].record.name
        for each in found:
            run_id = each.folder.run_id
            if run_id in named:
                raise UserError(
                    f"RUN {text} is run {run_id}, which is named already; name each run once, "
                    "by its id."
                )
            named.add(run_id)
        groups.append(
            OpenedGroup(group, name, [open_found(each, home, warn, progress) for each in found])
        )
    return groups


def _group_id(home: Home, text: str) -> str:
    """Return the id of the group that a text may name: `SWEEP.NUMBER`, or a group's run by id,
    prefix or name.
    """
    with suppress(UserError):
        return find_run(home, text).record.run_id
    sweep, _, configuration = text.rpartition(".")
    with suppress(UserError):
        return f"{find_run(home, sweep).record.run_id}.{configuration}"
    return ""


def summarise(run: OpenedRun) -> ComparedRun:
    """Summarise a run from its record, spec and journal, without its weights."""
    experiment = run.experiment
    record = run.record
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
        seconds = training_seconds(
            series.steps, speed.steps[is_known], speeds, experiment.batch.size
        )
        return RunCurve(series.steps.astype(float), seconds, series.values)

    records: dict[str, RunRecord] = {}
    if record.start:
        records = {each.run_id: each for each in list_runs(run.home)}
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
            name: curve(series)
            for name, series in history.items()
            if name == TRAIN_LOSS or name.startswith(MEASURED)
        },
        samples_per_second=float(np.median(speeds)) if len(speeds) else None,
        measured=recorded_measurements(facts.tags, "eval", "quality"),
        cost=facts.cost,
        by_sample=partial(read_by_sample, run.folder),
        line=[
            ForkPoint(point.run, point.step or 0) for point in ancestors(records, run.folder.run_id)
        ],
        draws=experiment.draws(),
    )


def _read_journal(run: OpenedRun) -> JournalContent:
    """Content of a run's journal, empty where it cannot be read; warns of what is wrong with it."""
    content = JournalContent()
    try:
        content = read_content(run.folder.journal)
    except FileNotFoundError:
        pass
    except OSError as error:
        run.warn(
            f"{run.folder.journal} cannot be read ({first_line(error)}), so the run has no "
            "curves here"
        )
    if content.num_damaged:
        run.warn(f"journal of run {run.folder.run_id}: {damaged_lines(content.num_damaged)}")
    return content


def _data(experiment: Experiment, fingerprint: str) -> str:
    """A text that is equal for runs with the same training and held-out samples, whatever a
    mixture's weights.
    """
    spec: dict[str, Any] = experiment.data.model_dump(mode="json")
    held_out = {}
    for name, part in sorted(spec.get("parts", {"": spec}).items()):
        order = part.pop("order", {"kind": "full"})["kind"]
        hold_out = part.pop("hold_out", None)
        held_out[name] = f"{hold_out}{', by blocks' * (order != 'full')}"
    return (
        f"{fingerprint or flatten(spec)}, hold_out={held_out}, limit={experiment.evaluation.limit}"
    )


def draw(saved: SavedRun, grid: int, seed: int, batch: int) -> RunSamples:
    """Draw samples of a run under its own sampling settings, `batch` at once; those of `ditlab
    sample` with the seed.

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

"""Comparison of runs: a page, its pictures and its numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ditlab.analysis.opened_run import OpenedRun, SavedRun, default_device, logged_records, open_found
from ditlab.analysis.user_errors import building, output_folder, writing
from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.inputs.conditions import rows_for_samples, sample_conditions
from ditlab.inputs.noise import derived_seed
from ditlab.progress import Progress, ignore_progress
from ditlab.quality.eligibility import QUALITY_NOTE, quality_ineligibility
from ditlab.quality.evaluator import DrawnSamples, QualityEvaluator, draw_reported
from ditlab.quality.measurement import FLOAT
from ditlab.receipts.records import TAG_PREFIX, Measurement
from ditlab.reports.comparison import (
    HELD_OUT,
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
from ditlab_models.contract import Samples
from ditlab_models.parameters import count_parameters

FEWEST_SAMPLES = 100
"""Fewest samples for quality metrics: fewer than the features that quality is measured on give figures of chance."""
MAX_RUNS = 8
"""Most runs of a comparison: the number of colours that can be told apart."""
EVAL_TAG = f"{TAG_PREFIX}eval"


@dataclass(frozen=True)
class RunComparison:
    """A comparison of runs, written as a page."""

    files: list[Path]
    """`comparison.html` (one file), `comparison.md` and the pictures."""
    runs: list[ComparedRun]
    """The compared runs: parameters, curves, speed, samples and their quality."""
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
    samples: int,
    grid: int,
    seed: int,
    batch: int,
    log: bool,
) -> RunComparison:
    """Compare the runs that `names` name, and write the page into `out` (None: `comparisons/` below DITLAB_HOME).

    A name may be that of a group of seeds, or `SWEEP.ARM`: its runs are one line, with means and intervals over seeds.
    `samples` (0, or at least FEWEST_SAMPLES) are drawn from each run for quality metrics, `grid` are shown; with `log`
    the page becomes an artifact of every run, or of a group's first. Raises UserError for runs that cannot be compared.
    """
    if 0 < samples < FEWEST_SAMPLES:
        raise UserError(f"--samples {samples} are too few for quality metrics; give {FEWEST_SAMPLES} or more, or 0.")
    groups = open_groups(names, home, warn, progress)
    if log:
        home.check_place()
    name = f"comparisons/{'-'.join(group.run_id for group in groups)}"
    folder = output_folder(out or home.root / name)
    device = default_device()

    def summed(run: OpenedRun, grid: int) -> ComparedRun:
        """Summarise a run, and draw its samples."""
        found = summarise(run)
        if not samples and not grid:
            return found
        progress(f"opening run {run.folder.run_id} ({run.record.name})", 0, None, "")
        drawing = partial(draw, samples=samples, grid=grid, seed=seed, batch=batch, device=device)
        return _with_samples(run, found, drawing)

    compared = []
    for group in groups:  # samples of the first run of a group are shown
        members = [summed(run, 0 if number else grid) for number, run in enumerate(group.runs)]
        compared.append(group_of(group.run_id, group.name, members) if len(members) > 1 else members[0])
    progress("drawing the page", 0, None, "")
    with writing(folder):
        comparison = Comparison(compared, seed, batch, device.type, QUALITY_NOTE)
        files = write_comparison(comparison, folder)
    unsent: dict[str, int] = {}
    for run in [group.runs[0] for group in groups] if log else ():
        progress("sending the page to MLflow", len(unsent), len(groups), "runs")
        with logged_records(run.tracker()) as tracker:
            tracker.log_artifact(files[0], name)
        unsent[run.folder.run_id] = tracker.num_unsent
    return RunComparison(files, compared, summary_text(comparison), unsent)


def _with_samples(run: OpenedRun, found: ComparedRun, drawing: Callable[[SavedRun], RunSamples | None]) -> ComparedRun:
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
            name: curve(series) for name, series in history.items() if name == TRAIN_LOSS or name.startswith(HELD_OUT)
        },
        samples_per_second=float(np.median(speeds)) if len(speeds) else None,
        measurement=Measurement.parse(facts.tags[EVAL_TAG]) if EVAL_TAG in facts.tags else None,
        cost=facts.cost,
        line=[ForkPoint(point.run, point.step or 0) for point in ancestors(records, run.folder.run_id)],
        draws=experiment.draws(),
    )


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
        held_out[name] = f"{hold_out}{', by blocks' if order == 'lanes' else ''}"
    return f"{fingerprint or flatten(spec)}, hold_out={held_out}, limit={experiment.evaluation.limit}"


class _EvaluationCount:
    """Number of samples that a network, whose hook it is, was evaluated on."""

    num = 0

    def __call__(self, _: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor) and given[0].ndim:
            self.num += len(given[0])


def draw(saved: SavedRun, samples: int, grid: int, seed: int, batch: int, device: torch.device) -> RunSamples | None:
    """Draw samples of a run under its own sampling settings, `batch` at once; None where none are asked for.

    `grid` are shown; `samples` are measured where the family has quality metrics, a larger grid as a whole. Raises
    UserError where the weights cannot be read, or there are no rows to complete.
    """
    experiment = saved.experiment
    evaluator, reason = _evaluator(saved, device) if samples else (None, "")
    num = max(grid, samples if evaluator else 0)
    if not num:
        return None
    network = saved.network(device)
    if evaluator:
        sampler = evaluator.decoding_sampler
        conditions = evaluator.conditions(num)
    else:
        sampler = saved.sampler(experiment)
        rows = saved.data() if sampler.takes_rows != "none" else None
        inputs = saved.inputs(rows, device)
        conditions = sample_conditions(sampler, num, rows_for_samples(rows) if rows else None, inputs)
        sampler = inputs.decoding(sampler)
    num = conditions.num

    count = _EvaluationCount()
    network.register_forward_pre_hook(count)
    begun = time.perf_counter()
    # the first ones are those of `ditlab sample` with the same seed
    seed = derived_seed(seed, "samples")
    generator = torch.Generator(device).manual_seed(seed)
    drawn = draw_reported(saved.progress, sampler, network, conditions.tensors, num, generator, batch)
    seconds = time.perf_counter() - begun
    metrics = dict[str, float]()
    measurement = None
    if evaluator:
        saved.progress("measuring the quality of samples", 0, None, "")
        try:
            metrics = dict(evaluator.measure(DrawnSamples(drawn.values, evaluator.expected(num))))
            measurement = evaluator.measurement(num, batch, FLOAT, seed)
        except UserError as error:
            reason = str(error).rstrip(".")
    first = {name: values[:grid] for name, values in drawn.conditions.items()}
    shown = Samples(drawn.values[:grid], first, fields=drawn.fields)
    return RunSamples(
        step=saved.step,
        settings=", ".join(f"{name}={value}" for name, value in flatten(experiment.to_dict()["sampling"]).items()),
        num=num,
        seconds=seconds / num,
        evaluations=count.num / num if count.num else None,
        grid=sampler.show(shown) if grid else None,
        quality=metrics,
        why_no_quality=reason,
        measurement=measurement,
    )


def _evaluator(saved: SavedRun, device: torch.device) -> tuple[QualityEvaluator | None, str]:
    """Make what measures samples; None, with the reason, where quality cannot be measured."""
    try:
        data = saved.data()
        reason = quality_ineligibility(saved.experiment, data)
        if reason:
            return None, reason
        inputs = saved.inputs(data, device)
        evaluator = QualityEvaluator(saved.experiment, data, saved.home, device, saved.warn, inputs=inputs)
        evaluator.basis.check()
    except UserError as error:
        return None, str(error).rstrip(".")
    return evaluator, ""

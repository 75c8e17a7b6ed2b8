"""Evaluation of a saved run: held-out metrics, the family's own evaluation beside baselines, the
quality of samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import RenderableType
from rich.text import Text

from ditlab.analysis.opened_run import (
    SavedRun,
    chosen_rows,
    computing_threads,
    default_device,
    logged_records,
)
from ditlab.analysis.plot import Plot
from ditlab.analysis.sample_options import sampling_changes
from ditlab.data.loading.held_out import ComputedRows
from ditlab.data.splits import DataSplits
from ditlab.data.text.tokenizer import TOKENIZER_NAME
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.errors import UserError, cannot_write
from ditlab.home import Home
from ditlab.inputs.conditions import row_set
from ditlab.quality.eligibility import QUALITY_NOTE, quality_ineligibility, size_remedy
from ditlab.quality.measurement import (
    FLOAT,
    family_measurement,
    held_out_measurement,
    same_rows,
    weights_digest,
)
from ditlab.quality.text import draws_text, text_figures, text_ineligibility
from ditlab.receipts.records import (
    EVALUATED_STEP_TAG,
    EVALUATION_TAG,
    SHOWN,
    Measurement,
    evaluation_digest,
    measurement_tags,
)
from ditlab.reports.formatting import terminal_table
from ditlab.reports.text_file import save_table
from ditlab.runs.cores import computing_beside_others, thread_text
from ditlab.spec.experiment import Experiment
from ditlab.spec.overrides import Assignment
from ditlab.tracking.history import held_out_text
from ditlab.tracking.review import renew_review
from ditlab.training.evaluation import Evaluated, Protocol, StateEvaluator, evaluated_modules
from ditlab.training.inbox import EVALUATE, Inbox, Request
from ditlab_models.intervals import Estimate, doubtful_intervals, interval_ends

FOLDER = "assessment"
"""Folder below the run's media, and among MLflow's artifacts."""
MOST_ROWS = 10
"""Rows of the longest table that is shown; longer ones are for tools."""


@dataclass(frozen=True)
class CheckpointEvaluation:
    """The evaluation of a run's checkpoint."""

    run_id: str
    step: int
    """Optimiser step of the checkpoint."""
    num_samples: int
    """Held-out samples that were evaluated."""
    metrics: dict[str, float]
    """Metrics by name: `eval/...` as training measures, `held_out/...` of all samples where these
    are more, `assessed/...` of the family's evaluator, `quality/...` where requested or measured in
    training."""
    tables: dict[str, dict[str, np.ndarray]]
    """Tables by name: columns of equal length."""
    plots: dict[str, Plot]
    """Plots by name."""
    changes: Sequence[str]
    """Sources of changed fields, such as `--set sampling.steps=4`."""
    on_other_data: bool
    """True where it was to be measured on other data than the run's, if they are."""
    quality: int | None
    """Number of drawn samples behind `quality/...`; None: none."""
    measurements: Mapping[str, Measurement]
    """Measurement behind each group of metrics: `eval`, `held_out`, `assessed`, `quality`."""
    intervals: Mapping[str, Estimate]
    """95 % intervals by name: over held-out samples, and those that drawn samples came with."""
    differences: Mapping[str, Sequence[str]]
    """Differences from training in words, by group: `threads 1 in place of 2`; without the groups
    that are alike.
    """
    evaluation: str
    """Digest of the measurements, the spec and the weights: equal for one evaluation made twice."""
    left_out: Mapping[str, Sequence[str]]
    """Classes that were kept out of training, and are measured, by column: chromosomes, cell
    types.
    """
    threads: int | None
    """CPU threads that computed; None on a GPU."""
    held_out_text: str
    """Sentence on why `eval/...` and `held_out/...` differ, where both were measured."""
    files: list[Path] = field(default_factory=list)
    """Files in the run's folder, where the evaluation was added to the run."""
    num_unsent: int | None = None
    """Records that wait for MLflow, 0 where all have arrived; None: nothing was added to the
    run.
    """

    def terminal_tables(self) -> Iterator[RenderableType]:
        """Metrics and short tables for a terminal, under lines that say of what."""
        yield Text(self._heading())
        if self.left_out:
            kept_out = [f"{column} {', '.join(names)}" for column, names in self.left_out.items()]
            yield Text(f"left out of training: {'; '.join(kept_out)}")
        yield self._metrics_table()
        doubt = doubtful_intervals(self.intervals)
        if doubt:
            yield Text(doubt)
        if self.quality:
            note = QUALITY_NOTE
            if any(name.startswith("quality/") and "perplexity" in name for name in self.metrics):
                note = "read perplexity beside entropy"
            yield Text(f"quality, of {self.quality} drawn samples: {note}")
        if self.held_out_text:
            yield Text(self.held_out_text)
        for group, words in self.differences.items():
            yield Text(
                f"{group}/... is not measured as in training: {', '.join(words)}; not added to "
                "the run"
            )
        measured = [f"{name} {each.shown}" for name, each in self.measurements.items()]
        yield Text(f"measurements: {', '.join(measured)}; evaluation {self.evaluation[:SHOWN]}")
        for name, table in self.tables.items():
            if max(map(len, table.values())) <= MOST_ROWS:
                yield _family_table(table, f"assessed: {name.replace('_', ' ')}")

    def _heading(self) -> str:
        """Describe what was evaluated, and with how many threads."""
        samples = f"{self.num_samples} samples"
        changes = [*self.changes, *["other data"] * self.on_other_data]
        if changes:
            samples = f"{', '.join(changes)}, not added to the run"
        heading = f"run {self.run_id}, step {self.step}, {samples}"
        if self.threads:
            heading += f", {thread_text(self.threads)}"
        return heading

    def _metrics_table(self) -> RenderableType:
        """Metrics with their intervals, but those that have tables of their own, from the family's
        evaluator; the ends of an interval stand beside its figure.
        """
        ends = {f"{name}{end}" for name in self.intervals for end in ("_low", "_high", "_df")}
        rows = []
        for name, value in self.metrics.items():
            if name.startswith("assessed/") or name in ends:
                continue
            interval = ""
            if name in self.intervals:
                found = self.intervals[name]
                interval = f"{found.low:.5f} to {found.high:.5f}"
            rows.append((name, f"{value:.5f}", interval))
        return terminal_table(
            {"metric": "text", "value": "number", "95 % interval": "number"}, rows
        )

    def to_dict(self) -> dict[str, object]:
        """The evaluation in JSON's types, for `--json`."""
        found: dict[str, object] = {
            "run_id": self.run_id,
            "step": self.step,
            "metrics": self.metrics,
            "evaluation": self.evaluation,
            "measurements": {name: each.to_dict() for name, each in self.measurements.items()},
            "intervals": {name: [each.low, each.high] for name, each in self.intervals.items()},
            "doubtful_intervals": doubtful_intervals(self.intervals),
            "differences": {group: list(words) for group, words in self.differences.items()},
        }
        if self.left_out:
            found["left_out"] = {column: list(names) for column, names in self.left_out.items()}
        if self.plots or self.tables:
            found["tables"] = {
                name: {header: values.tolist() for header, values in columns.items()}
                for name, columns in self.tables.items()
            }
            found["files"] = [str(file) for file in self.files]
        return found


def _family_table(table: Mapping[str, np.ndarray], title: str) -> RenderableType:
    """A short table of the family's evaluator, without the ends of intervals."""
    columns = {
        header: values
        for header, values in table.items()
        if not header.endswith(("_low", "_high", "_df"))
    }
    kinds = {
        header: "id" if values.dtype.kind in "UO" else "number"
        for header, values in columns.items()
    }
    rows = [[_cell(value) for value in row] for row in zip(*columns.values(), strict=True)]
    return terminal_table(kinds, rows, title)


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.4f}"
    return str(value)


def evaluate_run(
    saved: SavedRun,
    quality: int | None,
    rows: int | None,
    batch_size: int | None,
    overrides: Sequence[str],
    other: str | None = None,
) -> CheckpointEvaluation:
    """Evaluate a run's averaged weights as training does, and over all held-out samples; add the
    result to the run.

    Figures of training's own measurement are its numbers, to the bit; of a group that cannot be
    measured so here, nothing is added. `quality` samples are drawn and measured; None: as many as
    in training. With `rows` (only the first held-out rows), `overrides`, `other` rows (a store,
    `train`) in place of the held-out ones, or a rebuilt average nothing is added to the run;
    overrides of `sampling` and of the scorer measure the quality of samples alone. `batch_size`
    None: the run's. Raises UserError where nothing is held out, or quality cannot be measured.
    """
    changes = sampling_changes({}, overrides)
    resampled = _changes_samples(changes, quality)
    experiment = saved.experiment_with(changes)
    data = _chosen_data(saved, other)
    if quality:
        _check_quality(quality, experiment, data, saved.home)
    if data.note:
        saved.warn(data.note)
    spec = saved.experiment
    if quality is None:
        quality = _quality_in_training(saved, rows, other)
    device = default_device()
    num = min(rows or len(data.held_out), len(data.held_out))
    protocol = Protocol.of_run(spec, saved.folder, saved.step)
    rank = Rank(0, 1, 0, device)
    inputs = saved.inputs(data, device, changes)
    evaluator = StateEvaluator(
        experiment,
        data,
        saved.home,
        inputs,
        rank,
        ControlChannel(rank),
        saved.warn,
        progress=saved.progress,
    )
    groups = {} if resampled else _groups(evaluator, rows, other)
    with computing_beside_others(saved.warn, protocol.threads), protocol.computing(device):
        threads = computing_threads(device)
        measured = _measure(saved, evaluator, protocol, groups, quality, batch_size)
        expected = _training_measurements(evaluator, spec, protocol, bool(quality))
        saved.progress("evaluating as the family does", 0, None, "")
        family = _FamilyFigures()
        if not resampled:
            family = _evaluate_family(saved, evaluator, num, batch_size or 256)
    metrics = measured.values | family.metrics
    measurements = measured.measurements | family.measurements
    sources = [change.source for change in changes]
    if other:
        sources.append(f"--data {other}")
    evaluation = CheckpointEvaluation(
        run_id=saved.folder.run_id,
        step=saved.step,
        num_samples=num,
        metrics=metrics,
        tables=family.tables,
        plots=family.plots,
        changes=sources,
        on_other_data=saved.anyway,
        quality=quality or None,
        measurements=measurements,
        intervals=measured.intervals | interval_ends(metrics),
        differences=_differences(measurements, expected),
        evaluation=evaluation_digest(measurements, spec.content_hash(), measured_weights(saved)),
        left_out=data.left_out,
        threads=threads,
        held_out_text=held_out_text(
            metrics, {"held_out": len(data.held_out)}, spec.evaluation.limit
        ),
    )
    if rows or sources or saved.average or saved.anyway:
        return evaluation
    return _add_to_run(saved, evaluation)


def _changes_samples(changes: Sequence[Assignment], quality: int | None) -> bool:
    """Return True if changes are of drawn samples, which alone are measured then. Raises UserError
    where none are drawn.
    """
    for change in changes:
        if change.keys[0] in ("sampling", "evaluation"):
            if quality:
                return True
            raise UserError(
                f"{change.source} changes samples alone, and none are drawn; add --quality NUM."
            )
    return False


def _quality_in_training(saved: SavedRun, rows: int | None, other: str | None) -> int:
    """Number of samples whose quality is measured as in training; 0 for other weights and rows."""
    evaluation = saved.experiment.evaluation
    if rows or saved.average or other or not evaluation.every:
        return 0
    return evaluation.quality


def _chosen_data(saved: SavedRun, other: str | None) -> DataSplits:
    """Return the run's data, with `other` rows as held-out ones where they are named. Raises
    UserError where nothing is held out.
    """
    data = saved.data()
    if other is not None:
        data = on_other_rows(saved, data, other)
    if not len(data.held_out):
        raise UserError(f"{data.note or 'nothing is held out'}; set data.hold_out in the next run.")
    return data


def _differences(
    measurements: Mapping[str, Measurement], expected: Mapping[str, Measurement]
) -> dict[str, Sequence[str]]:
    """Differences from training in words, by group, without the groups that are alike."""
    found = {
        group: each.differences(expected[group])
        for group, each in measurements.items()
        if group in expected
    }
    return {group: words for group, words in found.items() if words}


def _check_quality(num: int, experiment: Experiment, data: DataSplits, home: Home) -> None:
    """Raise UserError where the quality of `num` samples cannot be measured."""
    if draws_text(experiment):
        reason = text_ineligibility(data)
    else:
        reason = quality_ineligibility(experiment, data)
    if reason:
        remedy = " or ".join(filter(None, ["leave it out", size_remedy(experiment)]))
        raise UserError(f"--quality {num} cannot be measured, as {reason}; {remedy}.")
    for figures in text_figures(experiment, data, home):
        figures.check()


def _measure(
    saved: SavedRun,
    evaluator: StateEvaluator,
    protocol: Protocol,
    groups: Mapping[str, int | None],
    quality: int,
    batch_size: int | None,
) -> Evaluated:
    """Measure the run's weights as its training does, on groups of samples and on drawn ones."""
    spec = saved.experiment
    device = evaluator.rank.device
    precision: str = spec.training.precision
    if device.type == "cpu" and precision == "fp16":
        precision = FLOAT  # some of its operations are missing there
    network, objective = evaluated_modules(
        spec,
        partial(saved.weights, merged=False),
        evaluator.data.text,
        device,
        precision,
        protocol.workers,
    )
    return evaluator.evaluate(
        network,
        objective,
        batch_size or protocol.batch_size,
        precision=precision,
        groups=groups,
        num_shown=0,
        quality=quality,
        at_once=batch_size,
        with_intervals=True,
        inside=torch.no_grad(),
        measuring=partial(saved.progress, "measuring the quality of samples", 0, None, ""),
    )


@dataclass(frozen=True)
class _FamilyFigures:
    """Results of a family's own evaluator; empty without one."""

    metrics: dict[str, float] = field(default_factory=dict)
    tables: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    plots: dict[str, Plot] = field(default_factory=dict)
    measurements: dict[str, Measurement] = field(default_factory=dict)


def _evaluate_family(
    saved: SavedRun, evaluator: StateEvaluator, num: int, batch_size: int
) -> _FamilyFigures:
    """Evaluate the run's network by its family's own evaluator on the first `num` held-out rows."""
    spec = saved.experiment
    data = evaluator.data
    inputs = evaluator.inputs
    family: Any = spec.family.build_evaluator(spec.objective, spec.model, data.text)
    if not family:
        return _FamilyFigures()
    network = saved.network(inputs.device)
    rows = row_set(data.train, inputs), row_set(data.held_out.first(num), inputs)
    own = family.evaluate(network, *rows, data.references, batch_size)
    measurements = {}
    if own.metrics:
        measurements["assessed"] = family_measurement(
            evaluator.experiment, data, num, batch_size, inputs.device.type, saved.home
        )
    return _FamilyFigures(
        {f"assessed/{name}": value for name, value in own.metrics.items()},
        own.tables,
        {name: Plot(figure) for name, figure in own.figures.items()},
        measurements,
    )


def _groups(
    evaluator: StateEvaluator, rows: int | None, other: str | None
) -> dict[str, int | None]:
    """Numbers of held-out samples by group: `eval/...` are those of training, one name for one
    number; those of `other` rows are `held_out/...`.
    """
    limit = evaluator.experiment.evaluation.limit
    if other:
        return {"held_out": rows}
    if same_rows(evaluator.data, rows, limit):
        return {"eval": rows or limit}
    if rows:
        return {"held_out": rows}
    return {"eval": limit, "held_out": None}


def _training_measurements(
    evaluator: StateEvaluator, spec: Experiment, protocol: Protocol, has_quality: bool
) -> dict[str, Measurement]:
    """Return what a run's figures in training are measured with, by group; none where training
    evaluates nothing.
    """
    evaluation = spec.evaluation
    if not evaluation.every:
        return {}
    data = evaluator.data
    quality = evaluator.quality
    place = (spec.training.precision, protocol.device_type)
    threads = protocol.threads or torch.get_num_threads()
    found = {
        "eval": held_out_measurement(
            spec, data, evaluation.limit, *place, evaluator.home, protocol.batch_size, threads
        )
    }
    if has_quality and evaluation.quality:
        at_once = max(protocol.batch_size, evaluation.samples)
        found["quality"] = quality.measurement(
            evaluation.quality,
            at_once,
            spec.training.precision,
            trained=(spec, protocol.device_type, threads),
        )
    return found


def on_other_rows(saved: SavedRun, data: DataSplits, choice: str) -> DataSplits:
    """Return a run's data with other rows in place of the held-out ones: `train`, or all of a store
    by folder or name.

    Baselines are still fitted on the run's training rows. Raises UserError for a store that is
    none, has other fields, or whose tokens another tokeniser made.
    """
    view = chosen_rows(saved, saved.experiment.model.batch_fields(), choice)
    replaced = replace(data, held_out=view, left_out={}, note="", mixture=None)
    if view.store.fingerprint == data.held_out.store.fingerprint:
        return replaced
    manifest = view.store.manifest
    tokenizer = data.train.store.manifest.attachments.get(TOKENIZER_NAME)
    if tokenizer != manifest.attachments.get(TOKENIZER_NAME):
        raise UserError(
            f"--data {choice}: its tokens were made by another tokeniser ({TOKENIZER_NAME}) "
            "than the run's, so they mean other text; import it with the run's own (`data "
            "import text --tokenizer`, the run's folder)."
        )
    text = data.text
    if text is not None:
        bytes_per_token = manifest.text.bytes_per_token if manifest.text else None
        text = replace(text, bytes_per_token=bytes_per_token)
    if isinstance(view.rows, ComputedRows):
        # the first few are then a good sample
        view = replace(view, rows=view.rows.shuffled("ditlab.held-out"))
    return replace(replaced, held_out=view, text=text, references={})


def _add_to_run(saved: SavedRun, evaluation: CheckpointEvaluation) -> CheckpointEvaluation:
    """Write figures and tables into the run's folder, log them and the metrics; but not what
    training measures in another way, whose name would hold two measurements. Raises UserError for a
    full disk."""
    dropped = set(evaluation.differences)
    if Request(saved.step, EVALUATE) in Inbox(saved.folder.evaluator).listed():
        dropped |= {"eval", "quality"}  # the run takes in its own figures of this step
    metrics = {
        name: value
        for name, value in evaluation.metrics.items()
        if name.partition("/")[0] not in dropped
    }
    measurements = {
        group: each for group, each in evaluation.measurements.items() if group not in dropped
    }
    if not measurements:
        return evaluation
    files: list[Path] = []
    if evaluation.plots or evaluation.tables:
        files = _write_files(evaluation, saved.writable_folder(f"media/{FOLDER}"))
    saved.progress("sending the metrics to MLflow", 0, None, "")
    with logged_records(saved.tracker()) as tracker:
        tracker.journal.log_metrics(saved.step, metrics)
        digest = evaluation_digest(
            measurements, saved.experiment.content_hash(), measured_weights(saved)
        )
        of_all = {EVALUATION_TAG: digest, EVALUATED_STEP_TAG: str(saved.step)}
        tracker.set_tags(measurement_tags(measurements) | of_all)
        for file in files:
            tracker.log_artifact(file, FOLDER)
        renew_review(tracker, saved.step)
    return replace(evaluation, files=files, num_unsent=tracker.num_unsent)


def _write_files(evaluation: CheckpointEvaluation, folder: Path) -> list[Path]:
    """Write an evaluation's figures and tables. Raises UserError where the disk refuses."""
    # imports matplotlib: not before all is measured
    from ditlab.reports.rendering.render import save_figure

    files = []
    try:
        for name, plot in evaluation.plots.items():
            files.append(save_figure(plot.figure, folder / name))
        for name, table in evaluation.tables.items():
            files.append(save_table(table, folder / f"{name}.parquet"))
    except OSError as error:
        raise cannot_write(folder, error, "make DITLAB_HOME writable") from error
    return files


def measured_weights(saved: SavedRun) -> str:
    """Return a digest of the weights that an evaluation measures: of the network, and of the
    objective's modules.
    """
    tensors = dict(saved.weights(merged=False))
    for name, value in saved.weights("objective.", merged=False).items():
        tensors[f"objective.{name}"] = value
    return weights_digest(tensors)

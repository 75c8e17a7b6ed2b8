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

from ditlab.analysis.opened_run import SavedRun, chosen_rows, default_device, logged_records
from ditlab.analysis.plot import Plot
from ditlab.analysis.sample_options import sampling_changes
from ditlab.data.loading.held_out import ComputedRows
from ditlab.data.splits import DataSplits
from ditlab.data.text.tokenizer import TOKENIZER_NAME
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.errors import UserError
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
from ditlab.tracking.history import held_out_text
from ditlab.tracking.names import interval_ends
from ditlab.tracking.review import renew_review
from ditlab.training.evaluation import Ends, Protocol, StateEvaluator, evaluated_modules
from ditlab.training.inbox import EVALUATE, Inbox, Request

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
    intervals: Mapping[str, Ends]
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
        of = f"{self.num_samples} samples"
        apart = ", ".join([*self.changes, *["other data"] * self.on_other_data])
        if apart:
            of = f"{apart}, not added to the run"
        threads = f", {thread_text(self.threads)}" if self.threads else ""
        yield Text(f"run {self.run_id}, step {self.step}, {of}{threads}")
        if self.left_out:
            named = "; ".join(
                f"{column} {', '.join(names)}" for column, names in self.left_out.items()
            )
            yield Text(f"left out of training: {named}")
        # metrics of the family's evaluator are in tables of their own, and ends beside the figure
        # that they are of
        ends = {f"{name}{end}" for name in self.intervals for end in ("_low", "_high")}
        rows = [
            (
                name,
                f"{value:.5f}",
                "{:.5f} to {:.5f}".format(*self.intervals[name]) if name in self.intervals else "",
            )
            for name, value in self.metrics.items()
            if not name.startswith("assessed/") and name not in ends
        ]
        yield terminal_table({"metric": "text", "value": "number", "95 % interval": "number"}, rows)
        if self.quality:
            is_text = any(
                "perplexity" in name for name in self.metrics if name.startswith("quality/")
            )
            note = "read perplexity beside entropy" if is_text else QUALITY_NOTE
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
                columns = {
                    each: values
                    for each, values in table.items()
                    if not each.endswith(("_low", "_high"))
                }
                kinds = {
                    header: "id" if values.dtype.kind in "UO" else "number"
                    for header, values in columns.items()
                }
                cells = (
                    [
                        f"{each:.4f}" if isinstance(each, float | np.floating) else str(each)
                        for each in row
                    ]
                    for row in zip(*columns.values(), strict=True)
                )
                yield terminal_table(kinds, cells, f"assessed: {name.replace('_', ' ')}")

    def to_dict(self) -> dict[str, object]:
        """The evaluation in JSON's types, for `--json`."""
        found: dict[str, object] = {
            name: getattr(self, name) for name in ("run_id", "step", "metrics", "evaluation")
        }
        found["measurements"] = {name: each.to_dict() for name, each in self.measurements.items()}
        found["intervals"] = {name: list(ends) for name, ends in self.intervals.items()}
        found["differences"] = {group: list(words) for group, words in self.differences.items()}
        found |= (
            {"left_out": {column: list(names) for column, names in self.left_out.items()}}
            if self.left_out
            else {}
        )
        if self.plots or self.tables:
            found["tables"] = {
                name: {header: values.tolist() for header, values in columns.items()}
                for name, columns in self.tables.items()
            }
            found["files"] = [str(file) for file in self.files]
        return found


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
    resampled = [change for change in changes if change.keys[0] in ("sampling", "evaluation")]
    if resampled and not quality:
        raise UserError(
            f"{resampled[0].source} changes samples alone, and none are drawn; add --quality NUM."
        )
    experiment = saved.experiment_with(changes)
    data = saved.data()
    if other is not None:
        data = on_other_rows(saved, data, other)
    if not len(data.held_out):
        raise UserError(f"{data.note or 'nothing is held out'}; set data.hold_out in the next run.")
    is_text = draws_text(experiment)
    if quality and (
        reason := text_ineligibility(data) if is_text else quality_ineligibility(experiment, data)
    ):
        remedy = " or ".join(filter(None, ["leave it out", size_remedy(experiment)]))
        raise UserError(f"--quality {quality} cannot be measured, as {reason}; {remedy}.")
    if quality:
        for figures in text_figures(experiment, data, saved.home):
            figures.check()
    if data.note:
        saved.warn(data.note)
    spec = saved.experiment
    trains = spec.evaluation if spec.evaluation.every else None
    if quality is None:
        if trains and not rows and not saved.average and other is None:
            quality = trains.quality
        else:
            quality = 0
    device = default_device()
    num = min(rows or len(data.held_out), len(data.held_out))
    protocol = Protocol.of_run(spec, saved.folder, saved.step)
    # some of its operations are missing there
    is_half = device.type == "cpu" and spec.training.precision == "fp16"
    precision: str = FLOAT if is_half else spec.training.precision
    rank = Rank(0, 1, 0, device)
    inputs = saved.inputs(data, device, changes)
    size = batch_size or protocol.batch_size
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
    with computing_beside_others(saved.warn, protocol.threads), protocol.computing(device):
        threads = torch.get_num_threads() if device.type == "cpu" else None
        network, objective = evaluated_modules(
            spec,
            partial(saved.weights, merged=False),
            data.text,
            device,
            precision,
            protocol.workers,
        )
        if resampled:
            groups = {}
        elif other is not None:
            groups = {"held_out": rows}
        else:
            groups = _groups(evaluator, rows)
        measured = evaluator.evaluate(
            network,
            objective,
            size,
            precision=precision,
            groups=groups,
            num_shown=0,
            quality=quality,
            at_once=batch_size,
            with_intervals=True,
            inside=torch.no_grad(),
            measuring=partial(saved.progress, "measuring the quality of samples", 0, None, ""),
        )
        del network, objective
        if trains:
            expected = _training_measurements(evaluator, spec, protocol, bool(quality))
        else:
            expected = {}
        metrics = dict(measured.values)
        measurements = dict(measured.measurements)
        tables: dict[str, dict[str, np.ndarray]] = {}
        plots: dict[str, Plot] = {}
        saved.progress("evaluating as the family does", 0, None, "")
        family: Any = (
            None
            if resampled
            else spec.family.build_evaluator(spec.objective, spec.model, data.text)
        )
        if family:
            real = (row_set(each, inputs) for each in (data.train, data.held_out.first(num)))
            batch_size = batch_size or 256
            own = family.evaluate(saved.network(device), *real, data.references, batch_size)
            metrics |= {f"assessed/{name}": value for name, value in own.metrics.items()}
            tables = own.tables
            plots = {name: Plot(figure) for name, figure in own.figures.items()}
            if own.metrics:
                measurements["assessed"] = family_measurement(
                    experiment, data, num, batch_size, device.type, saved.home
                )
    others = {
        group: each.differences(expected[group])
        for group, each in measurements.items()
        if group in expected
    }
    evaluation = CheckpointEvaluation(
        run_id=saved.folder.run_id,
        step=saved.step,
        num_samples=num,
        metrics=metrics,
        tables=tables,
        plots=plots,
        changes=[
            *(change.source for change in changes),
            *([] if other is None else [f"--data {other}"]),
        ],
        on_other_data=saved.anyway,
        quality=quality or None,
        measurements=measurements,
        intervals=measured.intervals | interval_ends(metrics),
        differences={group: words for group, words in others.items() if words},
        evaluation=evaluation_digest(measurements, spec.content_hash(), measured_weights(saved)),
        left_out=data.left_out,
        threads=threads,
        held_out_text=held_out_text(
            metrics, {"held_out": len(data.held_out)}, spec.evaluation.limit
        ),
    )
    stays_apart = rows or changes or saved.average or saved.anyway or other is not None
    if stays_apart:
        return evaluation
    return _add_to_run(saved, evaluation)


def _groups(evaluator: StateEvaluator, rows: int | None) -> dict[str, int | None]:
    """Numbers of held-out samples by group: `eval/...` are those of training, one name for one
    number.
    """
    limit = evaluator.experiment.evaluation.limit
    data = evaluator.data
    alike = same_rows(data, rows, limit)
    if rows:
        return {"eval" if alike else "held_out": rows}
    if alike:
        return {"eval": limit}
    return {"eval": limit, "held_out": None}


def _training_measurements(
    evaluator: StateEvaluator, spec: Experiment, protocol: Protocol, has_quality: bool
) -> dict[str, Measurement]:
    """Return what a run's figures in training are measured with, by group."""
    evaluation = spec.evaluation
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
    own, theirs = (
        each.manifest.attachments.get(TOKENIZER_NAME) for each in (data.train.store, view.store)
    )
    if own != theirs:
        raise UserError(
            f"--data {choice}: its tokens were made by another tokeniser ({TOKENIZER_NAME}) "
            "than the run's, so they mean other text; import it with the run's own (`data "
            "import text --tokenizer`, the run's folder)."
        )
    facts = view.store.manifest.text
    text = data.text
    if text is not None:
        text = replace(text, bytes_per_token=facts.bytes_per_token if facts else None)
    if isinstance(view.rows, ComputedRows):
        # the first few are then a good sample
        view = replace(view, rows=view.rows.shuffled("ditlab.held-out"))
    return replace(replaced, held_out=view, text=text, references={})


def _add_to_run(saved: SavedRun, evaluation: CheckpointEvaluation) -> CheckpointEvaluation:
    """Write figures and tables into the run's folder, log them and the metrics; but not what
    training measures in another way, whose name would hold two measurements. Raises UserError for a
    full disk."""
    apart = set(evaluation.differences)
    if Request(saved.step, EVALUATE) in Inbox(saved.folder.evaluator).listed():
        apart |= {"eval", "quality"}  # the run takes in its own figures of this step
    metrics = {
        name: value
        for name, value in evaluation.metrics.items()
        if name.partition("/")[0] not in apart
    }
    measurements = {
        group: each for group, each in evaluation.measurements.items() if group not in apart
    }
    if not measurements:
        return evaluation
    files: list[Path] = []
    if evaluation.plots or evaluation.tables:
        # imports matplotlib: not before all is measured
        from ditlab.reports.rendering.render import save_figure

        place = saved.writable_folder(f"media/{FOLDER}")
        try:
            files += [
                save_figure(plot.figure, place / name) for name, plot in evaluation.plots.items()
            ]
            files += [
                save_table(table, place / f"{name}.parquet")
                for name, table in evaluation.tables.items()
            ]
        except OSError as error:
            raise UserError(
                f"{place} cannot be written ({error.strerror}); make room there."
            ) from error
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


def measured_weights(saved: SavedRun) -> str:
    """Return a digest of the weights that an evaluation measures: of the network, and of the
    objective's modules.
    """
    parts = {
        "": saved.weights(merged=False),
        "objective.": saved.weights("objective.", merged=False),
    }
    return weights_digest(
        {f"{prefix}{name}": each for prefix, part in parts.items() for name, each in part.items()}
    )

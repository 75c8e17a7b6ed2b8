"""Evaluation of a saved run: held-out metrics, the family's own evaluation beside baselines, the quality of samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import RenderableType
from rich.text import Text
from torch import nn

from denoisers.contract import EvaluationResult
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
from ditlab.quality.measurement import FLOAT, family_measurement, held_out_measurement, weights_digest
from ditlab.quality.text import draws_text, find_scorer, open_quality, text_ineligibility
from ditlab.receipts.records import (
    EVALUATED_STEP_TAG,
    EVALUATION_TAG,
    SHOWN,
    Measurement,
    evaluation_digest,
    measurement_tags,
)
from ditlab.reports.formatting import terminal_table
from ditlab.reports.rendering.render import save_figure
from ditlab.reports.text_file import save_table
from ditlab.tracking.review import renew_review
from ditlab.training.evaluation import metrics_by_part

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
    """Metrics by name: `eval/...` (`held_out/...` where it is another measurement than training's), `assessed/...` of
    the family's evaluator, `quality/...` where requested."""
    tables: dict[str, dict[str, np.ndarray]]
    """Tables by name: columns of equal length."""
    plots: dict[str, Plot]
    """Plots by name."""
    changes: Sequence[str] = ()
    """Sources of changed fields, such as `--set sampling.steps=4`."""
    on_other_data: bool = False
    """True where it was to be measured on other data than the run's, if they are."""
    quality: int | None = None
    """Number of drawn samples behind `quality/...`; None: none."""
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    """Measurement behind each group of metrics: `eval` or `held_out`, `assessed`, `quality`."""
    evaluation: str = ""
    """Digest of the measurements, the spec and the weights: equal for one evaluation made twice."""
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Classes that were kept out of training, and are measured, by column: chromosomes, cell types."""
    scorer: str = ""
    """SHA-256 of the language model behind `quality/generative_perplexity`; empty: none was named."""
    files: list[Path] = field(default_factory=list)
    """Files in the run's folder, where the evaluation was added to the run."""
    num_unsent: int | None = None
    """Records that wait for MLflow, 0 where all have arrived; None: nothing was added to the run."""

    def terminal_tables(self) -> Iterator[RenderableType]:
        """Metrics and short tables for a terminal, under lines that say of what."""
        of = f"{self.num_samples} samples"
        if apart := ", ".join([*self.changes, *["other data"] * self.on_other_data]):
            of = f"{apart}, not added to the run"
        yield Text(f"run {self.run_id}, step {self.step}, {of}")
        if self.left_out:
            named = "; ".join(f"{column} {', '.join(names)}" for column, names in self.left_out.items())
            yield Text(f"left out of training: {named}")
        # metrics of the family's evaluator are in tables of their own
        rows = [(name, f"{value:.5f}") for name, value in self.metrics.items() if not name.startswith("assessed/")]
        yield terminal_table({"metric": "text", "value": "number"}, rows)
        if self.quality and any("perplexity" in name for name in self.metrics if name.startswith("quality/")):
            scored = f"; scorer of SHA-256 {self.scorer}" if self.scorer else ""
            yield Text(f"quality, of {self.quality} drawn samples: read perplexity beside entropy{scored}")
        elif self.quality:
            yield Text(f"quality, of {self.quality} drawn samples: {QUALITY_NOTE}")
        measured = [f"{name} {each.shown}" for name, each in self.measurements.items()]
        yield Text(f"measurements: {', '.join(measured)}; evaluation {self.evaluation[:SHOWN]}")
        for name, table in self.tables.items():
            if max(map(len, table.values())) <= MOST_ROWS:
                columns = {each: values for each, values in table.items() if not each.endswith(("_low", "_high"))}
                kinds = {header: "id" if values.dtype.kind in "UO" else "number" for header, values in columns.items()}
                cells = (
                    [f"{each:.4f}" if isinstance(each, float | np.floating) else str(each) for each in row]
                    for row in zip(*columns.values(), strict=True)
                )
                yield terminal_table(kinds, cells, f"assessed: {name.replace('_', ' ')}")

    def to_dict(self) -> dict[str, object]:
        """The evaluation in JSON's types, for `--json`."""
        measurements = {name: each.to_dict() for name, each in self.measurements.items()}
        found = {name: getattr(self, name) for name in ("run_id", "step", "metrics", "evaluation")}
        found["measurements"] = measurements
        found |= {"left_out": {column: list(names) for column, names in self.left_out.items()}} if self.left_out else {}
        if self.plots or self.tables:
            found["tables"] = {
                name: {header: values.tolist() for header, values in columns.items()}
                for name, columns in self.tables.items()
            }
            found["files"] = [str(file) for file in self.files]
        return found


def evaluate_run(
    saved: SavedRun, quality: int | None, rows: int | None, batch_size: int, overrides: Sequence[str],
    other: str | None = None,
) -> CheckpointEvaluation:  # fmt: skip
    """Evaluate a run's averaged weights over its held-out samples, and add the result to the run.

    With `quality`, that many samples are drawn and measured. With `rows` (only the first held-out rows), `overrides`,
    `other` rows (a store, `train`) in place of the held-out ones, or a rebuilt average nothing is added to the run;
    overrides of `sampling` and of the scorer measure the quality of samples alone. Raises UserError where nothing is
    held out, or quality cannot be measured.
    """
    changes = sampling_changes({}, overrides)
    resampled = [change for change in changes if change.keys[0] in ("sampling", "evaluation")]
    if resampled and not quality:
        raise UserError(f"{resampled[0].source} changes samples alone, and none are drawn; add --quality NUM.")
    experiment, data = saved.experiment_with(changes), saved.data()
    if other is not None:
        data = on_other_rows(saved, data, other)
    if not len(data.held_out):
        raise UserError(f"{data.note or 'nothing is held out'}; set data.hold_out in the next run.")
    is_text = draws_text(experiment)
    if quality and (reason := text_ineligibility(data) if is_text else quality_ineligibility(experiment, data)):
        remedy = " or ".join(filter(None, ["leave it out", size_remedy(experiment)]))
        raise UserError(f"--quality {quality} cannot be measured, as {reason}; {remedy}.")
    scorer = find_scorer(experiment, data) if quality else None
    if data.note:
        saved.warn(data.note)
    num = min(rows or len(data.held_out), len(data.held_out))
    device = default_device()
    network, inputs = saved.network(device), saved.inputs(data, device, changes)
    found, measurements = EvaluationResult({}, {}, {}), {}
    if not resampled:
        rank = Rank(0, 1, 0, device)
        with torch.no_grad():
            held_out = metrics_by_part(
                network, saved.objective(device, data.text), saved.experiment, data, inputs,
                batch_size, num, rank, ControlChannel(rank), saved.progress,
            )  # fmt: skip
        place = device.type, saved.home
        measured = held_out_measurement(experiment, data, num, FLOAT, *place)
        of_training = experiment.evaluation.limit, experiment.training.precision
        # one name for one number: what training measures as well is `eval/...`
        is_same = held_out_measurement(experiment, data, *of_training, *place) == measured
        group = "eval" if is_same else "held_out"
        found.metrics.update({f"{group}/{name}": value for name, value in held_out.items()})
        measurements[group] = measured
        saved.progress("evaluating as the family does", 0, None, "")
        spec = saved.experiment
        if family := spec.family.build_evaluator(spec.objective, spec.model, data.text):
            real = row_set(data.train, inputs), row_set(data.held_out.first(num), inputs)
            own = family.evaluate(network, *real, data.references, batch_size)
            found.metrics.update({f"assessed/{name}": value for name, value in own.metrics.items()})
            found.tables.update(own.tables)
            found.figures.update(own.figures)
            if own.metrics:
                measured = family_measurement(experiment, data, num, batch_size, device.type, saved.home)
                measurements["assessed"] = measured
    if quality:
        evaluator = open_quality(
            experiment, data, saved.home, device, saved.warn, progress=saved.progress, inputs=inputs
        )
        drawn = evaluator.draw(network, quality, batch_size)
        saved.progress("measuring the quality of samples", 0, None, "")
        if confusion := evaluator.confusion(drawn):  # recognised by requested classes
            found.figures["caption_agreement"] = confusion
        found.metrics.update(evaluator.measure(drawn))
        measurements["quality"] = evaluator.measurement(quality, batch_size, FLOAT)
    spec_hash, weights = saved.experiment.content_hash(), measured_weights(saved, network)
    evaluation = CheckpointEvaluation(
        run_id=saved.folder.run_id,
        step=saved.step,
        num_samples=num,
        metrics=found.metrics,
        tables=found.tables,
        plots={name: Plot(figure) for name, figure in found.figures.items()},
        changes=[*(change.source for change in changes), *([] if other is None else [f"--data {other}"])],
        on_other_data=saved.anyway,
        quality=quality,
        measurements=measurements,
        evaluation=evaluation_digest(measurements, spec_hash, weights),
        left_out=data.left_out,
        scorer=scorer.sha256 if scorer else "",
    )
    stays_apart = rows or changes or saved.average or saved.anyway or other is not None
    return evaluation if stays_apart else _add_to_run(saved, found, evaluation)


def on_other_rows(saved: SavedRun, data: DataSplits, choice: str) -> DataSplits:
    """Return a run's data with other rows in place of the held-out ones: `train`, or all of a store by folder or name.

    Baselines are still fitted on the run's training rows. Raises UserError for a store that is none, has other fields,
    or whose tokens another tokeniser made.
    """
    view = chosen_rows(saved, saved.experiment.model.batch_fields(), choice)
    if view.store.fingerprint == data.held_out.store.fingerprint:
        return replace(data, held_out=view, left_out={}, note="", mixture=None)
    own, theirs = (each.manifest.attachments.get(TOKENIZER_NAME) for each in (data.train.store, view.store))
    if own != theirs:
        raise UserError(
            f"--data {choice}: its tokens were made by another tokeniser ({TOKENIZER_NAME}) than the run's, so they "
            "mean other text; import it with the run's own (`data import text --tokenizer`, the run's folder)."
        )
    facts, text = view.store.manifest.text, data.text
    if text is not None:
        text = replace(text, bytes_per_token=facts.bytes_per_token if facts else None)
    if isinstance(view.rows, ComputedRows):
        view = replace(view, rows=view.rows.shuffled("ditlab.held-out"))  # the first few are then a good sample
    return replace(data, held_out=view, text=text, references={}, mixture=None, left_out={}, note="")


def _add_to_run(saved: SavedRun, found: EvaluationResult, evaluation: CheckpointEvaluation) -> CheckpointEvaluation:
    """Write figures and tables into the run's folder, log them and the metrics. Raises UserError for a full disk."""
    files: list[Path] = []
    if found.figures or found.tables:
        place = saved.writable_folder(f"media/{FOLDER}")
        try:
            files += [save_figure(figure, place / name) for name, figure in found.figures.items()]
            files += [save_table(table, place / f"{name}.parquet") for name, table in found.tables.items()]
        except OSError as error:
            raise UserError(f"{place} cannot be written ({error.strerror}); make room there.") from error
    saved.progress("sending the metrics to MLflow", 0, None, "")
    with logged_records(saved.tracker()) as tracker:
        tracker.journal.log_metrics(saved.step, found.metrics)
        of_all = {EVALUATION_TAG: evaluation.evaluation, EVALUATED_STEP_TAG: str(saved.step)}
        tracker.set_tags(measurement_tags(evaluation.measurements) | of_all)
        for file in files:
            tracker.log_artifact(file, FOLDER)
        renew_review(tracker, saved.step)
    return replace(evaluation, files=files, num_unsent=tracker.num_unsent)


def measured_weights(saved: SavedRun, network: nn.Module) -> str:
    """Return a digest of the weights that an evaluation measures: of the network, and of the objective's modules."""
    of_objective = {f"objective.{name}": value for name, value in saved.weights("objective.").items()}
    return weights_digest(dict(network.state_dict()) | of_objective)

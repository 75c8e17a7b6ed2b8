"""Replay of a run as people ask for it: steps, their check, the worst of a run, a step under another spec."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from denoisers.figures import Bars, Figure, Panel, PointGroup, Points
from ditlab.analysis.opened_run import OpenedRun
from ditlab.analysis.plot import Plot
from ditlab.analysis.user_errors import output_folder
from ditlab.checking.replay.check import ReplayComparison, check_replay
from ditlab.checking.replay.lines import check_lines, fold, heading_lines, mean_note, step_lines, variant_lines
from ditlab.checking.replay.opening import ReplaySource, open_source, targets_of
from ditlab.checking.replay.replaying import ReplayedSteps, replay_executions
from ditlab.checking.replay.segment import ReplayedStep, ReplayPlan
from ditlab.checking.replay.stepper import SampleLoss, layers_of
from ditlab.checkpoints.start_point import order_changes
from ditlab.data.preview import row_pictures, row_texts
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.runs.forks import shape_differences, tensor_shapes
from ditlab.runs.launch import build_model
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.files import build_experiment
from ditlab.spec.overrides import assign, parse_overrides

MOST_LISTED = 6
"""Tensors of other shapes that a message lists."""
NEIGHBOURS = 16
"""Steps on each side whose median a step is compared with."""
HALF = 0.5
"""Part of the loss that the samples named as its carriers have together."""
MOST_PICTURES = 64
MOST_LAYERS = 40


@dataclass(frozen=True)
class ReplayReport:
    """Lines, JSON and pictures of a replay."""

    lines: list[str]
    """At most 80 columns each."""
    record: dict[str, Any]
    """The same in JSON's types, with all samples."""
    figures: Mapping[str, Figure] = field(default_factory=dict, repr=False)
    """Pictures by file name, without suffix."""
    holds: bool = True
    """False where a check found something off."""

    def save(self, folder: str | Path) -> list[Path]:
        """Write the pictures as PNG; return their paths. Raises UserError where the disk refuses."""
        place = output_folder(Path(folder))
        return [Plot(figure).save(place / f"{name}.png") for name, figure in self.figures.items()]

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True)
class ReplayRequest:
    """Choice of the steps of a run that are replayed, and how."""

    step: int | None = None
    """First step, from 1; None only with `worst`."""
    to: int | None = None
    """Last step; None: the first one alone."""
    check: bool = False
    """Compare with journal and receipts, instead of showing each sample."""
    worst: int | None = None
    """Number of steps with the largest losses or norms that are replayed and explained."""
    changes: tuple[str, ...] = ()
    """Overrides (`training.clip.max_norm=0.5`) under which the step is done once more."""
    anyway: bool = False
    """Go on with other code, data or device than the run's."""

    def check_options(self) -> None:
        """Raise UserError for options that exclude each other."""
        asked = [
            name for name, given in (("--check", self.check), ("--worst", self.worst), ("--set", self.changes)) if given
        ]
        if len(asked) > 1:
            raise UserError(f"{asked[0]} and {asked[1]} exclude each other; give one of them.")
        if self.worst and (self.step is not None or self.to is not None):
            raise UserError("--worst finds its steps itself; leave --step and --to out.")
        if self.step is None and not self.worst:
            raise UserError("nothing says which step to replay; give --step N, or --worst K.")
        if self.changes and self.to not in (None, self.step):
            raise UserError(f"--set replays a single step, and --to {self.to} names more; leave --to out.")


def replay_run(run: OpenedRun, request: ReplayRequest) -> ReplayReport:
    """Replay what is asked for, without writing anything into the run. Raises as `replay_steps` does."""
    request.check_options()
    source = open_source(run, request.anyway)
    if request.worst:
        return _worst(source, request.worst)
    assert request.step is not None
    last = request.to if request.to is not None else request.step
    if request.check:
        check = check_replay(source, request.step, last)
        record = _record(check.replayed, {})
        record |= {
            "holds": check.holds, "bound": check.tolerance.relative, "bound_reason": check.tolerance.reason,
            "comparisons": [comparison_record(each) for each in check.comparisons],
            "unchecked": list(check.unchecked),
        }  # fmt: skip
        return ReplayReport([*heading_lines(check.replayed), *check_lines(check)], record, holds=check.holds)
    if request.changes:
        found = replay_changed(source, request.step, request.changes)
        return _shown(source, found, variant_lines(found.steps, request.changes), {"changes": list(request.changes)})
    source.check_steps(request.step, last)
    found = replay_executions(source, targets_of(source, request.step, last), range(request.step, last + 1))
    return _shown(source, found, [], {})


def _worst(source: ReplaySource, num: int) -> ReplayReport:
    history = loss_history(source)
    steps = worst_steps(history, num)
    found = replay_executions(source, [source.history.final(step) for step in sorted(steps)], steps)
    by_step = {step.step: step for step in found.steps}
    sentences = [explain(by_step[step], history) for step in steps]
    title = f"the {len(steps)} steps whose loss or norm stands out most against the 16 steps on each side:"
    lines = ["", *fold(title), *(line for text in sentences for line in fold(text, "  "))]
    return _shown(source, found, lines, {"worst": steps, "explanations": sentences})


def _shown(
    source: ReplaySource, found: ReplayedSteps, first_lines: Sequence[str], extra: Mapping[str, Any]
) -> ReplayReport:
    """Return a report that shows each step sample by sample."""
    view, lines, figures = source.data.train, [*heading_lines(found), *first_lines], {}
    texts: dict[int, list[str]] = {}
    for step in found.steps:
        texts[step.step] = row_texts(view, step.indices, source.data.text)
        lines += step_lines(step, texts[step.step])
        name = f"step-{step.step:08d}{'-changed' if step.is_variant else ''}"
        if (figure := step_figure(view, step, texts[step.step])) is not None:
            figures[name] = figure
    return ReplayReport(lines, _record(found, texts) | dict(extra), figures)


def _record(found: ReplayedSteps, texts: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    return {
        "run_id": found.run_id, "name": found.name, "origins": list(found.origins), "remarks": list(found.remarks),
        "steps": [step_record(step, texts.get(step.step, ())) for step in found.steps],
    }  # fmt: skip


def replay_changed(source: ReplaySource, step: int, overrides: Sequence[str]) -> ReplayedSteps:
    """Replay a step by the run's own spec and once more with overrides (`training.clip.max_norm=0.5`).

    Raises UserError for overrides that do not fit the run's state or change what the step consumes.
    """
    source.check_steps(step, step)
    target = source.history.final(step)
    if target.skipped:
        raise UserError(f"--step {step}: the run has left this step's batch out, so that nothing follows from --set.")
    changed = changed_experiment(source, source.spec_of(target), overrides)
    spec = changed.to_dict()
    own_workers = source.spec_of(target)["resources"]["workers"]
    workers = changed.resources.max_workers if spec["resources"]["workers"] != own_workers else target.workers

    def change(plan: ReplayPlan) -> ReplayPlan:
        return plan.with_variant(spec, workers)

    return replay_executions(source, [target], (step,), change)


def changed_experiment(source: ReplaySource, spec: Mapping[str, Any], overrides: Sequence[str]) -> Experiment:
    """Return the experiment with overrides applied. Raises UserError where the run's state does not fit it."""
    name = f"run {source.run.folder.run_id}"
    own = class_for(spec).model_validate(dict(spec))
    changed = build_experiment(assign(dict(spec), parse_overrides(overrides), class_for), name)
    given = ", ".join(f"--set {text}" for text in overrides)
    if changed.model.family != own.model.family:
        raise UserError(
            f"{given}: the state of {name} is of model.family={own.model.family}; leave the family as it is."
        )
    if moved := order_changes(spec, changed):
        raise UserError(
            f"{given} changes which samples the step takes ({', '.join(moved)}), so that the two would not be "
            "compared; leave data, seed and batch.size as they are."
        )
    if changed.optimizer.kind != own.optimizer.kind:
        raise UserError(
            f"{given}: the state of {name} is that of optimizer.kind={own.optimizer.kind}; leave optimizer.kind as "
            "it is."
        )
    if others := shape_differences(build_model(changed), tensor_shapes(build_model(own))):
        more = f" and {len(others) - MOST_LISTED} more" if len(others) > MOST_LISTED else ""
        raise UserError(
            f"{given}: the state of {name} does not fit, in {len(others)} tensors: "
            f"{', '.join(others[:MOST_LISTED])}{more}; change what leaves their shapes alone."
        )
    return changed


@dataclass(frozen=True)
class LossHistory:
    """Losses and norms of a run by step, as the last execution of each step had them."""

    steps: np.ndarray
    """int64, ascending."""
    losses: np.ndarray
    """float64."""
    norms: np.ndarray
    """float64, before clipping; NaN where none was recorded."""

    def around(self, values: np.ndarray, step: int) -> float:
        """Return the median of finite values of a step's neighbours, without its own; NaN where there are none."""
        place = int(np.searchsorted(self.steps, step))
        low, high = max(0, place - NEIGHBOURS), place + NEIGHBOURS + 1
        near = np.concatenate([values[low:place], values[place + 1 : high]])
        near = near[np.isfinite(near)]
        return float(np.median(near)) if len(near) else math.nan

    def ratio(self, values: np.ndarray, step: int) -> float:
        """Return a step's value over the median of its neighbours'; infinite where the value is not finite."""
        value, median = float(values[int(np.searchsorted(self.steps, step))]), self.around(values, step)
        if not math.isfinite(value):
            return math.inf
        return value / median if math.isfinite(median) and median > 0 else 1.0


def loss_history(source: ReplaySource) -> LossHistory:
    """Return losses and norms from the receipts, else from the journal. Raises UserError where neither has any."""
    done = map(source.history.final, sorted({each.step for each in source.history.executions if each.is_recorded}))
    recorded = [each for each in done if each.loss is not None and not each.skipped]
    if recorded:
        rows = [(each.step, each.loss, each.norm) for each in recorded]
        table = np.array(rows, np.float64)
        return LossHistory(table[:, 0].astype(np.int64), table[:, 1], table[:, 2])
    logged = [each for step, each in source.journaled.items() if step > source.history.first]
    if not logged:
        raise UserError(f"run {source.run.folder.run_id} has recorded no loss yet; wait for its first step.")
    return LossHistory(
        np.array([each.step for each in logged], np.int64),
        np.array([each.loss for each in logged]),
        np.array([math.nan if each.norm is None else each.norm for each in logged]),
    )


def worst_steps(history: LossHistory, num: int) -> list[int]:
    """Return the steps whose loss or norm stands out most against its neighbours' median, the worst first."""
    scores = [
        (max(history.ratio(history.losses, step), history.ratio(history.norms, step)), -int(step))
        for step in history.steps.tolist()
    ]
    return [-step for _, step in sorted(scores, reverse=True)[:num]]


def explain(step: ReplayedStep, history: LossHistory) -> str:
    """Return a sentence on what is behind a step's loss and norm."""
    parts = [
        _against("loss", step.loss, history, history.losses, step.step),
        _against("norm", step.norm, history, history.norms, step.step),
    ]
    if step.clip_factor > 1 and step.norm is not None:
        parts[1] += f", clipped to {step.clipped_norm:.4g}"
    if (lr := step.metrics.get("train/lr")) is not None:
        parts.append(f"learning rate {lr:.3g}")
    return f"step {step.step:,}: {'; '.join(parts)}; {carriers(step)}."


def _against(name: str, value: float | None, history: LossHistory, values: np.ndarray, step: int) -> str:
    if value is None:
        return f"no {name}"
    if not math.isfinite(value):
        return f"{name} {value}, not finite"
    median = history.around(values, step)
    if not math.isfinite(median) or median == 0:
        return f"{name} {value:.4g}"
    return f"{name} {value:.4g}, {value / median:.3g} times its neighbours' median"


def carriers(step: ReplayedStep) -> str:
    """Return a clause on the samples that carry a step's loss, and at which times."""
    samples = step.samples
    if not samples:
        return "its samples were not measured"
    bad = [each for each in samples if not math.isfinite(each.loss)]
    if bad:
        return f"{len(bad)} of {len(samples)} samples have no finite loss: {_listed(bad)}"
    losses = np.array([sample.loss for sample in samples])
    order = np.argsort(-losses, kind="stable")
    total = losses.sum()
    if total <= 0:
        return f"the largest loss of its {len(samples)} samples is {_listed([samples[order[0]]])}"
    num = int(np.searchsorted(np.cumsum(losses[order]), HALF * total)) + 1
    if num <= max(1, len(samples) // 8):
        few = [samples[place] for place in order[:num]]
        verb = "carry" if num > 1 else "carries"
        return f"{num} of {len(samples)} samples {verb} half of the loss: {_listed(few)}"
    top = samples[order[0]]
    return f"no few samples carry it: the largest of {len(samples)} has {top.loss / total:.0%}, {_listed([top])}"


def _listed(samples: Sequence[SampleLoss]) -> str:
    shown = ", ".join(_described(sample) for sample in samples[:3])
    return shown + (f" and {len(samples) - 3} more" if len(samples) > 3 else "")


def _described(sample: SampleLoss) -> str:
    time = "" if sample.time is None else f", time {sample.time:.3g}"
    return f"row {sample.row:,} (loss {sample.loss:.4g}{time})"


def step_figure(view: View, step: ReplayedStep, texts: Sequence[str]) -> Figure | None:
    """Draw a step; None where it was not measured sample by sample."""
    if not step.samples:
        return None
    order = sorted(step.samples, key=lambda sample: -sample.loss if math.isfinite(sample.loss) else -math.inf)
    few = order[:MOST_PICTURES]
    captions = [f"{sample.loss:.3g}" + ("" if sample.time is None else f" t={sample.time:.2g}") for sample in few]
    places = np.array([sample.place for sample in few])
    panels: list[Panel] = []
    grid = row_pictures(view, step.indices[places], captions, "samples by loss, the largest first")
    if grid is not None:
        panels.append(grid)
    else:
        names = [f"{texts[sample.place]} (row {sample.row})"[-60:] for sample in few[:MOST_LAYERS]]
        losses = np.array([sample.loss for sample in few[:MOST_LAYERS]])
        panels.append(Bars(names, losses, title="samples by loss", x_label="loss"))
    timed = [sample for sample in step.samples if sample.time is not None and math.isfinite(sample.loss)]
    if timed:
        group = PointGroup(
            np.array([sample.time for sample in timed]), np.array([sample.loss for sample in timed]), "samples"
        )
        panels.append(Points([group], title="loss by time", x_label="time or noise level", y_label="loss"))
    layers = sorted(layers_of(step.norms or {}), key=lambda layer: -layer.gradient)[:MOST_LAYERS]
    if layers:
        names = [layer.layer for layer in layers]
        norms = np.array([layer.gradient for layer in layers])
        panels.append(Bars(names, norms, title="gradient norm by layer", x_label="norm before clipping"))
        ratios = np.array([layer.ratio or 0.0 for layer in layers])
        panels.append(Bars(names, ratios, title="update over weights", x_label="ratio of norms"))
    loss = "skipped" if step.loss is None else f"loss {step.loss:.5g}"
    variant = " under another spec" if step.is_variant else ""
    return Figure(panels, title=f"step {step.step:,}{variant}: {loss}")


def step_record(step: ReplayedStep, texts: Sequence[str]) -> dict[str, Any]:
    """Return a step in JSON's types."""
    execution = step.execution
    return {
        "step": step.step, "attempt": execution.attempt or None, "workers": execution.workers,
        "halvings": execution.microbatch_splits, "left_out": execution.skipped, "is_variant": step.is_variant,
        "metrics": dict(step.metrics), "clipped_norm": step.clipped_norm, "update_norm": step.update_norm,
        "digest": f"{step.digest:016x}", "rows": step.rows.tolist(),
        "samples": [
            {
                "place": each.place, "row": each.row, "text": texts[each.place] if each.place < len(texts) else "",
                "loss": each.loss, "components": each.components, "time": each.time,
                "draws": {draw.name: draw.value for draw in each.draws},
            }
            for each in step.samples
        ],
        "loss_is_mean_of_samples": not mean_note(step) if step.samples else None,
        "layers": [
            {
                "layer": each.layer, "gradient_norm": each.gradient, "update_norm": each.update,
                "weight_norm": each.weight, "update_over_weight": each.ratio,
            }
            for each in layers_of(step.norms or {})
        ],
    }  # fmt: skip


def comparison_record(each: ReplayComparison) -> dict[str, Any]:
    """Return a comparison in JSON's types; digests as hexadecimal text."""
    is_digest = each.quantity == "samples"
    recorded, replayed = (
        (f"{value:016x}" if is_digest and value is not None else value) for value in (each.recorded, each.replayed)
    )
    return {
        "step": each.step, "attempt": each.attempt or None, "quantity": each.quantity, "source": each.source,
        "recorded": recorded, "replayed": replayed, "distance": each.distance, "bound": each.bound,
        "holds": each.holds,
    }  # fmt: skip

"""Replay of a run as people ask for it: steps, their check, the worst of a run, a step under another spec."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.analysis.opened_run import OpenedRun
from ditlab.analysis.plot import Plot
from ditlab.analysis.user_errors import output_folder
from ditlab.checkpoints.start_point import order_changes
from ditlab.data.preview import row_pictures, row_texts
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.progress import ignore
from ditlab.runs.forks import shape_differences, tensor_shapes
from ditlab.runs.launch import build_model
from ditlab.spec.experiment import class_for
from ditlab.spec.files import build_experiment
from ditlab.spec.overrides import assign, parse_overrides
from ditlab_addons.check.replay.check import ReplayCheck, ReplayComparison, check_replay
from ditlab_addons.check.replay.history import Execution, JournaledStep
from ditlab_addons.check.replay.replaying import ReplayedSteps, ReplaySource, open_source, replay_executions
from ditlab_addons.check.replay.stepper import ReplayedStep, SampleLoss, layers_of
from ditlab_models.figures import Bars, Figure, Panel, PointGroup, Points

MOST_LISTED = 6
"""Tensors of other shapes that a message lists."""
NEIGHBOURS = 16
"""Steps on each side whose median a step is compared with."""
WIDTH = 80
MOST_SAMPLES = 8
"""Samples of a step that the terminal shows, those with the largest losses; JSON has all."""
MEAN_TOLERANCE = 1e-3
"""Relative distance of a step's loss from the mean of its samples' from which on it counts as no mean of them."""
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


def replay_run(
    run: OpenedRun, step: int | None, to: int | None, *, check: bool, worst: int | None, changes: Sequence[str],
    anyway: bool, on_cost: Callable[[str, bool], None] = ignore,
) -> ReplayReport:  # fmt: skip
    """Replay what is asked for, without writing anything into the run; the arguments are those of `functions.replay`.

    Raises UserError for options that exclude each other, else as `replay_executions` does.
    """
    given = {"--check": check, "--worst": worst, "--set": changes}
    if len(asked := [name for name, value in given.items() if value]) > 1:
        raise UserError(f"{asked[0]} and {asked[1]} exclude each other; give one of them.")
    if worst and (step is not None or to is not None):
        raise UserError("--worst finds its steps itself; leave --step and --to out.")
    if changes and to not in (None, step):
        raise UserError(f"--set replays a single step, and --to {to} names more; leave --to out.")
    if not worst and step is None:
        raise UserError("nothing says which step to replay; give --step N, or --worst K.")
    source = open_source(run, anyway, on_cost)
    checked: ReplayCheck | None = None
    first_lines: list[str] = []
    extra: dict[str, Any] = {}
    if worst or step is None:
        history = loss_history(source)
        steps = worst_steps(history, worst or 0)
        found = replay_executions(source, [source.history.final(each) for each in sorted(steps)], steps)
        by_step = {each.step: each for each in found.steps}
        sentences = [explain(by_step[each], history) for each in steps]
        title = f"the {len(steps)} steps whose loss or norm stands out most against the 16 steps on each side:"
        first_lines = ["", *fold(title), *(line for text in sentences for line in fold(text, "  "))]
        extra = {"worst": steps, "explanations": sentences}
    elif check:
        checked = check_replay(source, step, step if to is None else to)
        found, first_lines = checked.replayed, check_lines(checked)
        extra = {
            "holds": checked.holds, "bound": checked.tolerance.relative, "bound_reason": checked.tolerance.reason,
            "comparisons": [_comparison_record(each) for each in checked.comparisons],
            "unchecked": list(checked.unchecked),
        }  # fmt: skip
    elif changes:
        found = replay_changed(source, step, changes)
        first_lines, extra = variant_lines(found.steps, changes), {"changes": list(changes)}
    else:
        last = step if to is None else to
        found = replay_executions(source, source.targets(step, last), range(step, last + 1))
    head = f"run {run.folder.run_id} ({run.record.name}), {source.history.last:,} steps done; replayed "
    heading = [head + "; ".join(found.origins), *source.remarks]
    lines = [*(line for text in heading for line in fold(text)), *first_lines]
    records, figures = [], {}
    for each in found.steps:
        texts = row_texts(source.data.train, each.indices, source.data.text) if each.samples and not checked else []
        records.append(step_record(each, texts))
        if not checked:
            lines += step_lines(each, texts)
            if each.samples:
                name = f"step-{each.step:08d}{'-changed' if each.is_variant else ''}"
                figures[name] = step_figure(source.data.train, each, texts)
    record = {
        "run_id": run.folder.run_id, "name": run.record.name, "origins": list(found.origins),
        "remarks": list(source.remarks), "steps": records,
    }  # fmt: skip
    return ReplayReport(lines, record | extra, figures, holds=not checked or checked.holds)


def replay_changed(source: ReplaySource, step: int, overrides: Sequence[str]) -> ReplayedSteps:
    """Replay a step by the run's own spec and once more with overrides (`training.clip.max_norm=0.5`).

    Raises UserError for overrides that do not fit the run's state or change what the step consumes.
    """
    (target,) = source.targets(step, step)
    if target.skipped:
        raise UserError(f"--step {step}: the run has left this step's batch out, so that nothing follows from --set.")
    spec, name = source.spec_of(target), f"run {source.run.folder.run_id}"
    own = class_for(spec).model_validate(dict(spec))
    changed = build_experiment(assign(dict(spec), parse_overrides(overrides), class_for), name)
    given = ", ".join(f"--set {text}" for text in overrides)
    kinds = {
        "model.family": (own.model.family, changed.model.family),
        "optimizer.kind": (own.optimizer.kind, changed.optimizer.kind),
    }
    if moved := order_changes(spec, changed):
        raise UserError(
            f"{given} changes which samples the step takes ({', '.join(moved)}), so that the two would not be "
            "compared; leave data, seed and batch.size as they are."
        )
    for path, (ours, theirs) in kinds.items():
        if ours != theirs:
            raise UserError(f"{given}: the state of {name} is that of {path}={ours}; leave {path} as it is.")
    if others := shape_differences(build_model(changed), tensor_shapes(build_model(own))):
        more = f" and {len(others) - MOST_LISTED} more" if len(others) > MOST_LISTED else ""
        raise UserError(
            f"{given}: the state of {name} does not fit, in {len(others)} tensors: "
            f"{', '.join(others[:MOST_LISTED])}{more}; change what leaves their shapes alone."
        )
    resolved = changed.to_dict()
    is_wider = resolved["resources"]["workers"] != spec["resources"]["workers"]
    workers = changed.resources.max_workers if is_wider else target.workers
    return replay_executions(source, [target], (step,), lambda plan: plan.with_variant(resolved, workers))


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
    history = source.history
    done = map(history.final, sorted({each.step for each in history.executions if each.is_recorded}))
    found: Sequence[Execution | JournaledStep]
    found = [each for each in done if each.loss is not None and not each.skipped]
    found = found or [each for step, each in history.journaled.items() if step > history.first]
    if not found:
        raise UserError(f"run {source.run.folder.run_id} has recorded no loss yet; wait for its first step.")
    losses, norms = np.array([(each.loss, each.norm) for each in found], np.float64).T
    return LossHistory(np.array([each.step for each in found]), losses, norms)


def worst_steps(history: LossHistory, num: int) -> list[int]:
    """Return the steps whose loss or norm stands out most against its neighbours' median, the worst first."""
    scores = [
        (max(history.ratio(history.losses, step), history.ratio(history.norms, step)), -int(step))
        for step in history.steps.tolist()
    ]
    return [-step for _, step in sorted(scores, reverse=True)[:num]]


def explain(step: ReplayedStep, history: LossHistory) -> str:
    """Return a sentence on what is behind a step's loss and norm: its medians, rate, and the samples that carry it."""
    parts = []
    for name, value, values in (("loss", step.loss, history.losses), ("norm", step.norm, history.norms)):
        median = history.around(values, step.step)
        text = f"no {name}" if value is None else f"{name} {value:.4g}"
        if value is not None and math.isfinite(value) and math.isfinite(median) and median != 0:
            text += f", {value / median:.3g} times its neighbours' median"
        parts.append(text)
    if step.clip_factor > 1 and step.norm is not None:
        parts[1] += f", clipped to {step.clipped_norm:.4g}"
    if (lr := step.metrics.get("train/lr")) is not None:
        parts.append(f"learning rate {lr:.3g}")
    if order := by_loss(step.samples):
        num = len(order)
        bad = [sample for sample in order if not math.isfinite(sample.loss)]
        summed = np.cumsum([sample.loss for sample in order])
        few = int(np.searchsorted(summed, summed[-1] / 2)) + 1
        if bad:
            named, clause = bad, f"{len(bad)} of {num} samples have no finite loss: "
        elif summed[-1] > 0 and few <= max(1, num // 8):
            named, clause = order[:few], f"{few} of {num} samples carr{'y' if few > 1 else 'ies'} half of the loss: "
        else:
            named, clause = order[:1], f"no few samples carry it: the largest loss of {num} is "
        shown = [
            f"row {each.row:,} (loss {each.loss:.4g}" + ("" if each.time is None else f", time {each.time:.3g}") + ")"
            for each in named[:3]
        ]
        more = f" and {len(named) - 3} more" if len(named) > 3 else ""
        parts.append(f"{clause}{', '.join(shown)}{more}")
    else:
        parts.append("its samples were not measured")
    return f"step {step.step:,}: {'; '.join(parts)}."


def by_loss(samples: Sequence[SampleLoss]) -> list[SampleLoss]:
    """Return samples by loss, the largest first and those without a finite one before them."""
    return sorted(samples, key=lambda sample: -sample.loss if math.isfinite(sample.loss) else -math.inf)


def step_figure(view: View, step: ReplayedStep, texts: Sequence[str]) -> Figure:
    """Draw a step that was measured sample by sample."""
    few = by_loss(step.samples)[:MOST_PICTURES]
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
    layers = layers_of(step.norms or {})
    if names := sorted(layers, key=lambda name: -layers[name].gradient)[:MOST_LAYERS]:
        norms = np.array([layers[name].gradient for name in names])
        panels.append(Bars(names, norms, title="gradient norm by layer", x_label="norm before clipping"))
        ratios = np.array([layers[name].ratio or 0.0 for name in names])
        panels.append(Bars(names, ratios, title="update over weights", x_label="ratio of norms"))
    loss = "skipped" if step.loss is None else f"loss {step.loss:.5g}"
    variant = " under another spec" if step.is_variant else ""
    return Figure(panels, title=f"step {step.step:,}{variant}: {loss}")


def step_record(step: ReplayedStep, texts: Sequence[str]) -> dict[str, Any]:
    """Return a step in JSON's types."""
    execution = step.execution
    return {
        "step": step.step, "attempt": execution.attempt or None, "workers": execution.workers,
        "halvings": execution.microbatch_splits, "left_out": execution.skipped,
        "asked": execution.asked or None, "is_variant": step.is_variant,
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
                "layer": layer, "gradient_norm": each.gradient, "update_norm": each.update,
                "weight_norm": each.weight, "update_over_weight": each.ratio,
            }
            for layer, each in layers_of(step.norms or {}).items()
        ],
    }  # fmt: skip


def _comparison_record(each: ReplayComparison) -> dict[str, Any]:
    found = {**asdict(each), "attempt": each.attempt or None, "distance": each.distance, "holds": each.holds}
    if each.quantity == "samples":
        found |= {"recorded": f"{each.recorded:016x}", "replayed": f"{each.replayed:016x}"}
    return found


def fold(text: str, indent: str = "") -> list[str]:
    """Break a sentence into lines of at most 80 columns; what follows the first is indented."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def step_lines(step: ReplayedStep, texts: Sequence[str]) -> list[str]:
    """Return the lines about one step; `texts` are those of its samples, by place."""
    execution = step.execution
    workers = f"{execution.workers} worker{'s' if execution.workers > 1 else ''}"
    by = f"attempt {execution.attempt}, {workers}" if execution.is_recorded else workers
    times = "once" if execution.microbatch_splits == 1 else f"{execution.microbatch_splits} times"
    halved = f", micro-batches halved {times}" if execution.microbatch_splits else ""
    variant = ", under another spec than its own" if step.is_variant else ""
    lines = ["", f"step {step.step:,} ({by}{halved}{variant})"]
    lines += [f"  after it the run was asked for: {execution.asked}"] if execution.asked else []
    if execution.skipped:
        return [*lines, *fold(f"its batch of {len(step.rows):,} samples was skipped: no loss, no update", "  ")]

    def number(name: str, value: float) -> str:
        return f"  {name:<16}{value:.9g}"

    rest = {name: value for name, value in step.metrics.items() if name not in ("train/grad_norm", "train/lr")}
    lines += [number(name.removeprefix("train/"), value) for name, value in rest.items()]
    if step.norm is not None:
        clipped = f"clipped to {step.clipped_norm:.7g}" if step.clip_factor > 1 else "not clipped"
        lines.append(f"{number('gradient norm', step.norm)}, {clipped}")
    if (lr := step.metrics.get("train/lr")) is not None:
        lines.append(number("learning rate", lr))
    if step.update_norm is not None:
        lines.append(number("update norm", step.update_norm))
    lines.append(f"  {'samples':<16}{len(step.rows):,}, digest {step.digest:016x}")
    if step.samples:
        lines += ["", *_sample_lines(step, texts)]
    if step.norms:
        layers = layers_of(step.norms)
        width = min(34, max(map(len, ["layer", *layers])))
        total = sum(each.gradient**2 for each in layers.values())
        lines += ["", f"  {'layer':<{width}} {'gradient':>11} {'share':>6} {'update':>11} {'update/weight':>14}"]
        for layer, each in layers.items():
            share = f"{each.gradient**2 / total:.1%}" if total > 0 and math.isfinite(total) else ""
            ratio = "" if each.ratio is None else f"{each.ratio:.3g}"
            lines.append(
                f"  {layer[-width:]:<{width}} {each.gradient:>11.5g} {share:>6} {each.update:>11.5g} {ratio:>14}"
            )
    return lines


def mean_note(step: ReplayedStep) -> str:
    """Return a sentence where a step's loss is not the mean of its samples'; empty where it is."""
    if step.loss is None or not step.samples:
        return ""
    mean = sum(sample.loss for sample in step.samples) / len(step.samples)
    # Also empty for numbers that are not finite: no comparison with them is true.
    if not abs(mean - step.loss) > MEAN_TOLERANCE * max(abs(mean), abs(step.loss)):
        return ""
    return (
        f"The step's loss is no mean of the samples' by themselves (their mean is {mean:.7g}): this loss weighs or "
        "couples the samples of a batch."
    )


def _sample_lines(step: ReplayedStep, texts: Sequence[str]) -> list[str]:
    order = by_loss(step.samples)
    few = order[:MOST_SAMPLES]
    total = sum(sample.loss for sample in step.samples)
    of = f"{len(few)} of {len(order):,}, the largest losses first" if len(few) < len(order) else "all"
    lines = [f"  samples ({of})", f"  {'place':>5} {'row':>9} {'loss':>11} {'share':>6} {'time':>7}  sample"]
    for sample in few:
        time = "" if sample.time is None else f"{sample.time:.4g}"
        share = f"{sample.loss / total:.1%}" if math.isfinite(total) and total > 0 else ""
        line = f"  {sample.place:>5} {sample.row:>9} {sample.loss:>11.5g} {share:>6} {time:>7}  {texts[sample.place]}"
        lines.append(line[:WIDTH].rstrip())
    draws = []
    for index, draw in enumerate(order[0].draws):
        values = [sample.draws[index].value for sample in order if index < len(sample.draws)]
        shape = "x".join(map(str, draw.shape))
        kind = f"root mean square of {shape}" if math.prod(draw.shape) > 1 else "number"
        draws.append(f"{draw.name} {draw.distribution} ({kind}, {min(values):.4g} to {max(values):.4g})")
    if draws:
        lines += fold(f"drawn for each sample: {'; '.join(draws)}", "  ")
    if note := mean_note(step):
        lines += fold(note, "  ")
    return lines


def check_lines(check: ReplayCheck) -> list[str]:
    """Return a table of what was compared, the verdict and what it rests on."""
    lines = ["", f"  {'step':>8} {'number':<8} {'of':<9} {'recorded':>15} {'replayed':>15} {'off':>8}  verdict"]

    def value(each: ReplayComparison, number: float | int | None) -> str:
        if number is None:
            return "none"
        return f"{number:x}"[-15:] if each.quantity == "samples" else f"{number:.9g}"

    shown = [each for each in check.comparisons if not each.holds][:20] or check.comparisons
    shown = [*shown[:20], *shown[-20:]] if len(shown) > 40 else shown
    for each in shown:
        off = "" if each.distance == 0 else "inf" if math.isinf(each.distance) else f"{each.distance:.1e}"
        verdict = "same bits" if each.distance == 0 else "within" if each.holds else "OFF"
        lines.append(
            f"  {each.step:>8} {each.quantity:<8} {each.source:<9} {value(each, each.recorded):>15} "
            f"{value(each, each.replayed):>15} {off:>8}  {verdict}"
        )
    if len(shown) < len(check.comparisons):
        lines.append(f"  and {len(check.comparisons) - len(shown):,} more")
    num_off = sum(not each.holds for each in check.comparisons)
    same = sum(each.distance == 0 for each in check.comparisons)
    verdict = "nothing was compared" if not check.comparisons else f"{num_off} off" if num_off else "all hold"
    bound = f"bound {check.tolerance.relative:.1e} relative" if check.tolerance.relative else "bound: none"
    return [
        *lines,
        "",
        *fold(
            f"{len(check.comparisons):,} numbers compared, {same:,} of the same bits: {verdict} ({bound}; "
            f"{check.tolerance.reason})."
        ),
        *(line for text in check.unchecked for line in fold(f"not compared: {text}")),
    ]


def variant_lines(steps: Sequence[ReplayedStep], changes: Sequence[str]) -> list[str]:
    """Return a table of a step by the run's own spec beside the same step under another."""
    own = next(step for step in steps if not step.is_variant)
    other = next(step for step in steps if step.is_variant)
    rows = [(name.removeprefix("train/"), own.metrics[name], other.metrics.get(name)) for name in own.metrics]
    rows.append(("clipped norm", own.clipped_norm or 0.0, other.clipped_norm))
    rows.append(("update norm", own.update_norm or 0.0, other.update_norm))
    lines = ["", *fold(f"step {own.step:,} as it was, and with {', '.join(changes)}:")]
    lines.append(f"  {'':<20} {'as it was':>15} {'changed':>15} {'ratio':>9}")
    for name, before, after in rows:
        ratio = f"{after / before:.5g}" if after is not None and before else ""
        shown = "none" if after is None else f"{after:.8g}"
        lines.append(f"  {name:<20.20} {before:>15.8g} {shown:>15} {ratio:>9}")
    if own.digest != other.digest:
        note = "The changed step drew other times and noise for its samples, which alone makes a difference."
        lines += fold(note, "  ")
    return lines

"""Replay of a run as people ask for it: steps, their check, the worst of a run, a step under another spec."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.analysis.plot import Plot
from ditlab.analysis.user_errors import output_folder
from ditlab.checkpoints.start_point import order_changes
from ditlab.data.preview import row_pictures, row_texts
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.runs.forks import shape_differences, tensor_shapes
from ditlab.runs.launch import build_model
from ditlab.spec.experiment import class_for, validate_experiment
from ditlab.spec.files import build_experiment
from ditlab.spec.overrides import assign, parse_overrides
from ditlab.spec.values import value_at
from ditlab_addons.check.replay.check import ReplayCheck, ReplayComparison, check_replay
from ditlab_addons.check.replay.norms import ParameterNorms
from ditlab_addons.check.replay.replaying import ReplayedSteps, ReplaySource, replay_executions
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
    figures: Mapping[str, Figure] = field(repr=False)
    """Pictures by file name, without suffix."""
    holds: bool = True
    """False where a check found something off."""

    def save(self, folder: str | Path) -> list[Path]:
        """Write the pictures as PNG; return their paths. Raises UserError where the disk refuses."""
        place = output_folder(Path(folder))
        return [Plot(figure).save(place / f"{name}.png") for name, figure in self.figures.items()]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def check_options(step: int | None, to: int | None, given: Mapping[str, Any]) -> None:
    """Raise UserError for options that exclude each other, and for none that says which step to replay."""
    asked = [name for name, value in given.items() if value]
    if len(asked) > 1:
        raise UserError(f"{asked[0]} and {asked[1]} exclude each other; give one of them.")
    if given["--worst"]:
        if step is not None or to is not None:
            raise UserError("--worst finds its steps itself; leave --step and --to out.")
    elif given["--set"] and to not in (None, step):
        raise UserError(f"--set replays a single step, and --to {to} names more; leave --to out.")
    elif step is None:
        raise UserError("nothing says which step to replay; give --step N, or --worst K.")


def replay_worst(source: ReplaySource, num: int) -> ReplayReport:
    """Find the `num` steps that stand out, replay and explain them."""
    history = loss_history(source)
    steps = worst_steps(history, num)
    found = replay_executions(source, [source.history.final(each) for each in sorted(steps)], steps)
    by_step = {each.step: each for each in found.steps}
    sentences = [explain(by_step[each], history) for each in steps]
    title = f"the {len(steps)} steps whose loss or norm stands out most against the 16 steps on each side:"
    lines = ["", *fold(title), *fold(*sentences, indent="  ")]
    return report_steps(source, found, lines, {"worst": steps, "explanations": sentences})


def report_check(source: ReplaySource, first: int, last: int) -> ReplayReport:
    """Replay steps `first` to `last`, and compare them with the run's record."""
    checked = check_replay(source, first, last)
    extra = {
        "holds": checked.holds, "bound": checked.tolerance.relative, "bound_reason": checked.tolerance.reason,
        "comparisons": [_comparison_record(each) for each in checked.comparisons],
        "unchecked": list(checked.unchecked),
    }  # fmt: skip
    report = report_steps(source, checked.replayed, check_lines(checked), extra, shows_steps=False)
    return replace(report, holds=checked.holds)


def report_steps(
    source: ReplaySource, found: ReplayedSteps, lines: Sequence[str] = (), extra: dict[str, Any] | None = None,
    shows_steps: bool = True,
) -> ReplayReport:  # fmt: skip
    """Report replayed steps: their origin, `lines` about all of them, then each one if it `shows_steps`; the record has
    `extra` too."""
    run = source.run
    head = f"run {run.folder.run_id} ({run.record.name}), {source.history.last:,} steps done; replayed "
    all_lines = [*fold(head + "; ".join(found.origins), *source.remarks), *lines]
    records = []
    figures = {}
    for each in found.steps:
        texts: Sequence[str] = ()
        if shows_steps and each.samples:
            texts = row_texts(source.data.train, each.indices, source.data.text)
            name = f"step-{each.step:08d}{'-changed' * each.is_variant}"
            figures[name] = step_figure(source.data.train, each, texts)
        if shows_steps:
            all_lines += step_lines(each, texts)
        records.append(step_record(each, texts))
    record = {
        "run_id": run.folder.run_id, "name": run.record.name, "origins": list(found.origins),
        "remarks": list(source.remarks), "steps": records,
    }  # fmt: skip
    return ReplayReport(all_lines, record | (extra or {}), figures)


def replay_changed(source: ReplaySource, step: int, overrides: Sequence[str]) -> ReplayReport:
    """Replay a step by the run's own spec and once more with overrides (`training.clip.max_norm=0.5`).

    Raises UserError for overrides that do not fit the run's state or change what the step consumes.
    """
    (target,) = source.targets(step, step)
    if target.skipped:
        raise UserError(f"--step {step}: the run has left this step's batch out, so that nothing follows from --set.")
    spec = source.spec_of(target)
    own = validate_experiment(spec)
    changed = build_experiment(assign(dict(spec), parse_overrides(overrides), class_for), source.name)
    given = ", ".join(f"--set {text}" for text in overrides)
    state = f"{given}: the state of {source.name}"
    moved = order_changes(spec, changed)
    if moved:
        raise UserError(
            f"{given} changes which samples the step takes ({', '.join(moved)}), so that the two would not be "
            "compared; leave data, seed and batch.size as they are."
        )
    for path in ("model.family", "optimizer.kind"):
        ours = value_at(spec, path.split("."))
        if ours != value_at(changed.to_dict(), path.split(".")):
            raise UserError(f"{state} is that of {path}={ours}; leave {path} as it is.")
    others = shape_differences(build_model(changed), tensor_shapes(build_model(own)))
    if others:
        more = f" and {len(others) - MOST_LISTED} more" if len(others) > MOST_LISTED else ""
        raise UserError(
            f"{state} does not fit, in {len(others)} tensors: {', '.join(others[:MOST_LISTED])}{more}; change what "
            "leaves their shapes alone."
        )
    resolved = changed.to_dict()
    is_wider = resolved["resources"]["workers"] != spec["resources"]["workers"]
    workers = changed.resources.max_workers if is_wider else target.workers
    found = replay_executions(source, [target], (step,), lambda plan: plan.with_variant(resolved, workers))
    return report_steps(source, found, variant_lines(found.steps, overrides), {"changes": list(overrides)})


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
        near = np.concatenate([values[max(0, place - NEIGHBOURS) : place], values[place + 1 :][:NEIGHBOURS]])
        near = near[np.isfinite(near)]
        return float(np.median(near)) if len(near) else math.nan

    def ratio(self, values: np.ndarray, step: int) -> float:
        """Return a step's value over the median of its neighbours'; infinite where the value is not finite."""
        value = float(values[np.searchsorted(self.steps, step)])
        if not math.isfinite(value):
            return math.inf
        median = self.around(values, step)
        return value / median if median > 0 else 1.0


def loss_history(source: ReplaySource) -> LossHistory:
    """Return losses and norms from the receipts, else from the journal. Raises UserError where neither has any."""
    history = source.history
    done = map(history.final, sorted({each.step for each in history.executions if each.is_recorded}))
    found = [each for each in done if each.loss is not None and not each.skipped]
    found = found or [each for step, each in history.journaled.items() if step > history.first]
    if not found:
        raise UserError(f"{source.name} has recorded no loss yet; wait for its first step.")
    losses, norms = np.array([(each.loss, each.norm) for each in found], np.float64).T
    return LossHistory(np.array([each.step for each in found]), losses, norms)


def worst_steps(history: LossHistory, num: int) -> list[int]:
    """Return the steps whose loss or norm stands out most against its neighbours' median, the worst first."""

    def score(step: int) -> float:
        return max(history.ratio(history.losses, step), history.ratio(history.norms, step))

    return sorted(history.steps.tolist(), key=score, reverse=True)[:num]


def explain(step: ReplayedStep, history: LossHistory) -> str:
    """Return a sentence on what is behind a step's loss and norm: its medians, rate, and the samples that carry it."""
    loss = _beside_median("loss", step.loss, history.around(history.losses, step.step))
    norm = _beside_median("norm", step.norm, history.around(history.norms, step.step))
    if step.clip_factor > 1 and step.norm is not None:
        norm += f", clipped to {step.clipped_norm:.4g}"
    rate = "" if step.lr is None else f"learning rate {step.lr:.3g}"
    parts = filter(None, [loss, norm, rate, _carriers(by_loss(step.samples))])
    return f"step {step.step:,}: {'; '.join(parts)}."


def _beside_median(name: str, value: float | None, median: float) -> str:
    """Return a value, and how many times its neighbours' median it is where both are finite."""
    if value is None:
        return f"no {name}"
    text = f"{name} {value:.4g}"
    if median == 0 or math.isnan(median) or not math.isfinite(value):
        return text
    return f"{text}, {value / median:.3g} times its neighbours' median"


def _carriers(order: list[SampleLoss]) -> str:
    """Return a clause on the samples that carry a step's loss; `order` is that of `by_loss`."""
    if not order:
        return "its samples were not measured"
    num = len(order)
    bad = [sample for sample in order if not math.isfinite(sample.loss)]
    summed = np.cumsum([sample.loss for sample in order])
    few = int(np.searchsorted(summed, summed[-1] / 2)) + 1
    if bad:
        named = bad
        clause = f"{len(bad)} of {num} samples have no finite loss: "
    elif summed[-1] > 0 and few <= max(1, num // 8):
        named = order[:few]
        clause = f"{few} of {num} samples carr{'y' if few > 1 else 'ies'} half of the loss: "
    else:
        named = order[:1]
        clause = f"no few samples carry it: the largest loss of {num} is "
    shown = []
    for each in named[:3]:
        time = "" if each.time is None else f", time {each.time:.3g}"
        shown.append(f"row {each.row:,} (loss {each.loss:.4g}{time})")
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return f"{clause}{', '.join(shown)}{more}"


def by_loss(samples: Sequence[SampleLoss]) -> list[SampleLoss]:
    """Return samples by loss, the largest first and those without a finite one before them."""
    return sorted(samples, key=lambda sample: -sample.loss if math.isfinite(sample.loss) else -math.inf)


def step_figure(view: View, step: ReplayedStep, texts: Sequence[str]) -> Figure:
    """Draw a step that was measured sample by sample."""
    panels = [_samples_panel(view, step, texts)]
    timed = [sample for sample in step.samples if sample.time is not None and math.isfinite(sample.loss)]
    if timed:
        times, losses = np.array([(sample.time, sample.loss) for sample in timed]).T
        group = PointGroup(times, losses, "samples")
        panels.append(Points([group], title="loss by time", x_label="time or noise level", y_label="loss"))
    layers = layers_of(step.norms or {})
    names = sorted(layers, key=lambda name: -layers[name].gradient)[:MOST_LAYERS]
    if names:
        norms = np.array([layers[name].gradient for name in names])
        panels.append(Bars(names, norms, title="gradient norm by layer", x_label="norm before clipping"))
        ratios = np.array([layers[name].ratio or 0.0 for name in names])
        panels.append(Bars(names, ratios, title="update over weights", x_label="ratio of norms"))
    loss = "skipped" if step.loss is None else f"loss {step.loss:.5g}"
    variant = " under another spec" if step.is_variant else ""
    return Figure(panels, title=f"step {step.step:,}{variant}: {loss}")


def _samples_panel(view: View, step: ReplayedStep, texts: Sequence[str]) -> Panel:
    """Draw the samples with the largest losses: as pictures where they are some, else as bars."""
    few = by_loss(step.samples)[:MOST_PICTURES]
    times = ["" if sample.time is None else f" t={sample.time:.2g}" for sample in few]
    captions = [f"{sample.loss:.3g}{time}" for sample, time in zip(few, times, strict=True)]
    places = np.array([sample.place for sample in few])
    grid = row_pictures(view, step.indices[places], captions, "samples by loss, the largest first")
    if grid is not None:
        return grid
    few = few[:MOST_LAYERS]
    names = [f"{texts[sample.place]} (row {sample.row})"[-60:] for sample in few]
    return Bars(names, np.array([sample.loss for sample in few]), title="samples by loss", x_label="loss")


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
            vars(each)
            | {"text": texts[each.place] if texts else "", "draws": {draw.name: draw.value for draw in each.draws}}
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


def fold(*texts: str, indent: str = "") -> list[str]:
    """Break sentences into lines of at most 80 columns; what follows the first of each is indented."""
    wrapper = textwrap.TextWrapper(WIDTH, indent, f"{indent}  ", break_on_hyphens=False)
    return [line for text in texts for line in wrapper.wrap(text)]


def step_lines(step: ReplayedStep, texts: Sequence[str]) -> list[str]:
    """Return the lines about one step; `texts` are those of its samples, by place."""
    lines = ["", f"step {step.step:,} ({_description(step)})"]
    if step.execution.asked:
        lines.append(f"  after it the run was asked for: {step.execution.asked}")
    if step.execution.skipped:
        skipped = f"its batch of {len(step.rows):,} samples was skipped: no loss, no update"
        return [*lines, *fold(skipped, indent="  ")]

    names = [name for name in step.metrics if name not in ("train/grad_norm", "train/lr")]
    numbers: dict[str, float | None] = {name.removeprefix("train/"): step.metrics[name] for name in names}
    numbers |= {"gradient norm": step.norm, "learning rate": step.lr, "update norm": step.update_norm}
    for name, value in numbers.items():
        if value is None:
            continue
        line = f"  {name:<16}{value:.9g}"
        if name == "gradient norm":
            line += f", clipped to {step.clipped_norm:.7g}" if step.clip_factor > 1 else ", not clipped"
        lines.append(line)
    lines.append(f"  {'samples':<16}{len(step.rows):,}, digest {step.digest:016x}")
    if step.samples:
        lines += _sample_lines(step, texts)
    if step.norms:
        lines += _layer_lines(layers_of(step.norms))
    return lines


def _description(step: ReplayedStep) -> str:
    """Return by which attempt and workers a step was done, and how."""
    execution = step.execution
    text = f"{execution.workers} worker{'s' * (execution.workers > 1)}"
    if execution.is_recorded:
        text = f"attempt {execution.attempt}, {text}"
    splits = execution.microbatch_splits
    if splits:
        text += f", micro-batches halved {'once' if splits == 1 else f'{splits} times'}"
    if step.is_variant:
        text += ", under another spec than its own"
    return text


def _share(part: float, total: float) -> str:
    """Return a part of a total in percent; empty where that has no meaning."""
    return f"{part / total:.1%}" if 0 < total < math.inf else ""


def _layer_lines(layers: Mapping[str, ParameterNorms]) -> list[str]:
    width = min(34, max(map(len, ["layer", *layers])))
    total = sum(each.gradient**2 for each in layers.values())
    lines = ["", f"  {'layer':<{width}} {'gradient':>11} {'share':>6} {'update':>11} {'update/weight':>14}"]
    for layer, each in layers.items():
        share = _share(each.gradient**2, total)
        ratio = "" if each.ratio is None else f"{each.ratio:.3g}"
        lines.append(f"  {layer[-width:]:<{width}} {each.gradient:>11.5g} {share:>6} {each.update:>11.5g} {ratio:>14}")
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
    lines = ["", f"  samples ({of})", f"  {'place':>5} {'row':>9} {'loss':>11} {'share':>6} {'time':>7}  sample"]
    for sample in few:
        time = "" if sample.time is None else f"{sample.time:.4g}"
        share = _share(sample.loss, total)
        line = f"  {sample.place:>5} {sample.row:>9} {sample.loss:>11.5g} {share:>6} {time:>7}  {texts[sample.place]}"
        lines.append(line[:WIDTH].rstrip())
    draws = []
    for index, draw in enumerate(order[0].draws):
        values = [sample.draws[index].value for sample in order if index < len(sample.draws)]
        shape = "x".join(map(str, draw.shape))
        kind = f"root mean square of {shape}" if math.prod(draw.shape) > 1 else "number"
        draws.append(f"{draw.name} {draw.distribution} ({kind}, {min(values):.4g} to {max(values):.4g})")
    if draws:
        lines += fold(f"drawn for each sample: {'; '.join(draws)}", indent="  ")
    return lines + fold(mean_note(step), indent="  ")


def check_lines(check: ReplayCheck) -> list[str]:
    """Return a table of what was compared, the verdict and what it rests on."""
    compared = check.comparisons
    num = len(compared)
    off = [each for each in compared if not each.holds]
    same = sum(each.distance == 0 for each in compared)
    shown = off[:20] or compared
    if len(shown) > 40:
        shown = [*shown[:20], *shown[-20:]]
    lines = ["", f"  {'step':>8} {'number':<8} {'of':<9} {'recorded':>15} {'replayed':>15} {'off':>8}  verdict"]
    lines += map(_comparison_line, shown)
    if len(shown) < num:
        lines.append(f"  and {num - len(shown):,} more")
    verdict = f"{len(off)} off" if off else "all hold"
    if not num:
        verdict = "nothing was compared"
    bound = f"bound {check.tolerance.relative:.1e} relative" if check.tolerance.relative else "bound: none"
    conclusion = f"{num:,} numbers compared, {same:,} of the same bits: {verdict} ({bound}; {check.tolerance.reason})."
    return [*lines, "", *fold(conclusion, *(f"not compared: {text}" for text in check.unchecked))]


def _comparison_line(each: ReplayComparison) -> str:
    def shown(number: float | int | None) -> str:
        if number is None:
            return "none"
        return f"{number:x}"[-15:] if each.quantity == "samples" else f"{number:.9g}"

    off = f"{each.distance:.1e}"
    verdict = "within" if each.holds else "OFF"
    if each.distance == 0:
        off = ""
        verdict = "same bits"
    return (
        f"  {each.step:>8} {each.quantity:<8} {each.source:<9} {shown(each.recorded):>15} {shown(each.replayed):>15} "
        f"{off:>8}  {verdict}"
    )


def variant_lines(steps: Sequence[ReplayedStep], changes: Sequence[str]) -> list[str]:
    """Return a table of a step by the run's own spec beside the same step under another."""
    own, other = sorted(steps, key=lambda step: step.is_variant)
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
        lines += fold(note, indent="  ")
    return lines

"""Lines that a replay shows on a terminal, at most 80 columns each."""

import math
import textwrap
from collections.abc import Sequence

from ditlab.checking.replay.check import ReplayCheck, ReplayComparison
from ditlab.checking.replay.replaying import ReplayedSteps
from ditlab.checking.replay.segment import ReplayedStep
from ditlab.checking.replay.stepper import LayerNorms, SampleLoss, layers_of

WIDTH = 80
MOST_SAMPLES = 8
"""Samples of a step that the terminal shows, those with the largest losses; JSON has all."""
MEAN_TOLERANCE = 1e-3
"""Relative distance of a step's loss from the mean of its samples' from which on it counts as no mean of them."""


def fold(text: str, indent: str = "") -> list[str]:
    """Break a sentence into lines of at most 80 columns; what follows the first is indented."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def heading_lines(found: ReplayedSteps) -> list[str]:
    """Return lines about the run, and from where each pass began."""
    head = f"run {found.run_id} ({found.name}), {found.last:,} steps done; replayed {'; '.join(found.origins)}"
    return [*fold(head), *(line for remark in found.remarks for line in fold(remark))]


def step_lines(step: ReplayedStep, texts: Sequence[str]) -> list[str]:
    """Return the lines about one step; `texts` are those of its samples, by place."""
    execution = step.execution
    workers = f"{execution.workers} worker{'s' if execution.workers > 1 else ''}"
    by = f"attempt {execution.attempt}, {workers}" if execution.is_recorded else workers
    times = "once" if execution.microbatch_splits == 1 else f"{execution.microbatch_splits} times"
    halved = f", micro-batches halved {times}" if execution.microbatch_splits else ""
    variant = ", under another spec than its own" if step.is_variant else ""
    lines = ["", f"step {step.step:,} ({by}{halved}{variant})"]
    if execution.skipped:
        return [*lines, *fold(f"its batch of {len(step.rows):,} samples was skipped: no loss, no update", "  ")]
    for name, value in step.metrics.items():
        if name not in ("train/grad_norm", "train/lr"):
            lines.append(_number_line(name.removeprefix("train/"), value))
    if step.norm is not None:
        clipped = f"clipped to {step.clipped_norm:.7g}" if step.clip_factor > 1 else "not clipped"
        lines.append(f"{_number_line('gradient norm', step.norm)}, {clipped}")
    if (lr := step.metrics.get("train/lr")) is not None:
        lines.append(_number_line("learning rate", lr))
    if step.update_norm is not None:
        lines.append(_number_line("update norm", step.update_norm))
    lines.append(f"  {'samples':<16}{len(step.rows):,}, digest {step.digest:016x}")
    if step.samples:
        lines += ["", *_sample_lines(step, texts)]
    if step.norms:
        lines += ["", *_layer_lines(layers_of(step.norms))]
    return lines


def mean_note(step: ReplayedStep) -> str:
    """Return a sentence where a step's loss is not the mean of its samples'; empty where it is."""
    if step.loss is None or not step.samples:
        return ""
    mean = sum(sample.loss for sample in step.samples) / len(step.samples)
    if not (math.isfinite(mean) and math.isfinite(step.loss)):
        return ""
    if abs(mean - step.loss) <= MEAN_TOLERANCE * max(abs(mean), abs(step.loss)):
        return ""
    return (
        f"The step's loss is no mean of the samples' by themselves (their mean is {mean:.7g}): this loss weighs or "
        "couples the samples of a batch."
    )


def _number_line(name: str, value: float) -> str:
    return f"  {name:<16}{value:.9g}"


def _sample_lines(step: ReplayedStep, texts: Sequence[str]) -> list[str]:
    order = sorted(step.samples, key=lambda sample: -sample.loss if math.isfinite(sample.loss) else -math.inf)
    few = order[:MOST_SAMPLES]
    total = sum(sample.loss for sample in step.samples)
    of = f"{len(few)} of {len(order):,}, the largest losses first" if len(few) < len(order) else "all"
    lines = [f"  samples ({of})", f"  {'place':>5} {'row':>9} {'loss':>11} {'share':>6} {'time':>7}  sample"]
    for sample in few:
        time = "" if sample.time is None else f"{sample.time:.4g}"
        share = f"{sample.loss / total:.1%}" if math.isfinite(total) and total > 0 else ""
        text = texts[sample.place] if sample.place < len(texts) else ""
        lines.append(
            f"  {sample.place:>5} {sample.row:>9} {sample.loss:>11.5g} {share:>6} {time:>7}  {text}"[:WIDTH].rstrip()
        )
    if draws := drawn_names(step.samples):
        lines += fold(f"drawn for each sample: {draws}", "  ")
    if note := mean_note(step):
        lines += fold(note, "  ")
    return lines


def drawn_names(samples: Sequence[SampleLoss]) -> str:
    """Return what a loss draws for a sample: `time uniform, noise normal 1x8x8 (rms 1.01 to 0.98)`."""
    first = samples[0].draws if samples else ()
    parts = []
    for index, draw in enumerate(first):
        values = [sample.draws[index].value for sample in samples if index < len(sample.draws)]
        shape = "x".join(map(str, draw.shape))
        kind = f"root mean square of {shape}" if math.prod(draw.shape) > 1 else "number"
        parts.append(f"{draw.name} {draw.distribution} ({kind}, {min(values):.4g} to {max(values):.4g})")
    return "; ".join(parts)


def _layer_lines(layers: Sequence[LayerNorms]) -> list[str]:
    width = min(34, max(len("layer"), *(len(each.layer) for each in layers)))
    total = sum(each.gradient**2 for each in layers)
    lines = [f"  {'layer':<{width}} {'gradient':>11} {'share':>6} {'update':>11} {'update/weight':>14}"]
    for each in layers:
        share = f"{each.gradient**2 / total:.1%}" if total > 0 and math.isfinite(total) else ""
        ratio = "" if each.ratio is None else f"{each.ratio:.3g}"
        lines.append(
            f"  {each.layer[-width:]:<{width}} {each.gradient:>11.5g} {share:>6} {each.update:>11.5g} {ratio:>14}"
        )
    return lines


def check_lines(check: ReplayCheck) -> list[str]:
    """Return a table of what was compared, the verdict and what it rests on."""
    lines = ["", f"  {'step':>8} {'number':<8} {'of':<9} {'recorded':>15} {'replayed':>15} {'off':>8}  verdict"]
    shown = [each for each in check.comparisons if not each.holds][:20] or check.comparisons
    if len(shown) > 40:
        shown = [*shown[:20], *shown[-20:]]
    for each in shown:
        off = "" if each.distance == 0 else "inf" if math.isinf(each.distance) else f"{each.distance:.1e}"
        verdict = "same bits" if each.distance == 0 else "within" if each.holds else "OFF"
        lines.append(
            f"  {each.step:>8} {each.quantity:<8} {each.source:<9} {_value(each, each.recorded):>15} "
            f"{_value(each, each.replayed):>15} {off:>8}  {verdict}"
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


def _value(comparison: ReplayComparison, value: float | int | None) -> str:
    if value is None:
        return "none"
    return f"{value:x}"[-15:] if comparison.quantity == "samples" else f"{value:.9g}"


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

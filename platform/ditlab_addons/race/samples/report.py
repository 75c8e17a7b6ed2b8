"""Report of a sweep over the samples of one run: quality over cost, what is told apart, a page as HTML and Markdown.

A point's value is the mean over seeds of the noise, with Student's t interval. All points draw from the same seeds, so
a difference of two points is one of pairs. The intervals of all pairs of points hold together (Bonferroni), as the best
point is chosen by the same draws. With one seed nothing is told apart.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import numpy as np

from ditlab.intervals import Interval, describe_difference, paired_interval
from ditlab.quality.text import ENTROPY_FALL, entropy_fell
from ditlab.reports.formatting import (
    Cells,
    describe_value,
    format_number,
    is_numeric,
    listed,
    short_names,
    shorten,
)
from ditlab.reports.page import Code, ImageFile, Page, Paragraphs, Part, Section, Table, write_html, write_markdown
from ditlab.reports.rendering.render import save_figure
from ditlab.reports.sweep_records import SweepSummary, Trial, better, objectives, pareto, rank
from ditlab_models.figures import Curve, Figure, PointGroup, Points

EVALUATIONS, SECONDS = "cost/evaluations", "cost/seconds"
"""Network evaluations a sample, in which a guided one counts twice, and seconds a sample."""
COSTS = (EVALUATIONS, SECONDS)
_MOST_NAMED = 8
"""Points that a sentence lists."""
FRONTIER_CAPTION = (
    "A mark is a point of the space, its bar the 95 % interval over seeds of the noise. No point beats those in a ring "
    "in both quality and cost, by their means."
)
SAMPLES_CAPTION = (
    "A row is a point, in the order of the table; samples in a column share their noise and their condition. Seed"
)


@dataclass(frozen=True)
class PointResult:
    """One point of the space, as far as it is measured."""

    number: int
    values: Mapping[str, Any]
    """Value by axis path."""
    by_seed: Mapping[str, Sequence[float]]
    """Values of each metric in the order of the seeds; empty before the point is complete."""
    options: Sequence[str] = ()
    """Options of `ditlab sample` that draw it."""

    @cached_property
    def means(self) -> dict[str, float]:
        """Means over seeds; of seconds the median, as the first draw in a process is slower."""
        return {name: median(each) if name == SECONDS else fmean(each) for name, each in self.by_seed.items()}

    def interval(self, metric: str) -> Interval | None:
        """95 % interval of the mean of a metric; None where a value is missing or not finite."""
        values = self.by_seed.get(metric, ())
        return paired_interval(values) if values and all(map(math.isfinite, values)) else None

    def text(self, metric: str) -> str:
        """Mean of a metric with half the width of its interval; empty where a value is missing or not finite."""
        interval = self.interval(metric)
        return interval.text() if interval else ""


@dataclass(frozen=True)
class SamplingSummary:
    """State of a sweep over samples, complete or not."""

    sweep_id: str
    name: str
    run_id: str
    """The trained run."""
    run_name: str
    step: int
    """Optimiser step of its weights."""
    metric: str
    mode: Literal["min", "max"]
    axes: Sequence[str]
    """Paths of the axes."""
    points: Sequence[PointResult]
    """All points, by number."""
    samples: int
    """Samples for each point and seed."""
    seeds: Sequence[int]

    @cached_property
    def ranking(self) -> SweepSummary:
        """The points as trials of two objectives, the metric and the network evaluations a sample."""
        trials = []
        for each in self.points:
            status = "finished" if each.by_seed else "waiting"
            trials.append(Trial(each.number, "", each.values, status, metrics=each.means))
        return SweepSummary(
            self.sweep_id, self.name, (self.metric, EVALUATIONS), (self.mode, "min"), (), trials,
            search="grid", scheduler="none", seconds=0.0, total_trials=len(trials), base="",
        )  # fmt: skip

    @cached_property
    def measured(self) -> list[PointResult]:
        """Points with finite values, those of the frontier first, each front from its best mean on."""
        return [self.points[each.number] for each in rank(self.ranking) if objectives(self.ranking, each)]

    @cached_property
    def frontier(self) -> list[PointResult]:
        """Points that no other beats in both means, the best quality first."""
        return [self.points[trial.number] for trial in pareto(self.ranking)]

    @property
    def best(self) -> PointResult | None:
        """The point with the best mean of the metric; of several the cheapest. None before any is measured."""
        return self.frontier[0] if self.frontier else None

    @property
    def is_done(self) -> bool:
        """True if all points are measured."""
        return all(each.by_seed for each in self.points)

    def places(self, points: Sequence[PointResult]) -> tuple[np.ndarray, np.ndarray]:
        """Means of points: network evaluations a sample, and the metric."""
        costs = np.array([each.means[EVALUATIONS] for each in points])
        return costs, np.array([each.means[self.metric] for each in points])

    def difference(self, point: PointResult, other: PointResult) -> Interval:
        """Interval of the paired differences of the metric, of two measured points; it holds with all others."""
        num = len(self.measured)
        pairs = zip(point.by_seed[self.metric], other.by_seed[self.metric], strict=True)
        return paired_interval([one - two for one, two in pairs], 1 - 0.05 / (num * (num - 1) / 2))

    def rival(self, point: PointResult) -> PointResult | None:
        """The best of the other points that cost no more; None where there is none."""
        cost = point.means[EVALUATIONS]
        sign = 1 if self.mode == "min" else -1
        others = [each for each in self.measured if each is not point and each.means[EVALUATIONS] <= cost]
        return min(others, key=lambda each: sign * each.means[self.metric], default=None)

    def close_to_best(self) -> list[PointResult]:
        """Points that are not told apart from the best one, the cheapest first."""
        if self.best is None:
            return []
        others = [each for each in self.measured if each is not self.best]
        found = [each for each in others if not self.difference(each, self.best).excludes_zero]
        return sorted(found, key=lambda each: each.means[EVALUATIONS])


def rows_of(summary: SamplingSummary) -> tuple[list[str], list[Cells]]:
    """Columns and rows of the table, the frontier first."""
    taken = ("point", "frontier", summary.metric, "evaluations", "ms a sample", "difference", "to point", "told apart")
    names = short_names(summary.axes, taken)
    front = {each.number for each in summary.frontier}
    rows: list[Cells] = []
    for each in summary.measured:
        rival = summary.rival(each)
        row: Cells = [each.number, "yes" if each.number in front else None]
        row += [each.text(summary.metric), each.means[EVALUATIONS], 1000 * each.means[SECONDS]]
        for path in summary.axes:
            value = each.values.get(path)
            row.append(value if is_numeric([value]) else _value_text(each, path))
        if rival is None:
            row += [None, None, None]
        else:
            difference = summary.difference(each, rival)
            row += [difference.text(), rival.number, "yes" if difference.excludes_zero else "no"]
        rows.append(row)
    return [*taken[:5], *names.values(), *taken[5:]], rows


def _value_text(point: PointResult, path: str) -> str | None:
    return shorten(describe_value(point.values[path]), 60) if path in point.values else None


def verdict(summary: SamplingSummary) -> list[str]:
    """Sentences on the best point, what is not told apart from it, and the frontier."""
    first = summary.best
    if first is None:
        return [f"No point has a finite value of {summary.metric} yet."]
    values = ", ".join(f"{path} = {_value_text(first, path)}" for path in first.values)
    cost = f"{format_number(first.means[EVALUATIONS])} network evaluations a sample"
    value = first.text(summary.metric)
    head = f"Point {first.number} has the best mean: {summary.metric} = {value} ({better(summary.mode)})"
    sentences = [f"{head}, {cost}: {values}."]
    if len(summary.measured) > 1:
        sentences += _close_sentences(summary, first)
    front = listed([each.number for each in summary.frontier], _MOST_NAMED)
    sentences.append(f"On the frontier of quality and cost, the best first: {front}.")
    fell = [each.number for each in summary.measured if entropy_fell(each.means)]
    if fell:
        points = f"point{'s' * (len(fell) > 1)} {listed(fell, _MOST_NAMED)}"
        sentences.append(
            f"Entropy fell more than {ENTROPY_FALL:.0%} below held-out text's, {points}: "
            "text there repeats itself, by which its perplexity is too good; compare perplexities at equal entropy."
        )
    if not summary.is_done:
        done = sum(bool(each.by_seed) for each in summary.points)
        sentences.append(f"The sweep is not complete: {done} of {len(summary.points)} points are measured.")
    return sentences


def _close_sentences(summary: SamplingSummary, first: PointResult) -> list[str]:
    """Sentences on the points that are not told apart from the best one."""
    if len(summary.seeds) == 1:
        return ["One seed of the noise tells nothing of others, so no points are told apart; set seeds to 5."]
    close = summary.close_to_best()
    if not close:
        return [f"It is told apart from every other point ({len(summary.seeds)} seeds, 95 % together)."]
    numbers = listed([each.number for each in close], _MOST_NAMED)
    sentences = [f"It is not told apart from {len(close)} other{'s' * (len(close) > 1)}: {numbers}."]
    cheapest = close[0]
    cost = cheapest.means[EVALUATIONS]
    if cost < first.means[EVALUATIONS]:
        names = (f"point {cheapest.number}", f"point {first.number}")
        difference = summary.difference(cheapest, first)
        found = describe_difference(difference, names, summary.mode, summary.metric)
        sentences.append(f"The cheapest of them is {names[0]}, {format_number(cost)} evaluations a sample ({found}).")
    return sentences


def frontier_figure(summary: SamplingSummary, about: str) -> Figure | None:
    """Draw the metric over network evaluations, with intervals and the frontier; None where no point has a value."""
    if not summary.measured:
        return None
    front = [str(each.number) for each in summary.frontier]
    groups = [
        PointGroup(*summary.places(summary.measured)),
        PointGroup(*summary.places(summary.frontier), "on the frontier", front, "ring"),
    ]
    curves = []
    for each in summary.measured:
        interval = each.interval(summary.metric)
        if interval and math.isfinite(interval.half_width):
            at = np.full(2, each.means[EVALUATIONS])
            curves.append(Curve(at, np.array([interval.low, interval.high]), weight="faint"))
    goal = f"{summary.metric} ({better(summary.mode)})"
    return Figure([Points(groups, "", EVALUATIONS, goal, curves=curves, size=(8.2, 4.8))], columns=1, alt=about)


def write_sampling_report(summary: SamplingSummary, folder: Path, grid: Figure | None) -> list[Path]:
    """Write `report.html`, `report.md` and their pictures into `folder`; return the files in this order.

    `grid` shows samples of the points, a row each. Files are replaced atomically, the pages last. Raises OSError where
    the disk refuses.
    """
    sentences = verdict(summary)
    about = f"{summary.metric} over network evaluations a sample, a mark a point. {sentences[0]}"
    pictures = {
        "frontier.png": (frontier_figure(summary, about), FRONTIER_CAPTION),
        "samples.png": (grid, f"{SAMPLES_CAPTION} {summary.seeds[0]}."),
    }
    drawn: dict[str, Part] = {}
    for name, (figure, caption) in pictures.items():
        if figure is not None:
            drawn[name] = ImageFile(save_figure(figure, folder / name), caption)
    nothing = Paragraphs("There is nothing to draw yet.")
    sections = [
        Section("Quality over cost", [drawn.get("frontier.png", nothing), _points_table(summary)]),
        *_all_metrics(summary),
        Section("Samples", [drawn.get("samples.png", nothing)]),
        Section("How the sweep was run", _how(summary)),
    ]
    page = Page(f"Sampling sweep: {summary.name}", " ".join(sentences), sections)
    files = [write_html(page, folder / "report.html"), write_markdown(page, folder / "report.md")]
    return [*files, *(folder / name for name in drawn)]


def _points_table(summary: SamplingSummary) -> Table:
    columns, rows = rows_of(summary)
    caption = (
        f"The frontier first, then what one point beats, and so on, each from the best mean of {summary.metric} on "
        f"({better(summary.mode)}). Half widths are of 95 % intervals over {len(summary.seeds)} seeds of the noise. "
        "The difference is that to the best of the points that cost no more, paired by seed; the intervals of all "
        "differences hold together at 95 % (Bonferroni over all pairs of points). Guided evaluations count twice."
    )
    return Table(columns, rows, caption)


def _all_metrics(summary: SamplingSummary) -> list[Section]:
    """Means of all metrics of samples, where there are others than the sweep's; costs stand in the other table."""
    names = list(dict.fromkeys(name for each in summary.measured for name in each.means if name not in COSTS))
    if len(names) < 2:
        return []
    rows: list[Cells] = [[each.number, *map(each.text, names)] for each in summary.measured]
    caption = "Means over seeds, with the half width of the 95 % interval."
    return [Section("All metrics", [Table(["point", *names], rows, caption)])]


def _how(summary: SamplingSummary) -> list[Part]:
    text = (
        f"Sweep {summary.sweep_id} of run {summary.run_id} ({summary.run_name}), step {summary.step:,}: "
        f"{summary.samples:,} samples for each point and seed, seeds {listed(summary.seeds, 12)}."
    )
    parts: list[Part] = [Paragraphs(text)]
    if summary.best:
        sample = shlex.join(["sample", summary.run_id, *summary.best.options])
        parts += [Paragraphs("Samples of the best point are drawn with:"), Code(f"ditlab {sample}", "shell")]
    if not summary.is_done:
        parts += [Paragraphs("Resume the sweep with:"), Code(f"ditlab tune --resume {summary.sweep_id}", "shell")]
    return parts

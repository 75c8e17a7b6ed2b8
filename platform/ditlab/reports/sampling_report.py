"""Report of a sweep over the samples of one run: quality over cost, what is told apart, a page as HTML and Markdown.

A point's value is the mean over seeds of the noise, with Student's t interval. All points draw from the same seeds, so
a difference of two points is one of pairs. The intervals of all pairs of points hold together (Bonferroni), as the best
point is chosen by the same draws. With one seed nothing is told apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from ditlab.intervals import Interval, describe_difference, paired_interval
from ditlab.reports.formatting import (
    Cells,
    describe_value,
    format_duration,
    format_number,
    is_numeric,
    listed,
    short_names,
    shorten,
)
from ditlab.reports.page import Code, ImageFile, Page, Paragraphs, Part, Section, Table, write_html, write_markdown
from ditlab.reports.rendering.render import save_figure
from ditlab.reports.sweep_axes import importance
from ditlab.reports.sweep_figures import effects_figure, frontier_figure, objective_figure
from ditlab.reports.sweep_records import AxisInfo, SweepSummary, Trial, better, objectives, pareto, rank
from ditlab_models.figures import Figure

EVALUATIONS, SECONDS = "cost/evaluations", "cost/seconds"
"""Network evaluations a sample, in which a guided one counts twice, and seconds a sample."""
COSTS = (EVALUATIONS, SECONDS)
PERPLEXITY, BIGRAM, ENTROPY = "quality/generative_perplexity", "quality/bigram_perplexity", "quality/token_entropy"
"""Perplexity of drawn text under a scorer, and under the bigram of the training text; entropy of its tokens, nats."""
ENTROPY_FALL = 0.05
"""Share of the held-out text's entropy that samples may lack before it is said."""
_MOST_NAMED = 8
"""Points that a sentence lists."""
FRONTIER_CAPTION = (
    "A mark is a point of the space, its bar the 95 % interval over seeds of the noise. No point beats those in a ring "
    "in both quality and cost, by their means."
)
EFFECTS_CAPTION = (
    "Each axis against the metric, the most important first; bars are the medians of categories, the ring is the best "
    "point. Where the best points lie at an axis' end, the space may be too narrow."
)


def entropy_fell(found: Mapping[str, float]) -> bool:
    """Return True where the entropy of samples lies below held-out text's: more than ENTROPY_FALL of it, with 95 %
    intervals that do not meet."""
    names = (ENTROPY, f"{ENTROPY}_high", f"{ENTROPY}_held_out", f"{ENTROPY}_held_out_low")
    entropy, high, real, real_low = (found.get(name, math.nan) for name in names)
    return bool(high < real_low and entropy < (1 - ENTROPY_FALL) * real)


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
    axes: Sequence[AxisInfo]
    points: Sequence[PointResult]
    """All points, by number."""
    samples: int
    """Samples for each point and seed."""
    seeds: Sequence[int]
    seconds: float
    """Duration of drawing, all points together."""

    @cached_property
    def ranking(self) -> SweepSummary:
        """The points as trials of two objectives, the metric and the network evaluations a sample."""
        trials = [
            Trial(
                each.number, "", each.values, "finished" if each.by_seed else "waiting",
                seconds=each.means.get(SECONDS, 0.0) * self.samples * len(self.seeds), metrics=each.means,
            )
            for each in self.points
        ]  # fmt: skip
        return SweepSummary(
            self.sweep_id, self.name, (self.metric, EVALUATIONS), (self.mode, "min"), self.axes, trials, "grid", "none",
            self.seconds, len(trials), self.run_name,
        )  # fmt: skip

    @cached_property
    def of_text(self) -> SweepSummary | None:
        """The points as trials of perplexity, under the scorer if there is one, and entropy; None of other samples."""
        known = next((each.means for each in self.measured), {})
        perplexity = PERPLEXITY if PERPLEXITY in known else BIGRAM
        found = replace(self.ranking, metrics=(perplexity, ENTROPY), modes=("min", "max"))
        return found if ENTROPY in known else None

    @cached_property
    def ranked(self) -> list[PointResult]:
        """All points, those of the frontier first, each front from its best mean on."""
        return [self.points[trial.number] for trial in rank(self.ranking)]

    @cached_property
    def measured(self) -> list[PointResult]:
        """Points with finite values, in the order of `ranked`."""
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


def measure_text(interval: Interval | None) -> str:
    """A mean with the half width of its interval, to two of whose digits both are rounded: `2.310 ± 0.052`."""
    if interval is None:
        return ""
    mean, half = interval.mean, interval.half_width
    if not 1e-9 < half < 1e6:
        return format_number(mean)
    digits = max(0, 1 - math.floor(math.log10(half)))
    return f"{mean:.{digits}f} \N{PLUS-MINUS SIGN} {half:.{digits}f}"


def rows_of(summary: SamplingSummary) -> tuple[list[str], list[Cells]]:
    """Columns and rows of the table, the frontier first."""
    taken = ("point", "frontier", summary.metric, "evaluations", "ms a sample", "difference", "to point", "told apart")
    names = short_names((axis.path for axis in summary.axes), taken)
    front = {each.number for each in summary.frontier}
    rows: list[Cells] = []
    for each in summary.measured:
        rival = summary.rival(each)
        difference = summary.difference(each, rival) if rival else None
        row: Cells = [each.number, "yes" if each.number in front else None]
        row += [measure_text(each.interval(summary.metric)), each.means[EVALUATIONS], 1000 * each.means[SECONDS]]
        for axis in summary.axes:
            value = each.values.get(axis.path)
            row.append(value if is_numeric([value]) else _value_text(each, axis.path))
        row += [measure_text(difference), rival.number if rival else None]
        row.append(None if difference is None else "yes" if difference.excludes_zero else "no")
        rows.append(row)
    return [*taken[:5], *names.values(), *taken[5:]], rows


def _value_text(point: PointResult, path: str) -> str | None:
    return shorten(describe_value(point.values[path]), 60) if path in point.values else None


def verdict(summary: SamplingSummary) -> list[str]:
    """Sentences on the best point, what is not told apart from it, and the frontier."""
    first = summary.best
    metric = summary.metric
    if first is None:
        return [f"No point has a finite value of {metric} yet."]
    values = ", ".join(f"{path} = {_value_text(first, path)}" for path in first.values)
    cost = f"{format_number(first.means[EVALUATIONS])} network evaluations a sample"
    value = measure_text(first.interval(metric))
    head = f"Point {first.number} has the best mean: {metric} = {value} ({better(summary.mode)})"
    sentences = [f"{head}, {cost}: {values}."]
    if len(summary.seeds) == 1 and len(summary.measured) > 1:
        sentences.append("One seed of the noise tells nothing of others, so no points are told apart; set seeds to 5.")
    elif close := summary.close_to_best():
        cheapest = close[0]
        others = listed([each.number for each in close], _MOST_NAMED)
        sentences.append(f"It is not told apart from {len(close)} other{'s' * (len(close) > 1)}: {others}.")
        if cheapest.means[EVALUATIONS] < first.means[EVALUATIONS]:
            names = (f"point {cheapest.number}", f"point {first.number}")
            found = describe_difference(summary.difference(cheapest, first), names, summary.mode, metric)
            price = format_number(cheapest.means[EVALUATIONS])
            sentences.append(f"The cheapest of them is {names[0]}, {price} evaluations a sample ({found}).")
    elif len(summary.measured) > 1:
        sentences.append(f"It is told apart from every other point ({len(summary.seeds)} seeds, 95 % together).")
    front = listed([each.number for each in summary.frontier], _MOST_NAMED)
    sentences.append(f"On the frontier of quality and cost, the best first: {front}.")
    if fell := [each.number for each in summary.measured if entropy_fell(each.means)]:
        points = f"point{'s' * (len(fell) > 1)} {listed(fell, _MOST_NAMED)}"
        sentences.append(
            f"Entropy fell more than {ENTROPY_FALL:.0%} below held-out text's, {points}: "
            "text there repeats itself, by which its perplexity is too good; compare perplexities at equal entropy."
        )
    if not summary.is_done:
        done = sum(bool(each.by_seed) for each in summary.points)
        sentences.append(f"The sweep is not complete: {done} of {len(summary.points)} points are measured.")
    return sentences


def write_sampling_report(
    summary: SamplingSummary, folder: Path, grid: Figure | None, sample_command: str, resume_command: str
) -> list[Path]:
    """Write `report.html`, `report.md` and their pictures into `folder`; return the files in this order.

    `grid` shows samples of the points, a row each. Files are replaced atomically, the pages last. Raises OSError where
    the disk refuses.
    """
    pictures: list[Path] = []

    def picture(name: str, figure: Figure | None, caption: str) -> Part:
        if figure is None:
            (folder / name).unlink(missing_ok=True)  # an earlier report's would not belong to this page
            return Paragraphs("There is nothing to draw yet.")
        pictures.append(save_figure(figure, folder / name))
        return ImageFile(pictures[-1], caption)

    sentences = verdict(summary)
    metric = summary.metric
    ranking = summary.ranking
    intervals = {each.number: each.interval(metric) for each in summary.measured}
    bars = {number: (each.low, each.high) for number, each in intervals.items() if each and len(summary.seeds) > 1}
    columns, rows = rows_of(summary)
    caption = (
        f"The frontier first, then what one point beats, and so on, each from the best mean of {metric} on "
        f"({better(summary.mode)}). Half widths are of 95 % intervals over {len(summary.seeds)} seeds of the noise. "
        "The difference is that to the best of the points that cost no more, paired by seed; the intervals of all "
        "differences hold together at 95 % (Bonferroni over all pairs of points). Guided evaluations count twice."
    )
    shares = importance(ranking)
    about = f"{metric} over network evaluations a sample, a mark a point. {sentences[0]}"
    sections = [
        Section("Quality over cost", [
            picture("frontier.png", frontier_figure(ranking, bars, about), FRONTIER_CAPTION),
            Table(columns, rows, caption),
        ]),
        Section("Samples", [
            picture("samples.png", grid, "A row is a point, in the order of the table; samples in a column share their "
                    f"noise and their condition. Seed {summary.seeds[0]}.")
        ]),
        Section("What mattered", [
            picture("effects.png", effects_figure(ranking, shares, f"{metric} over each axis."), EFFECTS_CAPTION)
        ]),
    ]  # fmt: skip
    if summary.of_text is not None:
        name = summary.of_text.metrics[0]
        real = summary.measured[0].means
        values = [format_number(real.get(f"{each}_held_out", math.nan)) for each in (name, ENTROPY)]
        held_out = f"Held-out text has a perplexity of {values[0]} and an entropy of {values[1]} nats."
        figure = objective_figure(summary.of_text, f"{ENTROPY} against {name}, a mark a point. {held_out}")
        caption = (
            f"A mark is a point of the space; no point beats those in a ring in both. {held_out} Left of and below "
            "that, text repeats itself; right of it, it is less likely than real text."
        )
        sections.insert(1, Section("Perplexity and entropy", [picture("entropy.png", figure, caption)]))
    if others := _other_metrics(summary):
        sections.insert(1, Section("All metrics", [others]))
    how: list[Part] = [
        Table(["", ""], [
            ["sweep", summary.sweep_id],
            ["run", f"{summary.run_id} ({summary.run_name}), step {summary.step:,}"],
            ["samples", f"{summary.samples:,} for each point and seed"],
            ["seeds", listed(summary.seeds, 12)],
            ["time", f"{format_duration(summary.seconds)} of drawing"],
        ])
    ]  # fmt: skip
    if sample_command:
        how += [Paragraphs("Samples of the best point are drawn with:"), Code(sample_command, "shell")]
    if not summary.is_done:
        how += [Paragraphs("Resume the sweep with:"), Code(resume_command, "shell")]
    sections.append(Section("How the sweep was run", how))
    page = Page(f"Sampling sweep: {summary.name}", " ".join(sentences), sections)
    return [write_html(page, folder / "report.html"), write_markdown(page, folder / "report.md"), *pictures]


def _other_metrics(summary: SamplingSummary) -> Table | None:
    """Means of all metrics of samples, where there are others than the sweep's; costs stand in the other table."""
    names = list(dict.fromkeys(name for each in summary.measured for name in each.means if name not in COSTS))
    if len(names) < 2:
        return None
    rows: list[Cells] = [
        [each.number, *(measure_text(each.interval(name)) for name in names)] for each in summary.measured
    ]
    return Table(["point", *names], rows, "Means over seeds, with the half width of the 95 % interval.")


def ranking_table(summary: SamplingSummary) -> dict[str, list[Any]]:
    """Table of the points for MLflow: columns by name, the frontier first."""
    columns, rows = rows_of(summary)
    return {name: [row[place] for row in rows] for place, name in enumerate(columns)}

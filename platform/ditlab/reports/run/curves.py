"""Charts of a run's metrics: loss components with train against held-out, quality, speed, optimiser, machine."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ditlab.reports.charts.chart import Chart, CurvePoints, draw_chart
from ditlab.reports.formatting import Cell
from ditlab.reports.parts import ChartGrid, Fact, Facts, Notice, Paragraphs, Part, Section, Table
from ditlab.reports.run.records import DATA_WAIT, HELD_OUT, SPEED, TRAIN, TRAIN_LOSS, RunContent
from ditlab.reports.time_summary import time_summary

MOST_CHARTS = 40
"""Charts of one section; the others are named in a sentence."""
_OPTIMISER = ("grad_norm", "lr")
_MACHINE = "system/"
_LATER = ("held_out/", "assessed/")
"""Prefixes of metrics that `ditlab evaluate` adds."""

_QUALITY_CAPTION = (
    "Distances to this data set's real images: they compare runs on the same data, never with published FID."
)
_THINNED = (
    "Lines of many points: the median of each stretch of steps; the area around it: its lowest to its highest value."
)


def curves_section(run: RunContent) -> Section:
    """Charts by loss component, training and held-out values in one; optimiser and machine folded."""
    names = _loss_names(run)
    charts = [_chart(run, name, [(f"{TRAIN}{name}", "train", "train"), (f"{HELD_OUT}{name}", "held out", "held-out")])
              for name in names[:MOST_CHARTS]]  # fmt: skip
    parts = _grid("loss", charts, names[MOST_CHARTS:])
    if not parts:
        parts = [Notice("The journal holds no metrics of this run yet.")]
    elif not any(name.startswith(HELD_OUT) for name in run.metrics):
        parts.append(
            Paragraphs("The run was not evaluated on held-out samples, so the curves are the training's alone.")
        )
    by_part = [name for name in run.metrics if name.startswith(HELD_OUT) and _is_of_part(name.removeprefix(HELD_OUT))]
    folded = [("Held-out samples of each part", _plain_charts(run, "parts", by_part))]
    folded += [("Optimiser", _plain_charts(run, "optimiser", [f"{TRAIN}{name}" for name in _OPTIMISER]))]
    machine = sorted(name for name in run.metrics if name.startswith(_MACHINE))
    folded.append(("Load of the machine", _plain_charts(run, "machine", machine)))
    return Section("Curves", parts, "curves", [each for each in folded if each[1]])


def _loss_names(run: RunContent) -> list[str]:
    """Metrics without their prefix: the loss, its components by weight, then what only evaluations measure."""
    trained = [name.removeprefix(TRAIN) for name in run.metrics if name.startswith(TRAIN)]
    held_out = [name.removeprefix(HELD_OUT) for name in run.metrics if name.startswith(HELD_OUT)]
    left_out = {*_OPTIMISER, SPEED.removeprefix(TRAIN), DATA_WAIT.removeprefix(TRAIN)}
    known = dict.fromkeys(["loss", *run.components, *trained, *(name for name in held_out if not _is_of_part(name))])
    return [name for name in known if (name in trained or name in held_out) and name not in left_out]


def _is_of_part(name: str) -> bool:
    """Return True for a held-out metric of one part of a mixture: `NAME/velocity`."""
    return "/" in name


def quality_section(run: RunContent) -> Section | None:
    """Quality of the samples, and what `ditlab evaluate` measured; None where there is neither."""
    measured = sorted(name for name in run.metrics if name.startswith("quality/"))
    later = sorted(name for name in run.metrics if name.startswith(_LATER))
    if not measured and not later:
        return None
    rows: list[list[Cell]] = []
    for name in [*measured, *later]:
        series = run.metrics[name]
        best = np.nanmin(series.values) if np.isfinite(series.values).any() else np.nan
        rows.append([name, float(series.values[-1]), int(series.steps[-1]), float(best), len(series.values)])
    caption = _QUALITY_CAPTION if measured else ""
    table = Table(["metric", "last value", "at step", "lowest", "measurements"], rows[:200], caption)
    several = [name for name in [*measured, *later] if len(run.metrics[name].values) > 1]
    return Section("Quality of the samples", [table, *_plain_charts(run, "quality", several)], "quality")


def speed_section(run: RunContent) -> Section | None:
    """Samples a second and the wait for data over the steps, and the time of training; None without a speed."""
    if SPEED not in run.metrics:
        return None
    values = run.metrics[SPEED].values
    values = values[np.isfinite(values) & (values > 0)]
    facts = []
    if len(values):
        low, middle, high = (float(np.quantile(values, share)) for share in (0.05, 0.5, 0.95))
        facts = [
            Fact("median", f"{_pace(middle)} samples/s", f"9 of 10 steps: {_pace(low)} to {_pace(high)}"),
            *([Fact("a step takes", f"{1000 * run.batch_size / middle:,.3g} ms", f"{run.batch_size:,} samples")]
              if run.batch_size else []),
        ]  # fmt: skip
    parts: list[Part] = [Facts(facts)] if facts else []
    folded = [("Utilisation and memory", _plain_charts(run, "utilisation", _named(run, "perf/"))),
              ("Seconds a step by phase", _plain_charts(run, "phases", _named(run, "time/")))]  # fmt: skip
    parts += [*_times(run), *_plain_charts(run, "speed", [SPEED, DATA_WAIT])]
    return Section("Speed", parts, "speed", [each for each in folded if each[1]])


def _times(run: RunContent) -> list[Part]:
    """Table of where the time went; nothing where the run has logged no times."""
    times = time_summary(run.metrics, run.tags.get("ditlab.straggler", ""))
    if times is None:
        return []
    rows: list[list[Cell]] = [[each.name, each.seconds, f"{each.share:.1%}", each.step_ms] for each in times.shares()]
    heading = times.heading()
    caption = f"{heading[0].upper()}{heading[1:]}. {'; '.join(times.sentences())}"
    return [Table(["phase", "seconds", "share", "ms a step"], rows, caption)]


def _named(run: RunContent, prefix: str) -> list[str]:
    return sorted(name for name in run.metrics if name.startswith(prefix))


def median_speed(run: RunContent) -> float | None:
    """Median samples a second; None where it is unknown."""
    if SPEED not in run.metrics:
        return None
    values = run.metrics[SPEED].values
    values = values[np.isfinite(values) & (values > 0)]
    return float(np.median(values)) if len(values) else None


def num_bad_steps(run: RunContent) -> int:
    """Steps whose training loss was NaN or infinite."""
    series = run.metrics.get(TRAIN_LOSS)
    return 0 if series is None else int((~np.isfinite(series.values)).sum())


def _pace(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"


def _plain_charts(run: RunContent, place: str, names: Iterable[str]) -> list[Part]:
    known = [name for name in names if name in run.metrics]
    charts = [_chart(run, name, [(name, name.rpartition("/")[2], "other")]) for name in known[:MOST_CHARTS]]
    return _grid(place, charts, known[MOST_CHARTS:])


def _chart(run: RunContent, title: str, curves: Iterable[tuple[str, str, str]]) -> Chart | None:
    found = [
        CurvePoints(label, run.metrics[name].steps, run.metrics[name].values, role)
        for name, label, role in curves
        if name in run.metrics
    ]
    return draw_chart(title, found)


def _grid(place: str, charts: Iterable[Chart | None], left_out: list[str]) -> list[Part]:
    """Charts with keys of their own: names of metrics may differ in characters that no key holds."""
    drawn = [chart.with_key(f"chart-{place}-{number}") for number, chart in enumerate(filter(None, charts), start=1)]
    captions = [_THINNED] if any(chart.is_thinned for chart in drawn) else []
    if left_out:
        captions.append(f"{len(left_out):,} more metrics are not drawn; MLflow and `Run.metrics()` have them.")
    return [ChartGrid(drawn, " ".join(captions))] if drawn else []

"""Sentences that open a sweep's report: which axes matter and how sure that is, what to try next, what it cost."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from scipy import stats

from ditlab.reports.formatting import describe_value, format_number
from ditlab.reports.sweep_axes import PlotAxis, ended_with_value, outcome_ranks, plot_axis
from ditlab.reports.sweep_records import SweepSummary, Trial, device_hours, rank, why_incomparable

Key = TypeVar("Key")
SURE = 0.05
"""Largest p of a stated effect, after Holm's correction for the number of axes, or of pairs of axes."""
MIN_TRIALS = 8
_GROUPS, _LEAST_IN_GROUP = 4, 3
_EARLY = (0.1, 0.25, 0.5)
"""Parts of a trial's steps at which early values are compared with final ones."""
_OUTER = 0.1
"""Part of an axis, at either end, in which the best trials call for a wider one."""
METHOD = (
    "An axis matters where trials' ranks differ between its values, or between quarters of its range (Kruskal and "
    "Wallis 1952); two interact where their groups' mean ranks do not add up (F test of a linear model of ranks). p is "
    "the chance of as large a difference without any effect, corrected for the number of tests (Holm 1979)."
)


def conclusions(summary: SweepSummary) -> list[str]:
    """Write what a person can act on, a paragraph each; each states what was measured, and is left out otherwise."""
    if why_incomparable(summary):
        return list(_cost(summary))
    return [*_axes(summary), *_interaction(summary), *_next(summary), *_early_ranks(summary), *_cost(summary)]


def axis_effects(summary: SweepSummary) -> dict[str, float]:
    """Return p of each axis' effect on the trials' ranks by path, after Holm's correction; {} for too few trials."""
    trials = ended_with_value(summary)
    if len(trials) < MIN_TRIALS:
        return {}
    ranks = outcome_ranks(summary, trials)
    found = {}
    for axis in summary.axes:
        groups = _groups(plot_axis(axis, trials), trials)
        parts = [ranks[groups == group] for group in np.unique(groups[groups >= 0])]
        if len(parts) > 1 and len(np.unique(np.concatenate(parts))) > 1:
            found[axis.path] = float(stats.kruskal(*parts).pvalue)
    return _holm(found)


def interactions(summary: SweepSummary) -> dict[tuple[str, str], float]:
    """Return p of the interaction of each two axes, after Holm's correction; {} for too few trials."""
    trials = ended_with_value(summary)
    if len(trials) < MIN_TRIALS:
        return {}
    ranks = outcome_ranks(summary, trials)
    groups = {axis.path: _groups(plot_axis(axis, trials), trials) for axis in summary.axes}
    found = {}
    for one, other in itertools.combinations(groups, 2):
        used = (groups[one] >= 0) & (groups[other] >= 0)
        if (p := _interaction_p(groups[one][used], groups[other][used], ranks[used])) is not None:
            found[one, other] = p
    return _holm(found)


def _groups(axis: PlotAxis, trials: Sequence[Trial]) -> np.ndarray:
    """Group trials by an axis, (trials,): by category or value, many values by quarters; -1 where the axis is not used,
    or where too few trials share the group."""
    raw = np.array([axis.raw.get(trial.number, math.nan) for trial in trials])
    used = ~np.isnan(raw)
    values = np.unique(raw[used])
    groups = np.full(len(trials), -1)
    if len(values) <= _GROUPS or axis.scale == "category":
        groups[used] = np.searchsorted(values, raw[used])
    else:
        edges = np.quantile(raw[used], np.arange(1, _GROUPS) / _GROUPS)
        groups[used] = np.searchsorted(edges, raw[used], side="right")
    for group, count in Counter(groups.tolist()).items():
        if count < _LEAST_IN_GROUP:
            groups[groups == group] = -1
    return groups


def _interaction_p(one: np.ndarray, other: np.ndarray, ranks: np.ndarray) -> float | None:
    """Return p of the F test of an additive model of ranks against the cells' means; None without the degrees of
    freedom for it."""
    if not len(ranks):
        return None

    def indicators(groups: np.ndarray) -> np.ndarray:
        return (groups[:, None] == np.unique(groups)).astype(float)

    cells = indicators(one * (other.max() + 1) + other)
    models = (np.concatenate([indicators(one), indicators(other)], axis=1), cells)
    sums = []
    freedoms = []
    for model in models:
        weights, _, order, _ = np.linalg.lstsq(model, ranks, rcond=None)
        sums.append(float(((ranks - model @ weights) ** 2).sum()))
        freedoms.append(len(ranks) - int(order))
    more = freedoms[0] - freedoms[1]
    left = freedoms[1]
    if more < 1 or left < len(ranks) / 4 or sums[1] <= 0:  # with few trials a cell the means are the trials themselves
        return None
    return float(stats.f.sf((sums[0] - sums[1]) / more / (sums[1] / left), more, left))


def _holm(found: Mapping[Key, float]) -> dict[Key, float]:
    """Correct p values for their number (Holm 1979, "A simple sequentially rejective multiple test procedure")."""
    corrected = {}
    largest = 0.0
    for place, (key, p) in enumerate(sorted(found.items(), key=lambda each: each[1])):
        largest = corrected[key] = max(largest, min(1.0, p * (len(found) - place)))
    return corrected


def _axes(summary: SweepSummary) -> Iterator[str]:
    effects = axis_effects(summary)
    num = f"{len(ended_with_value(summary))} {summary.unit}s"
    if not effects:
        if summary.axes:
            yield f"Which axes matter is not known: {num} ended with a value, and {MIN_TRIALS} are needed."
        return
    sure = [f"{path} (p = {p:.2g})" for path, p in sorted(effects.items(), key=lambda each: each[1]) if p <= SURE]
    other = [path for path, p in effects.items() if p > SURE]
    found = [f"{'These axes matter' if len(sure) > 1 else 'One axis matters'}: {', '.join(sure)}."] if sure else []
    if other:
        found.append(f"No effect of {', '.join(other)} was told apart from chance in {num}.")
    if summary.search == "optuna":
        found.append("Values that the search proposes follow earlier results, so p is a hint only.")
    yield from (" ".join(found), METHOD)


def _interaction(summary: SweepSummary) -> Iterator[str]:
    sure = [(p, pair) for pair, p in interactions(summary).items() if p <= SURE]
    if sure:
        p, (one, other) = min(sure)
        yield f"The best {one} depends on {other} (interaction, p = {p:.2g}): choose the two together."


def _next(summary: SweepSummary) -> Iterator[str]:
    """Name axes at whose end all of the best trials lie."""
    trials = ended_with_value(summary)
    if len(trials) < MIN_TRIALS:
        return
    numbers = {trial.number for trial in trials}
    top = [trial for trial in rank(summary) if trial.number in numbers][: max(3, len(trials) // 10)]
    found = []
    for axis in summary.axes:
        placed = plot_axis(axis, trials)
        places = [placed.positions.get(trial.number, 0.5) for trial in top]
        if placed.scale == "category" or placed.high <= placed.low:
            continue
        is_low = max(places) <= _OUTER
        if is_low or min(places) >= 1 - _OUTER:
            ends = f"from {_value(placed, placed.low)} to {_value(placed, placed.high)}"
            end = "low" if is_low else "high"
            found.append(f"the best {len(top)} trials lie at the {end} end of {axis.path} ({ends})")
    if found:
        yield f"To try next: {'; '.join(found)}, so widen {'it' if len(found) == 1 else 'them'} there."


def _value(placed: PlotAxis, raw: float) -> str:
    return describe_value(float(format_number(math.exp(raw) if placed.scale == "log" else raw)))


def _early_ranks(summary: SweepSummary) -> Iterator[str]:
    """Compare ranks early in training with final ones, among finished trials: was stopping early right?"""
    name = summary.metrics[0]
    done = [trial for trial in ended_with_value(summary) if trial.status == "finished" and name in trial.curves]
    if len(done) < MIN_TRIALS:
        return
    texts = [text for part in _EARLY if (text := _early_rank(summary, done, part))]
    if texts:
        left = sum(trial.status == "stopped" for trial in summary.trials)
        about = f" The {left} trials that were stopped have no final rank." if left else ""
        yield (
            f"Ranks of early values against final ones, of {len(done)} finished trials (Spearman's correlation, 95 %): "
            f"{'; '.join(texts)}.{about}"
        )


def _early_rank(summary: SweepSummary, done: Sequence[Trial], part: float) -> str:
    """Clause on ranks after a part of the steps; empty where values are missing, or all are equal."""
    name = summary.metrics[0]
    sign = -1.0 if summary.modes[0] == "max" else 1.0
    step = part * max(trial.total_steps for trial in done)
    early = [_value_at(trial, name, step) for trial in done]
    final = sign * np.array([trial.metrics[name] for trial in done])
    if None in early or len(set(early)) == 1 or len(set(final.tolist())) == 1:
        return ""
    values = sign * np.array(early, dtype=float)
    rho = float(stats.spearmanr(values, final).statistic)
    low, high = _correlation_interval(rho, len(done))
    place = int((values < values[int(final.argmin())]).sum()) + 1
    return (
        f"at {100 * part:.0f} % of the steps {rho:.2f} ({low:.2f} to {high:.2f}), where the final best was number "
        f"{place}"
    )


def _value_at(trial: Trial, name: str, step: float) -> float | None:
    """Return a metric's newest finite value at a step; None before the first."""
    curve = trial.curves[name]
    points = [value for at, value in zip(curve.steps, curve.values, strict=True) if 0 < at <= step]
    return points[-1] if points and math.isfinite(points[-1]) else None


def _correlation_interval(rho: float, num: int) -> tuple[float, float]:
    """Return the 95 % interval of Spearman's correlation (Bonett and Wright 2000, equation 6)."""
    if abs(rho) >= 1:
        return rho, rho
    half = 1.96 * math.sqrt((1 + rho**2 / 2) / (num - 3))
    return math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half)


def _cost(summary: SweepSummary) -> Iterator[str]:
    hours = device_hours(summary.trials)
    if not hours:
        return
    failed = [trial for trial in summary.trials if trial.status == "failed"]
    lost = device_hours(failed)
    texts = [f"{hours[kind]:.3g} {kind} hours" for kind in hours]
    texts += [f"{lost[kind]:.2g} {kind} hours of these in {len(failed)} failed trials" for kind in lost if lost[kind]]
    yield f"Cost: {', '.join(texts)}."

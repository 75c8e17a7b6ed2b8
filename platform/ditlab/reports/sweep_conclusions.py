"""Sentences that open a sweep's report: how ranks spread along its axes, what to try next, what it cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ditlab.reports.formatting import describe_value, format_number
from ditlab.reports.sweep_axes import PlotAxis, ended_with_value, outcome_ranks, plot_axis
from ditlab.reports.sweep_records import SweepSummary, Trial, device_hours, rank, why_incomparable

MIN_TRIALS = 8
_GROUPS, _LEAST_IN_GROUP = 4, 3
_EARLY = (0.1, 0.25, 0.5)
"""Parts of a trial's steps at which early values are compared with final ones."""
_OUTER = 0.1
"""Part of an axis, at either end, in which the best trials call for a wider one."""
_SHUFFLES = 200
_CLEAR = 2.0
"""Spread over that of shuffled ranks from which an axis is advised on."""
METHOD = (
    "Ranks are from 0, the best, to 100. A spread is the difference between the mean ranks of the best and the worst "
    "group of trials: of one value, or of a quarter of an axis' range. By chance: its mean over shuffled ranks."
)


def conclusions(summary: SweepSummary) -> list[str]:
    """Write what a person can act on, a paragraph each; each states what was measured, and is left out otherwise."""
    if why_incomparable(summary):
        return list(_cost(summary))
    return [*_axes(summary), *_next(summary), *_early_ranks(summary), *_cost(summary)]


@dataclass(frozen=True)
class RankSpread:
    """Differences of the trials' mean ranks along an axis. Ranks are from 0, the best, to 100."""

    path: str
    spread: float
    """Mean rank of the worst group of trials minus that of the best one."""
    by_chance: float
    """Mean spread of the same groups where ranks are shuffled."""
    best: str
    """Values of the best group."""


def rank_spreads(summary: SweepSummary) -> list[RankSpread]:
    """Return the spread along each axis, the largest first; [] for too few trials, or where all have one value."""
    trials = ended_with_value(summary)
    ranks = outcome_ranks(summary, trials)
    if len(trials) < MIN_TRIALS or np.ptp(ranks) == 0:
        return []
    ranks = 100 * ranks / (len(trials) - 1)
    shuffled = np.random.default_rng(0).permuted(np.tile(ranks, (_SHUFFLES, 1)), axis=1)
    found = []
    for axis in summary.axes:
        placed = plot_axis(axis, trials)
        groups = _groups(placed, trials)
        is_in = groups == np.unique(groups[groups >= 0])[:, None]  # (num_groups, num_trials)
        if len(is_in) < 2:
            continue
        weights = is_in / is_in.sum(axis=1, keepdims=True)
        means = weights @ ranks
        by_chance = np.ptp(shuffled @ weights.T, axis=1).mean()
        best = [trials[index] for index in np.flatnonzero(is_in[means.argmin()])]
        found.append(RankSpread(axis.path, float(np.ptp(means)), float(by_chance), _values_of(placed, best)))
    return sorted(found, key=lambda each: -each.spread)


def _values_of(axis: PlotAxis, trials: Sequence[Trial]) -> str:
    raw = [axis.raw[trial.number] for trial in trials]
    if axis.scale == "category":
        return axis.names[int(raw[0])]
    low = _value(axis, min(raw))
    high = _value(axis, max(raw))
    return low if low == high else f"{low} to {high}"


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


def _axes(summary: SweepSummary) -> Iterator[str]:
    spreads = rank_spreads(summary)
    num = len(ended_with_value(summary))
    if num < MIN_TRIALS and summary.axes:
        yield (
            f"Which axes matter is not known: {num} {summary.unit}s ended with a value, and {MIN_TRIALS} are needed."
        )
    if not spreads:
        return
    texts = [f"{each.path} {each.spread:.0f} (by chance {each.by_chance:.0f})" for each in spreads]
    found = [f"Spread of mean ranks along each axis, of 100, in {num} {summary.unit}s: {', '.join(texts)}."]
    clear = [f"{each.path} at {each.best}" for each in spreads if each.spread > _CLEAR * each.by_chance]
    if clear:
        found.append(f"Ranks are best with {', '.join(clear)}: search there.")
    unclear = [each.path for each in spreads if each.spread <= _CLEAR * each.by_chance]
    if unclear:
        found.append(f"Along {', '.join(unclear)} ranks differ little more than by chance: fix what is not needed.")
    if summary.search == "optuna":
        found.append("Values that the search proposes follow earlier results, so spreads are a hint only.")
    yield " ".join(found)
    yield METHOD


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
            f"Ranks of early values against final ones, of {len(done)} finished trials (Spearman's correlation): "
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
    place = int((values < values[int(final.argmin())]).sum()) + 1
    return f"at {100 * part:.0f} % of the steps {rho:.2f}, where the final best was number {place}"


def _value_at(trial: Trial, name: str, step: float) -> float | None:
    """Return a metric's newest finite value at a step; None before the first."""
    curve = trial.curves[name]
    points = [value for at, value in zip(curve.steps, curve.values, strict=True) if 0 < at <= step]
    return points[-1] if points and math.isfinite(points[-1]) else None


def _cost(summary: SweepSummary) -> Iterator[str]:
    hours = device_hours(summary.trials)
    if not hours:
        return
    failed = [trial for trial in summary.trials if trial.status == "failed"]
    lost = device_hours(failed)
    texts = [f"{hours[kind]:.3g} {kind} hours" for kind in hours]
    texts += [f"{lost[kind]:.2g} {kind} hours of these in {len(failed)} failed trials" for kind in lost if lost[kind]]
    yield f"Cost: {', '.join(texts)}."

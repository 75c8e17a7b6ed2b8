"""Sentences that open a sweep's report: how ranks spread along its axes, what to try next, what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy import stats

from ditlab.reports.sweep_axes import MIN_TRIALS, ended_with_value, importance, plot_axis
from ditlab.reports.sweep_records import SweepSummary, Trial, device_hours, rank, why_incomparable

_EARLY = (0.1, 0.25, 0.5)
"""Parts of a trial's steps at which early values are compared with final ones."""
_OUTER = 0.1
"""Part of an axis, at either end, in which the best trials call for a wider one."""


def conclusions(summary: SweepSummary) -> list[str]:
    """Write what a person can act on, a paragraph each; each states what was measured, and is left out otherwise."""
    if why_incomparable(summary):
        return list(_cost(summary))
    return [*_axes(summary), *_next(summary), *_early_ranks(summary), *_cost(summary)]


def _axes(summary: SweepSummary) -> Iterator[str]:
    found = importance(summary)
    num = len(ended_with_value(summary))
    if num < MIN_TRIALS and summary.axes:
        yield (
            f"Which axes matter is not known: {num} {summary.unit}s ended with a value, and {MIN_TRIALS} are needed."
        )
    if not found:
        return
    spreads = [f"{path} {each.spread:.0f} (by chance {each.by_chance:.0f})" for path, each in found.items()]
    sentences = [f"Spread of mean ranks along each axis, of 100, in {num} {summary.unit}s: {', '.join(spreads)}."]
    clear = {path: each for path, each in found.items() if each.is_clear}
    if clear:
        best = ", ".join(f"{path} at {each.best}" for path, each in clear.items())
        sentences.append(f"Ranks are best with {best}: search there.")
    unclear = [path for path in found if path not in clear]
    if unclear:
        sentences.append(
            f"Along {', '.join(unclear)} ranks differ no more than they may by chance: fix what is not needed."
        )
    if summary.search == "optuna":
        sentences.append("Values that the search proposes follow earlier results, so spreads are a hint only.")
    yield " ".join(sentences)


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
            ends = f"from {placed.text(placed.low)} to {placed.text(placed.high)}"
            end = "low" if is_low else "high"
            found.append(f"the best {len(top)} trials lie at the {end} end of {axis.path} ({ends})")
    if found:
        yield f"To try next: {'; '.join(found)}, so widen {'it' if len(found) == 1 else 'them'} there."


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

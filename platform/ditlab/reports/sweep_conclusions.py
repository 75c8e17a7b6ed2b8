"""Sentences that open a sweep's report: how ranks spread along its axes, what to try next, what it cost."""

from __future__ import annotations

from collections.abc import Iterator

from ditlab.reports.sweep_axes import MIN_TRIALS, ended_with_value, importance, plot_axis
from ditlab.reports.sweep_records import SweepSummary, device_hours, rank, why_incomparable

_OUTER = 0.1
"""Part of an axis, at either end, in which the best trials call for a wider one."""


def conclusions(summary: SweepSummary) -> list[str]:
    """Write what a person can act on, a paragraph each; each states what was measured, and is left out otherwise."""
    if why_incomparable(summary):
        return list(_cost(summary))
    return [*_axes(summary), *_next(summary), *_cost(summary)]


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
        positions = placed.positions
        places = [positions.get(trial.number, 0.5) for trial in top]
        if placed.names:
            continue
        is_low = max(places) <= _OUTER
        if is_low or min(places) >= 1 - _OUTER:
            lowest, highest = min(placed.raw.values()), max(placed.raw.values())
            ends = f"from {placed.text(lowest)} to {placed.text(highest)}"
            end = "low" if is_low else "high"
            found.append(f"the best {len(top)} trials lie at the {end} end of {axis.path} ({ends})")
    if found:
        yield f"To try next: {'; '.join(found)}, so widen {'it' if len(found) == 1 else 'them'} there."


def _cost(summary: SweepSummary) -> Iterator[str]:
    hours = device_hours(summary.trials)
    if not hours:
        return
    failed = [trial for trial in summary.trials if trial.status == "failed"]
    lost = device_hours(failed)
    texts = [f"{hours[kind]:.3g} {kind} hours" for kind in hours]
    texts += [f"{lost[kind]:.2g} {kind} hours of these in {len(failed)} failed trials" for kind in lost if lost[kind]]
    yield f"Cost: {', '.join(texts)}."

"""Summary of a comparison in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ditlab.reports.comparison.curves import EqualBudget
from ditlab.reports.comparison.records import ComparedRun, Comparison
from ditlab.reports.formatting import format_cell, format_duration, format_number

LEVEL = 0.01
"""Two values are called level if they differ by less than this fraction of the lower one."""
_LISTED_RUNS = 4


def amount(budget: EqualBudget) -> str:
    """Format a budget: `150 steps`, `19,200 samples`, `48 s`."""
    if budget.axis == "seconds":
        return format_duration(budget.amount)
    return f"{round(budget.amount):,} {budget.axis}"


def summary_text(comparison: Comparison) -> str:
    """Name the run with the lower held-out error at equal budgets, then the runs' parameters and speeds."""
    forks = " ".join(fork_sentence(comparison, run) for run in comparison.runs if run.line)
    sentences = [
        forks,
        _ranking(comparison),
        comparison.measured_apart("eval"),
        comparison.measured_apart("quality"),
        _sizes(comparison.runs, comparison),
        _unfinished(comparison),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def fork_sentence(comparison: Comparison, run: ComparedRun) -> str:
    """Say which run a fork goes on from: `wide goes on from base at step 400.`"""
    parent = run.line[0]
    known = {each.run_id: comparison.label(each) for each in comparison.runs}
    ancestor = comparison.nearest_ancestor(run)
    is_through = ancestor is not None and ancestor.run_id != parent.run_id
    through = f", by which it descends from {comparison.label(ancestor)}" if ancestor and is_through else ""
    name = known.get(parent.run_id, f"run {parent.run_id}")
    return f"{comparison.label(run)} goes on from {name} at step {parent.step:,}{through}."


def _ranking(comparison: Comparison) -> str:
    if comparison.obstacle:
        return f"Which run is better cannot be said: {comparison.obstacle}."
    equals_steps = len({run.batch_size for run in comparison.evaluated}) == 1
    shown = [budget for budget in comparison.budgets if not (budget.axis == "samples" and equals_steps)]
    by_winner: dict[str | None, list[EqualBudget]] = {}
    for budget in shown:
        by_winner.setdefault(_winner(comparison, budget), []).append(budget)
    if not by_winner:
        return "Which run is better cannot be said: the runs were evaluated at no common step."
    parts = [_clause(comparison, winner, budgets) for winner, budgets in by_winner.items()]
    unranked = [comparison.label(run) for run in comparison.runs if not run.held_out]
    without = f" {_listed(unranked)} cannot be ranked, without held-out metrics." if unranked else ""
    return f"Held-out error ({comparison.main}): {'; '.join(parts)}.{without}"


def lowest(comparison: Comparison, budget: EqualBudget) -> str:
    """Label of the run with the lowest value, or `level`."""
    return _winner(comparison, budget) or "level"


def _winner(comparison: Comparison, budget: EqualBudget) -> str | None:
    """Label of the run with the lowest value; None where the two lowest are level, or no value is finite."""
    order = _order(budget)
    if not order:
        return None
    if len(order) > 1:
        first, second = budget.values[order[0]], budget.values[order[1]]
        if second - first < LEVEL * abs(first):
            return None
    return comparison.label(comparison.evaluated[order[0]])


def _order(budget: EqualBudget) -> list[int]:
    """Indices of the runs by value, the lowest first, without NaN and infinities."""
    return [int(i) for i in np.argsort(budget.values) if np.isfinite(budget.values[i])]


def _clause(comparison: Comparison, winner: str | None, budgets: Sequence[EqualBudget]) -> str:
    """Write one clause: `digits-unet is lower: 0.531 against 0.648 at equal steps (150 steps) and ...`."""
    has_many = len(comparison.evaluated) > 2
    values_at = []
    for budget in budgets:
        values = " against ".join(format_number(budget.values[place]) for place in _order(budget)[:2]) or "no numbers"
        kind = "time" if budget.axis == "seconds" else budget.axis
        values_at.append(f"{values} at equal {kind} ({amount(budget)})")
    if winner is None:
        return f"{'the two lowest' if has_many else 'the runs'} are level (within {LEVEL:.0%}): {_listed(values_at)}"
    return f"{winner} is {'lowest, before the next' if has_many else 'lower'}: {_listed(values_at)}"


def _sizes(runs: Sequence[ComparedRun], comparison: Comparison) -> str:
    if len(runs) > _LISTED_RUNS:
        small, large = (pick(runs, key=lambda run: run.parameters) for pick in (min, max))
        return (
            f"Parameters go from {small.parameters:,} ({comparison.label(small)}) to {large.parameters:,} "
            f"({comparison.label(large)})."
        )
    parts = []
    for run in runs:
        speed = run.samples_per_second
        pace = (
            "" if speed is None else f" and trained at {format_cell(round(speed) if speed >= 100 else speed)} samples/s"
        )
        parts.append(f"{comparison.label(run)} has {run.parameters:,} parameters{pace}")
    return f"{'; '.join(parts)}."


def _unfinished(comparison: Comparison) -> str:
    others = [f"{comparison.label(run)} ({run.status})" for run in comparison.runs if run.status != "finished"]
    return f"Not finished: {', '.join(others)}." if others else ""


def _listed(parts: Sequence[str]) -> str:
    """Join with commas: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))

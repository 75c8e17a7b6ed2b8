"""Summary of a sweep in sentences: the best trial, its values and its distance from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import median

from ditlab.reports.formatting import describe_value, format_number, shorten
from ditlab.reports.sweeps.ranking import best, objectives, pareto, rank
from ditlab.reports.sweeps.records import ENDED, SweepSummary, Trial

_CLOSE = 0.01
"""Relative distance within which another seed would often change the order."""
_VALUE_CHARACTERS = 60
_SETTINGS = 6


def summary_text(summary: SweepSummary, shares: Mapping[str, float]) -> str:
    """Summarise the result and the next step; `shares` are the importances by axis path."""
    first = best(summary)
    sentences = _nothing(summary) if first is None else _verdict(summary, first, shares)
    return " ".join([*sentences, *_unfinished(summary)])


def better(mode: str) -> str:
    """Describe the mode: `lower is better`."""
    return "lower is better" if mode == "min" else "higher is better"


def is_done(summary: SweepSummary) -> bool:
    """Return True if no trial is left to start or to resume."""
    return len(summary.trials) >= summary.total_trials and all(trial.status in ENDED for trial in summary.trials)


def counts(summary: SweepSummary) -> str:
    """Count trials by status: `9 finished, 4 stopped, 1 failed`."""
    order = ("finished", "stopped", "interrupted", "running", "failed", "waiting")
    number_of = Counter(trial.status for trial in summary.trials)
    return ", ".join(f"{number_of[status]} {status}" for status in order if number_of[status]) or "none yet"


def settings(summary: SweepSummary, trial: Trial, shares: Mapping[str, float]) -> str:
    """Format a trial's six most important values: `optimizer.lr = 0.0003, batch.size = 64`."""
    used = [axis.path for axis in summary.axes if axis.path in trial.values]
    used.sort(key=lambda path: -shares.get(path, 0.0))
    texts = [f"{path} = {shorten(describe_value(trial.values[path]), _VALUE_CHARACTERS)}" for path in used[:_SETTINGS]]
    return ", ".join(texts) + (f" and {len(used) - _SETTINGS} more axes" if len(used) > _SETTINGS else "")


def _nothing(summary: SweepSummary) -> list[str]:
    failed = [trial for trial in rank(summary) if trial.status == "failed"]
    if failed and len(failed) == len(summary.trials):
        count = "The only trial" if len(failed) == 1 else f"All {len(failed)} trials"
        return [f"{count} failed, so nothing can be ranked. Trial {failed[0].number}: {_one_line(failed[0].note)}"]
    names = " and ".join(summary.metrics)
    return [f"No trial has a finite value of {names} yet ({counts(summary)}), so nothing can be ranked."]


def _verdict(summary: SweepSummary, first: Trial, shares: Mapping[str, float]) -> list[str]:
    name, mode = summary.metrics[0], summary.modes[0]
    value = first.metrics[name]
    of = f"of the {len(summary.trials)} trials" if len(summary.trials) > 1 else "and only trial"
    head = f"Trial {first.number} is the best {of}: {name} = {format_number(value)} ({better(mode)})"
    chosen = settings(summary, first, shares)
    sentences = [f"{head}, with {chosen}." if chosen else f"{head}."]
    if first.status != "finished":
        sentences.append(
            f"It is {first.status} at step {first.step:,} of {first.total_steps:,}: none has finished yet."
        )
    if len(summary.metrics) == 1:
        return [*sentences, *_distance(summary, first)]
    sentences[0] = sentences[0].replace("is the best", f"is, in {name} alone, the best")
    return [_trade_off(summary), *sentences]


def _trade_off(summary: SweepSummary) -> str:
    front = pareto(summary)
    listed = ", ".join(str(trial.number) for trial in front[:12]) + (", ..." if len(front) > 12 else "")
    names = ", ".join(f"{name} ({better(mode)})" for name, mode in zip(summary.metrics, summary.modes, strict=True))
    if not front:
        return f"No trial has finished with a value of each of {names}."
    if len(front) == 1:
        return f"Trial {listed} is better than or equal to every other finished one in each of {names}: no trade-off."
    return (
        f"{len(front)} trials are Pareto-optimal in {names}, best in the first to last: {listed}. Choose among these."
    )


def _distance(summary: SweepSummary, first: Trial) -> list[str]:
    """Compare the best trial with the next one and the median, among trials of its status."""
    name = summary.metrics[0]
    peers = [
        trial for trial in rank(summary) if trial.status == first.status and objectives(summary, trial) is not None
    ]
    if len(peers) < 2:
        return []
    top, values = first.metrics[name], [trial.metrics[name] for trial in peers]
    if values[0] == values[-1]:
        return [f"All {len(peers)} {first.status} trials reached this value: the axes made no difference, any will do."]
    middle = median(values)
    sentences = [
        f"The next, trial {peers[1].number}, is at {format_number(values[1])} ({_gap(values[1], top)}); "
        f"the median {first.status} trial is at {format_number(middle)} ({_gap(middle, top)})."
    ]
    close = sum(abs(value - top) <= _CLOSE * abs(top) for value in values[1:])
    if close:
        others = "Trial " + str(peers[1].number) + " is" if close == 1 else f"{close} others are"
        sentences.append(f"{others} within 1 % of it: repeat these with other seeds before you rely on the order.")
    return sentences


def _gap(value: float, top: float) -> str:
    if value == top:
        return "the same"
    share = abs(value - top) / abs(top) if top else float("inf")
    return f"{100 * share:.2g} % worse" if share < 1 else f"worse by {format_number(abs(value - top))}"


def _unfinished(summary: SweepSummary) -> list[str]:
    if is_done(summary):
        return []
    ended = sum(trial.status in ENDED for trial in summary.trials)
    return [f"The sweep is not complete: {ended} of {summary.total_trials} trials have ended ({counts(summary)})."]


def _one_line(note: str) -> str:
    return shorten(" ".join(note.split()), 300) or "no reason was recorded."

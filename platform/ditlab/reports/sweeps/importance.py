"""Importance of each axis of a sweep for its metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ditlab.reports.sweeps.axes import PlotAxis, plot_axis
from ditlab.reports.sweeps.ranking import objectives
from ditlab.reports.sweeps.records import SweepSummary, Trial

MIN_TRIALS = 6
_TREES = 200
_REPEATS = 8
_SEED = 0

METHOD = (
    "Permutation importance (Breiman 2001) of a random forest that predicts a trial's rank from the values of its "
    "axes: how much worse it predicts trials that it was not fitted on once an axis' values are shuffled, as a share "
    "of the sum over all axes; its weakness is that axes which go together, such as a choice and the axis that it "
    "switches on, share their effect between them. Ranks go by the last value; a trial that the scheduler stopped "
    "comes behind those that went further."
)


@dataclass(frozen=True)
class Importance:
    """Importance of each axis, or the reason why there is none."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """Fraction of the importance by axis path; they sum to 1. Empty where nothing is known."""
    explained: float | None = None
    """R^2 of the forest on trials that it was not fitted on (out of bag)."""
    num_trials: int = 0
    reason: str = ""
    """Reason for the lack of shares."""


def importance(summary: SweepSummary) -> Importance:
    """Compute each axis' permutation importance for the first metric, over finished and stopped trials with a value."""
    trials = [
        trial
        for trial in summary.trials
        if trial.status in {"finished", "stopped"} and objectives(summary, trial) is not None
    ]
    if len(trials) < MIN_TRIALS:
        reason = f"Too few trials: {len(trials)} ended with a value, and {MIN_TRIALS} are needed."
        return Importance(num_trials=len(trials), reason=reason)
    ranks = _ranks(summary, trials)
    if len(set(ranks)) == 1:
        return Importance(num_trials=len(trials), reason=f"All trials reached the same {summary.metrics[0]}.")
    numbers = [trial.number for trial in trials]
    features = {axis.path: _features(plot_axis(axis, trials), numbers) for axis in summary.axes}
    features = {path: block for path, block in features.items() if block.shape[1]}
    if not features:
        return Importance(num_trials=len(trials), reason="No axis was set to more than one value.")
    explained, losses = _forest(features, np.array(ranks))
    total = sum(losses.values())
    if explained < 0 or total <= 0:
        reason = (
            "The axes explain nothing of trials that the forest was not fitted on "
            f"(R^2 {explained:.2f} with {len(trials)} trials); shares would be noise."
        )
        return Importance(explained=explained, num_trials=len(trials), reason=reason)
    shares = {axis.path: losses.get(axis.path, 0.0) / total for axis in summary.axes}
    return Importance(shares, explained, len(trials))


def _features(axis: PlotAxis, numbers: list[int]) -> np.ndarray:
    """Feature columns (trials, columns): the value or its logarithm, or one column a category; and one for unused.

    An axis that is the same everywhere has no columns.
    """
    raw = np.array([axis.raw.get(number, np.nan) for number in numbers])
    used = ~np.isnan(raw)
    if axis.scale == "category":
        block = np.stack([raw == place for place in range(len(axis.names))], axis=1) if axis.names else used[:, :0]
    else:
        block = np.where(used, raw, np.median(raw[used]) if used.any() else 0.0)[:, None]
    block = np.concatenate([block.astype(float), ~used[:, None]], axis=1)
    return block[:, (block != block[0]).any(axis=0)]


def _ranks(summary: SweepSummary, trials: Sequence[Trial]) -> list[float]:
    """Rank each trial among all; ties share their mean rank.

    Ranks instead of values, as one diverged trial would otherwise dominate the variance, and as values at different
    steps are not comparable: a trial that the scheduler stopped late did better than one that it stopped early.
    """
    sign = -1.0 if summary.modes[0] == "max" else 1.0
    keys = [
        (-trial.step if trial.status == "stopped" else -math.inf, sign * trial.metrics[summary.metrics[0]])
        for trial in trials
    ]
    order = sorted(keys)
    return [(order.index(key) + order.index(key) + order.count(key) - 1) / 2 for key in keys]


def _forest(features: Mapping[str, np.ndarray], target: np.ndarray) -> tuple[float, dict[str, float]]:
    """Out-of-bag R^2, and the drop in it from permuting each axis' columns together; at least 0."""
    from sklearn.ensemble import RandomForestRegressor

    table = np.concatenate(list(features.values()), axis=1).astype(np.float32)
    forest = RandomForestRegressor(_TREES, random_state=_SEED, max_features=0.5, bootstrap=True).fit(table, target)
    num = len(target)
    held_out = [np.setdiff1d(np.arange(num), fitted) for fitted in forest.estimators_samples_]

    def explained(rows_of: Callable[[np.ndarray], np.ndarray]) -> float:
        sums, counts = np.zeros(num), np.zeros(num)
        for tree, rows in zip(forest.estimators_, held_out, strict=True):
            if len(rows):
                sums[rows] += tree.tree_.predict(rows_of(rows)).reshape(-1)
                counts[rows] += 1
        seen = counts > 0
        errors = (target - sums / np.maximum(counts, 1))[seen]
        spread = (target - target[seen].mean())[seen]
        return 1.0 - float((errors**2).sum() / max((spread**2).sum(), 1e-12))

    base = explained(lambda rows: table[rows])
    generator = np.random.default_rng(_SEED)
    losses, start = {}, 0
    for path, block in features.items():
        columns = slice(start, start + block.shape[1])
        start += block.shape[1]
        drops = []
        for _ in range(_REPEATS):
            shuffled = table.copy()
            shuffled[:, columns] = table[generator.permutation(num)][:, columns]
            drops.append(base - explained(shuffled.__getitem__))
        losses[path] = max(0.0, float(np.mean(drops)))
    return base, losses

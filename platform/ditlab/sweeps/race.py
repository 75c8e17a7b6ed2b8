"""A race between arms over seeds: which trials train on, which arms are behind, and when the race ends.

An arm is one setting of a sweep, and has a trial for each seed. At a rung (a training step) arms are compared by the
differences between their trials of equal seeds. Differences are looked at with ever more seeds, as `look_sizes` has
them, until one arm is left or the most seeds are used; then those left train on to the next rung, again with the fewest
seeds first. A decision depends on the results of whole looks alone, and never on the order in which they arrived.

The error of a race (1 - confidence) is shared equally over the other arms and the rungs, and at a rung over its looks
(`look_confidence`). So if differences are Gaussian, the best arm is dropped, or a winner named among equal arms, with
at most that probability: to name one of two equal arms is to drop the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ditlab.intervals import Interval, describe_difference, look_confidence, look_sizes, seed_band

RaceEnd = Literal["winner", "one left", "equal", "seeds used up", "budget used up", "all failed"]
"""`winner`: one arm is left at the last rung; `one left`: at an earlier one, so that its lead at the end is unknown."""


@dataclass(frozen=True)
class RaceRules:
    """Rules of a race. Raises ValueError for a value outside its range, naming it."""

    rungs: tuple[int, ...]
    """Training steps at which arms are compared, ascending; the last one is a trial's end."""
    metric: str = "value"
    mode: Literal["min", "max"] = "min"
    confidence: float = 0.95
    min_seeds: int = 3
    max_seeds: int = 12
    indifference: float = 0.0
    """Arms whose differences are known to be smaller, in the metric's unit, are equal."""
    max_steps: int | None = None
    """Training steps of all trials together."""

    def __post_init__(self) -> None:
        if not self.rungs or self.rungs[0] < 1 or any(a >= b for a, b in zip(self.rungs, self.rungs[1:], strict=False)):
            raise ValueError(f"rungs={list(self.rungs)} must be ascending training steps from 1 on, at least one.")
        if not 2 <= self.min_seeds <= self.max_seeds:
            raise ValueError(
                f"seeds.min={self.min_seeds} must lie between 2 and seeds.max={self.max_seeds}; one seed tells nothing "
                "of other seeds."
            )
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence={self.confidence:g} must lie between 0 and 1; set 0.95.")
        if not self.indifference >= 0:
            raise ValueError(f"indifference={self.indifference:g} must be 0 or more, in the unit of {self.metric}.")


@dataclass(frozen=True)
class RungValue:
    """The metric of one trial at a rung. A value that is not finite says that the trial failed or diverged by then."""

    arm: str
    seed: int
    """Number of the seed, from 0."""
    step: int
    value: float
    held_out_noise: float | None = None
    """Standard error of the value over held-out samples. It is stated beside intervals and is no part of them."""


@dataclass(frozen=True)
class TrialTarget:
    """A trial and the step that it has to train to."""

    arm: str
    seed: int
    step: int


@dataclass(frozen=True)
class RungDifference:
    """Difference of an arm from a better one at a rung: its value minus the better one's."""

    arm: str
    better: str
    step: int
    interval: Interval
    """It holds with the confidence of its look, which is higher than that of the race."""
    held_out_noise: float | None = None
    """Root mean square over the trials of both arms that told it."""


@dataclass(frozen=True)
class DroppedArm:
    """An arm that trains no further."""

    arm: str
    reason: Literal["behind", "failed"]
    """`failed`: its trial of every seed failed or diverged."""
    step: int
    num_seeds: int
    difference: RungDifference | None = None
    """Its difference from the best arm that it is behind."""


@dataclass(frozen=True)
class RaceDecision:
    """State of a race after its last whole look, and what comes next."""

    step: int
    num_seeds: int
    """`step` and `num_seeds`: rung and seeds of the look that the trials are trained for, or of the last one."""
    left: tuple[str, ...]
    """Arms that are not dropped, the best first (in their given order before the first look)."""
    train: tuple[TrialTarget, ...] = ()
    """Trials that have to train on for the look; empty at the end of the race."""
    dropped: tuple[DroppedArm, ...] = ()
    differences: tuple[RungDifference, ...] = ()
    """Differences of the other arms left from the best of them at the last whole look."""
    failed_trials: tuple[tuple[str, int], ...] = ()
    """Arm and seed of trials that failed or diverged: their pairs are missing."""
    end: RaceEnd | None = None
    steps_used: int = 0

    @property
    def winner(self) -> str | None:
        """The arm that is left at the last rung, once all others are dropped."""
        return self.left[0] if self.end == "winner" else None

    def to_dict(self) -> dict[str, Any]:
        """Every field in JSON's types, as a ledger keeps it."""
        record = asdict(self) | {"winner": self.winner}
        for each, written in zip(self.differences, record["differences"], strict=True):
            written["interval"] = each.interval.to_dict()
        for arm, written in zip(self.dropped, record["dropped"], strict=True):
            if arm.difference:
                written["difference"]["interval"] = arm.difference.interval.to_dict()
        return record

    def describe(self, rules: RaceRules, seeds: Sequence[int | None] = ()) -> list[str]:
        """Describe dropped arms, the differences of those left, failed trials and the end, a sentence each.

        `seeds` are the seeds by number; without them their numbers are named.
        """
        sentences = []
        for arm in self.dropped:
            if arm.difference:
                sentences.append(f"{arm.arm} is behind at step {arm.step:,}: {_sentence(arm.difference, rules)}.")
            else:
                sentences.append(f"{arm.arm} failed with all {arm.num_seeds} seeds by step {arm.step:,}.")
        sentences += [f"At step {each.step:,}, {_sentence(each, rules)}." for each in self.differences]
        if self.failed_trials:
            trials = ", ".join(f"{arm} with seed {seeds[seed] if seeds else seed}" for arm, seed in self.failed_trials)
            sentences.append(f"Pairs are missing, as these trials failed or diverged: {trials}.")
        names = ", ".join(self.left)
        ends: dict[RaceEnd | None, str] = {
            None: f"{len(self.train)} trials train on to step {self.step:,}, for {self.num_seeds} seeds of {names}.",
            "winner": f"{names} wins: all other arms were dropped by step {self.step:,}, the last rung.",
            "one left": f"{names} alone is left at step {self.step:,}; step {rules.rungs[-1]:,} was not measured.",
            "equal": f"{names} are equal within {rules.indifference:g} at step {self.step:,}, the last rung.",
            "seeds used up": f"No winner among {names} with {self.num_seeds} seeds, the most, at step {self.step:,}.",
            "budget used up": f"The budget ends before step {self.step:,} of {self.num_seeds} seeds; left: {names}.",
            "all failed": "Every arm failed.",
        }
        return [f"{each[0].upper()}{each[1:]}" for each in (*sentences, ends[self.end])]


def _sentence(difference: RungDifference, rules: RaceRules) -> str:
    arms = difference.arm, difference.better
    if not difference.interval.num:
        return f"{' and '.join(arms)} have no seed with which neither of them failed"
    sentence = describe_difference(difference.interval, arms, rules.mode, rules.metric)
    noise = difference.held_out_noise
    return sentence if noise is None else f"{sentence}, held-out noise of a value {noise:.2g}"


@dataclass(frozen=True)
class Race:
    """A race of arms, in the order in which they are listed. Raises ValueError for fewer than two, or equal names."""

    arms: tuple[str, ...]
    rules: RaceRules

    def __post_init__(self) -> None:
        if len(set(self.arms)) != len(self.arms) or len(self.arms) < 2:
            raise ValueError(f"arms={list(self.arms)} must be two or more different names.")

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """Numbers of seeds at which the arms are compared at every rung."""
        return look_sizes(self.rules.min_seeds, self.rules.max_seeds)

    def pair_confidence(self, look: int) -> float:
        """Return the confidence of the interval of two arms at a look (from 1) of any rung."""
        shares = (len(self.arms) - 1) * len(self.rules.rungs)
        return look_confidence(look, len(self.looks), 1 - (1 - self.rules.confidence) / shares)

    def decide(self, results: Iterable[RungValue]) -> RaceDecision:
        """Decide from all results so far. Equal results give an equal decision in any order.

        While results of a look are missing, `train` lists the trials that lack one. Raises ValueError for a result of
        an unknown arm, seed or rung, and for two different ones of a trial.
        """
        table = _Results(self, results)
        left = self.arms
        dropped: tuple[DroppedArm, ...] = ()
        differences: tuple[RungDifference, ...] = ()
        most = math.inf if self.rules.max_steps is None else self.rules.max_steps
        for step in self.rules.rungs:
            for look, num_seeds in enumerate(self.looks, start=1):
                lacking = table.lacking(left, num_seeds, step)
                end: RaceEnd | None = None
                if not lacking:
                    left, behind, differences = self._compare(table, left, step, look)
                    dropped = (*dropped, *behind)
                    end = self._end(left, differences, step, look)
                elif table.steps_used + table.steps_to(lacking) > most:
                    end, lacking = "budget used up", ()
                if lacking or end:
                    return RaceDecision(
                        step, num_seeds, left, lacking, dropped, differences, table.failed, end, table.steps_used
                    )
        raise AssertionError("the last look of the last rung ends a race")

    def _compare(
        self, table: _Results, arms: tuple[str, ...], step: int, look: int
    ) -> tuple[tuple[str, ...], tuple[DroppedArm, ...], tuple[RungDifference, ...]]:
        """Compare arms at a look; return those left, best first, those dropped, and differences of those left."""
        num_seeds, confidence = self.looks[look - 1], self.pair_confidence(look)
        values = table.values(arms, num_seeds, step)
        has_failed = ~np.isfinite(values).any(axis=0)
        failed = tuple(
            DroppedArm(arm, "failed", step, num_seeds) for arm, is_out in zip(arms, has_failed, strict=True) if is_out
        )
        order = _rank(values if self.rules.mode == "min" else -values)
        order = [index for index in order if not has_failed[index]]
        ranked, values = [arms[index] for index in order], values[:, order]
        band = seed_band(values[:, :, None] - values[:, None, :], confidence)  # an arm minus another
        # The row's arm is worse than the column's, which is ranked before it, by at least this much.
        worse_by = np.tril(np.nan_to_num(band.low if self.rules.mode == "min" else -band.high, nan=0.0), -1)

        def difference(arm: int, better: int) -> RungDifference:
            cells = (band.mean, band.low, band.high, band.std)
            mean, low, high, std = (float(each[arm, better]) for each in cells)
            interval = Interval(mean, low, high, int(band.num[arm, better]), std, confidence)
            noise = table.held_out_noise((ranked[arm], ranked[better]), num_seeds, step)
            return RungDifference(ranked[arm], ranked[better], step, interval, noise)

        is_behind = (worse_by > 0).any(axis=1)
        behind = tuple(
            DroppedArm(ranked[arm], "behind", step, num_seeds, difference(arm, int((worse_by[arm] > 0).argmax())))
            for arm in map(int, np.flatnonzero(is_behind))
        )
        others = [int(arm) for arm in np.flatnonzero(~is_behind)]
        left = tuple(ranked[arm] for arm in others)
        return left, failed + behind, tuple(difference(arm, 0) for arm in others[1:])

    def _end(
        self, left: tuple[str, ...], differences: tuple[RungDifference, ...], step: int, look: int
    ) -> RaceEnd | None:
        """Return how the race ends after a look, or None if it goes on."""
        is_last = step == self.rules.rungs[-1]
        if not left:
            return "all failed"
        if len(left) == 1:
            return "winner" if is_last else "one left"
        most = self.rules.indifference
        if is_last and all(-most <= each.interval.low and each.interval.high <= most for each in differences):
            return "equal"
        return "seeds used up" if is_last and look == len(self.looks) else None


def _rank(losses: np.ndarray) -> list[int]:
    """Return the order of arms from the lowest mean on; losses (num_seeds, num_arms).

    Means are over the seeds that no arm lost. Where there are none, each arm's are over its own.
    """
    is_there = np.isfinite(losses)
    common = is_there.all(axis=1)
    kept = is_there & common[:, None] if common.any() else is_there
    means = np.where(kept, losses, 0).sum(axis=0) / np.maximum(kept.sum(axis=0), 1)
    return [int(index) for index in np.argsort(means, kind="stable")]


class _Results:
    """Results of a race by arm, seed and rung; a trial that failed before a rung has failed there."""

    def __init__(self, race: Race, results: Iterable[RungValue]) -> None:
        self._arms = {arm: index for index, arm in enumerate(race.arms)}
        self._rungs = {step: index for index, step in enumerate(race.rules.rungs)}
        shape = len(self._rungs), race.rules.max_seeds, len(race.arms)
        self._values = np.full(shape, np.nan)
        self._noise = np.full(shape, np.nan)
        self._is_known = np.zeros(shape, dtype=bool)
        self._failed_at: dict[tuple[str, int], int] = {}
        for each in results:
            if each.arm not in self._arms or each.step not in self._rungs or not 0 <= each.seed < shape[1]:
                raise ValueError(f"{each} belongs to no arm, seed and rung of the race: {race}.")
            if not math.isfinite(each.value):
                first = self._failed_at.get((each.arm, each.seed), each.step)
                self._failed_at[each.arm, each.seed] = min(first, each.step)
                continue
            place = self._rungs[each.step], each.seed, self._arms[each.arm]
            if self._is_known[place] and self._values[place] != each.value:
                raise ValueError(f"{each} is a second result: the first one is {self._values[place]}.")
            self._is_known[place] = True
            self._values[place] = each.value
            self._noise[place] = np.nan if each.held_out_noise is None else each.held_out_noise
        for (arm, seed), step in self._failed_at.items():
            self._values[self._rungs[step] :, seed, self._arms[arm]] = np.nan
            self._is_known[self._rungs[step] :, seed, self._arms[arm]] = True

    @property
    def failed(self) -> tuple[tuple[str, int], ...]:
        """Arm and seed of failed trials."""
        return tuple(sorted(self._failed_at))

    @cached_property
    def steps_used(self) -> int:
        """Steps that all trials have trained, by their last results."""
        return int(self._reached.sum())

    @cached_property
    def _reached(self) -> np.ndarray:
        """Last step with a result, (num_seeds, num_arms); 0 without any."""
        steps = np.array(list(self._rungs))[:, None, None]
        reached: np.ndarray = np.where(self._is_known, steps, 0).max(axis=0)
        for (arm, seed), step in self._failed_at.items():
            reached[seed, self._arms[arm]] = step
        return reached

    def lacking(self, arms: Sequence[str], num_seeds: int, step: int) -> tuple[TrialTarget, ...]:
        """Return the trials of the first seeds without a result at a rung, seed by seed."""
        known = self._is_known[self._rungs[step]]
        return tuple(
            TrialTarget(arm, seed, step)
            for seed in range(num_seeds)
            for arm in arms
            if not known[seed, self._arms[arm]]
        )

    def steps_to(self, targets: Iterable[TrialTarget]) -> int:
        """Count the steps that trials have to train to their targets."""
        return sum(each.step - int(self._reached[each.seed, self._arms[each.arm]]) for each in targets)

    def values(self, arms: Sequence[str], num_seeds: int, step: int) -> np.ndarray:
        """Values at a rung, (num_seeds, num_arms); NaN for failed trials."""
        return self._values[self._rungs[step], :num_seeds, [self._arms[arm] for arm in arms]].T

    def held_out_noise(self, arms: Sequence[str], num_seeds: int, step: int) -> float | None:
        """Root mean square of the trials' held-out noise at a rung; None where none told it."""
        noise = self._noise[self._rungs[step], :num_seeds, [self._arms[arm] for arm in arms]]
        told = noise[np.isfinite(noise)]
        return float(np.sqrt(np.mean(told**2))) if told.size else None

"""A race between configurations over seeds: which trials train on, which configurations are behind,
and when the race ends.

A configuration is one setting of a sweep, and has a trial for each seed. At a rung (a training
step) configurations are compared by the differences between their trials of equal seeds.
Differences are analysed with ever more seeds, as `analysis_sizes` has them, until one configuration
is left or the most seeds are used; then those left train on to the next rung, again with the fewest
seeds first. A decision depends on the results of complete interim analyses alone, and never on the
order in which they arrived.

The error of a race (1 - confidence) is shared equally over the other configurations and the rungs,
and at a rung over its analyses (`analysis_confidence`). So if differences are Gaussian, the best
configuration is dropped, or a winner named among equal configurations, with at most that
probability: to name one of two equal configurations is to drop the other.

A round of a sweep's trials is an interim analysis (`RaceChooser`): each run of a configuration and
a seed trains to a rung, and waits there. All of it follows from the runs' journals, so that a race
that was killed goes on to the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Literal

import numpy as np

from ditlab.intervals import Interval, describe_difference, far_values, seed_band
from ditlab.reports.sweep_records import MetricCurve, Trial
from ditlab.spec.sweep import Sweep
from ditlab.sweeps.chooser import ChosenTrial, Round, TrialChooser
from ditlab.training.evaluation import read_by_sample
from ditlab_addons.race.scheduler import SeedRace

SPENDING_POWER = 3
"""Analyses 1 to k of K spend (k / K)**3 of the error: late ones, with the most pairs, have most of
it. In races of two configurations over three rungs (best configuration ahead by one standard
deviation of a pair's difference, 12 seeds) powers 1, 1.5, 2 and 3 find it in 53, 57, 62 and 71 %;
where it is ahead by two or four, 3 costs at most 4 % more steps than any of them."""
RaceEnd = Literal["winner", "one left", "equal", "seeds used up", "budget used up", "all failed"]
"""`winner`: one configuration is left at the last rung; `one left`: at an earlier one, so that its
lead at the end is unknown.
"""


def analysis_confidence(analysis: int, num_analyses: int, confidence: float) -> float:
    """Return the confidence of the interval at an interim analysis, 1 to `num_analyses`, so that
    all hold together with `confidence`.

    Alpha spending (Lan and DeMets 1983, Biometrika 70: 659-663) by the power family (Kim and DeMets
    1987, Biometrika 74: 149-154). Errors of analyses are added up (Bonferroni), so nothing is
    assumed of how analyses depend on each other.
    """
    spent = (analysis / num_analyses) ** SPENDING_POWER - (
        (analysis - 1) / num_analyses
    ) ** SPENDING_POWER
    return 1 - (1 - confidence) * spent


def analysis_sizes(fewest: int, most: int) -> tuple[int, ...]:
    """Return the numbers of seeds of the interim analyses, each about 1.4 times the one before: 3,
    4, 6, 8, 12.

    Fewer analyses leave more of the error for each.
    """
    sizes = [most]  # from the last: that one has the most to show
    while (smaller := round(sizes[-1] / math.sqrt(2))) > fewest:
        sizes.append(smaller)
    return tuple(sorted({fewest, *sizes}))


@dataclass(frozen=True)
class RaceRules:
    """Rules of a race."""

    rungs: tuple[int, ...]
    """Training steps at which configurations are compared, ascending; the last one is a trial's
    end.
    """
    metric: str = "value"
    mode: Literal["min", "max"] = "min"
    confidence: float = 0.95
    min_seeds: int = 3
    max_seeds: int = 12
    indifference: float = 0.0
    """Configurations whose differences are known to be smaller, in the metric's unit, are equal."""
    max_steps: float = math.inf
    """Training steps of all trials together."""


@dataclass(frozen=True)
class RungValue:
    """The metric of one trial at a rung. A value that is not finite says that the trial failed or
    diverged by then.
    """

    configuration: str
    seed: int
    """Number of the seed, from 0."""
    step: int
    value: float
    held_out_noise: float = math.nan
    """Standard error of the value over held-out samples; NaN where it is not known. It stands
    beside intervals and is no part of them."""


@dataclass(frozen=True)
class TrialTarget:
    """A trial and the step that it has to train to."""

    configuration: str
    seed: int
    step: int


@dataclass(frozen=True)
class RungDifference:
    """Difference of a configuration from a better one at a rung: its value minus the better
    one's.
    """

    configuration: str
    better: str
    step: int
    interval: Interval
    """It holds with the confidence of its interim analysis, which is higher than that of the
    race.
    """
    held_out_noise: float | None
    """Root mean square over the trials of both configurations with a known one."""
    num_far: int = 0
    """Pairs that are far from the others (`far_values`)."""

    def sentence(self, rules: RaceRules) -> str:
        """Describe the difference, without a full stop."""
        if not self.interval.num:
            return (
                f"{self.configuration} and {self.better} have no seed with which neither of "
                "them failed"
            )
        sentence = describe_difference(
            self.interval, (self.configuration, self.better), rules.mode, rules.metric
        )
        if self.held_out_noise is not None:
            sentence += f", held-out noise of a value {self.held_out_noise:.2g}"
        if self.num_far:
            sentence += f", {self.num_far} of the pairs far from the others"
        return sentence


@dataclass(frozen=True)
class DroppedConfiguration:
    """A configuration that trains no further."""

    configuration: str
    reason: Literal["behind", "failed"]
    """`failed`: its trial of every seed failed or diverged."""
    step: int
    num_seeds: int
    difference: RungDifference | None = None
    """Its difference from the best configuration that it is behind."""

    def sentence(self, rules: RaceRules) -> str:
        """Say why the configuration trains no further."""
        if self.difference:
            return (
                f"{self.configuration} is behind at step {self.step:,}: "
                f"{self.difference.sentence(rules)}."
            )
        return f"{self.configuration} failed with all {self.num_seeds} seeds by step {self.step:,}."


@dataclass(frozen=True)
class RaceDecision:
    """State of a race after its last complete interim analysis, and what comes next."""

    step: int
    num_seeds: int
    """`step` and `num_seeds`: rung and seeds of the interim analysis that the trials are trained
    for, or of the last one.
    """
    left: tuple[str, ...]
    """Configurations that are not dropped, the best first (in their given order before the first
    interim analysis).
    """
    train: tuple[TrialTarget, ...]
    """Trials that have to train on for the interim analysis; empty at the end of the race."""
    dropped: tuple[DroppedConfiguration, ...]
    differences: tuple[RungDifference, ...]
    """Differences of the other configurations left from the best of them at the last complete
    interim analysis.
    """
    failed_trials: tuple[tuple[str, int], ...]
    """Configuration and seed of trials that failed or diverged: their pairs are missing."""
    end: RaceEnd | None
    steps_used: int

    def describe(self, rules: RaceRules, seeds: Sequence[int | None]) -> list[str]:
        """Describe dropped configurations, the differences of those left, failed trials and the
        end, a sentence each.

        `seeds` are the seeds by number.
        """
        sentences = [each.sentence(rules) for each in self.dropped]
        sentences += [
            f"at step {each.step:,}, {each.sentence(rules)}." for each in self.differences
        ]
        if self.failed_trials:
            trials = ", ".join(
                f"{configuration} with seed {seeds[seed]}"
                for configuration, seed in self.failed_trials
            )
            sentences.append(f"pairs are missing, as these trials failed or diverged: {trials}.")
        sentences.append(self._end_sentence(rules))
        return [f"{each[0].upper()}{each[1:]}" for each in sentences]

    def _end_sentence(self, rules: RaceRules) -> str:
        names = ", ".join(self.left)
        ends: dict[RaceEnd | None, str] = {
            None: (
                f"{len(self.train)} trials train on to step {self.step:,}, for "
                f"{self.num_seeds} seeds of {names}."
            ),
            "winner": (
                f"{names} wins: all other configurations were dropped by step {self.step:,}, "
                "the last rung."
            ),
            "one left": (
                f"{names} alone is left at step {self.step:,}; step {rules.rungs[-1]:,} was "
                "not measured."
            ),
            "equal": (
                f"{names} are equal within {rules.indifference:g} at step {self.step:,}, the "
                "last rung."
            ),
            "seeds used up": (
                f"no winner among {names} with {self.num_seeds} seeds, the most, at step "
                f"{self.step:,}."
            ),
            "budget used up": (
                f"the budget ends before step {self.step:,} of {self.num_seeds} seeds; left: "
                f"{names}."
            ),
            "all failed": "every configuration failed.",
        }
        return ends[self.end]


@dataclass(frozen=True)
class _Analysis:
    """Result of the comparison of configurations at one interim analysis."""

    left: tuple[str, ...]
    """Best first."""
    dropped: tuple[DroppedConfiguration, ...]
    differences: tuple[RungDifference, ...]
    """Differences of those left from the best."""


@dataclass(frozen=True)
class Race:
    """A race of two or more configurations, in the order in which they are listed."""

    configurations: tuple[str, ...]
    rules: RaceRules

    @cached_property
    def analyses(self) -> tuple[int, ...]:
        """Numbers of seeds at which the configurations are compared at every rung."""
        return analysis_sizes(self.rules.min_seeds, self.rules.max_seeds)

    def pair_confidence(self, analysis: int) -> float:
        """Return the confidence of the interval of two configurations at an interim analysis (from
        1) of any rung.
        """
        shares = (len(self.configurations) - 1) * len(self.rules.rungs)
        return analysis_confidence(
            analysis, len(self.analyses), 1 - (1 - self.rules.confidence) / shares
        )

    def decide(self, results: Iterable[RungValue]) -> RaceDecision:
        """Decide from all results so far, one a trial and rung. Equal results give an equal
        decision in any order.

        While results of an interim analysis are missing, `train` lists the trials that lack one.
        """
        table = _Results(results)
        found = _Analysis(self.configurations, (), ())
        dropped: tuple[DroppedConfiguration, ...] = ()
        for step in self.rules.rungs:
            for analysis, num_seeds in enumerate(self.analyses, start=1):
                lacking = table.lacking(found.left, num_seeds, step)
                end: RaceEnd | None = None
                if not lacking:
                    found = self._compare(table, found.left, step, analysis)
                    dropped = (*dropped, *found.dropped)
                    end = self._end(found, step, analysis)
                elif table.steps_used + table.steps_to(lacking) > self.rules.max_steps:
                    end = "budget used up"
                    lacking = ()
                if lacking or end:
                    return RaceDecision(
                        step,
                        num_seeds,
                        found.left,
                        lacking,
                        dropped,
                        found.differences,
                        table.failed,
                        end,
                        table.steps_used,
                    )
        raise AssertionError("the last interim analysis of the last rung ends a race")

    def _compare(
        self, table: _Results, configurations: tuple[str, ...], step: int, analysis: int
    ) -> _Analysis:
        num_seeds = self.analyses[analysis - 1]
        values = table.values(configurations, num_seeds, step)
        has_failed = ~np.isfinite(values).any(axis=0)
        failed = tuple(
            DroppedConfiguration(configurations[index], "failed", step, num_seeds)
            for index in np.flatnonzero(has_failed)
        )
        losses = values if self.rules.mode == "min" else -values
        order = [index for index in _rank(losses) if not has_failed[index]]
        ranked = [configurations[index] for index in order]
        values = values[:, order]
        # a configuration minus another
        band = seed_band(values[:, :, None] - values[:, None, :], self.pair_confidence(analysis))
        least = band.low if self.rules.mode == "min" else -band.high
        # The row's configuration is worse than the column's, which is ranked before it, by at least
        # this much.
        worse_by = np.tril(np.nan_to_num(least, nan=0.0), -1)

        def difference(configuration: int, better: int) -> RungDifference:
            noise = table.held_out_noise((ranked[configuration], ranked[better]), num_seeds, step)
            pairs = values[:, configuration] - values[:, better]
            num_far = len(far_values(pairs[np.isfinite(pairs)].tolist()))
            interval = band.at(configuration, better)
            return RungDifference(
                ranked[configuration], ranked[better], step, interval, noise, num_far
            )

        behind = []
        left = []
        for configuration, name in enumerate(ranked):
            is_worse = worse_by[configuration] > 0
            if is_worse.any():
                first = int(is_worse.argmax())
                behind.append(
                    DroppedConfiguration(
                        name, "behind", step, num_seeds, difference(configuration, first)
                    )
                )
            else:
                left.append(configuration)
        differences = tuple(difference(configuration, 0) for configuration in left[1:])
        return _Analysis(
            tuple(ranked[configuration] for configuration in left), (*failed, *behind), differences
        )

    def _end(self, found: _Analysis, step: int, analysis: int) -> RaceEnd | None:
        """Return how the race ends after an interim analysis, or None if it goes on."""
        is_last = step == self.rules.rungs[-1]
        if not found.left:
            return "all failed"
        if len(found.left) == 1:
            return "winner" if is_last else "one left"
        if not is_last:
            return None
        most = self.rules.indifference
        if all(
            -most <= each.interval.low and each.interval.high <= most for each in found.differences
        ):
            return "equal"
        return "seeds used up" if analysis == len(self.analyses) else None


def _rank(losses: np.ndarray) -> list[int]:
    """Return the order of configurations from the lowest mean on; losses (num_seeds,
    num_configurations).

    Means are over the seeds that no configuration lost. Where there are none, each configuration's
    are over its own.
    """
    is_there = np.isfinite(losses)
    common = is_there.all(axis=1)
    kept = is_there & common[:, None] if common.any() else is_there
    means = np.where(kept, losses, 0).sum(axis=0) / np.maximum(kept.sum(axis=0), 1)
    return [int(index) for index in np.argsort(means, kind="stable")]


class _Results:
    """Results of a race by trial and rung; a trial that failed before a rung has failed there."""

    def __init__(self, results: Iterable[RungValue]) -> None:
        self._values: dict[tuple[str, int, int], RungValue] = {}
        self._reached: dict[tuple[str, int], int] = {}
        """Last step with a result by trial."""
        self._failed_at: dict[tuple[str, int], int] = {}
        for each in results:
            trial = each.configuration, each.seed
            if math.isfinite(each.value):
                self._values[*trial, each.step] = each
                self._reached[trial] = max(each.step, self._reached.get(trial, 0))
            else:
                self._failed_at[trial] = min(each.step, self._failed_at.get(trial, each.step))
        self._reached |= self._failed_at
        self.failed = tuple(sorted(self._failed_at))
        """Configuration and seed of failed trials."""
        self.steps_used = sum(self._reached.values())
        """Steps that all trials have trained, by their last results."""

    def lacking(
        self, configurations: Sequence[str], num_seeds: int, step: int
    ) -> tuple[TrialTarget, ...]:
        """Return the trials of the first seeds without a result at a rung, seed by seed."""
        lacking = []
        for seed in range(num_seeds):
            for configuration in configurations:
                has_value = (configuration, seed, step) in self._values
                if not has_value and not self._has_failed(configuration, seed, step):
                    lacking.append(TrialTarget(configuration, seed, step))
        return tuple(lacking)

    def steps_to(self, targets: Iterable[TrialTarget]) -> int:
        """Count the steps that trials have to train to their targets."""
        return sum(
            each.step - self._reached.get((each.configuration, each.seed), 0) for each in targets
        )

    def values(self, configurations: Sequence[str], num_seeds: int, step: int) -> np.ndarray:
        """Values at a rung, (num_seeds, num_configurations); NaN for failed trials."""

        def value(configuration: str, seed: int) -> float:
            if self._has_failed(configuration, seed, step):
                return math.nan
            return self._values[configuration, seed, step].value

        return np.array(
            [
                [value(configuration, seed) for configuration in configurations]
                for seed in range(num_seeds)
            ]
        )

    def held_out_noise(
        self, configurations: Sequence[str], num_seeds: int, step: int
    ) -> float | None:
        """Root mean square of the trials' held-out noise at a rung; None where none is known."""
        found = [
            self._values.get((configuration, seed, step))
            for configuration in configurations
            for seed in range(num_seeds)
        ]
        known = [
            each.held_out_noise for each in found if each and math.isfinite(each.held_out_noise)
        ]
        if not known:
            return None
        return math.sqrt(fmean(noise**2 for noise in known))

    def _has_failed(self, configuration: str, seed: int, step: int) -> bool:
        return step >= self._failed_at.get((configuration, seed), math.inf)


class RaceChooser(TrialChooser):
    """Trials that train on to the next interim analysis of a race."""

    def next_round(self, trials: Sequence[Trial]) -> Round:
        """Choose the trials that the next interim analysis lacks; none where the race has ended."""
        race = self._race(trials)
        decision = race.decide(rung_values(self.sweep, race, trials))
        numbers = {name: number for number, name in enumerate(race.configurations)}
        chosen = []
        for target in decision.train:
            until = target.step if target.step < self.total_steps else None
            chosen.append(
                ChosenTrial(numbers[target.configuration], self.sweep.seed_list[target.seed], until)
            )
        used_up = ""
        reasons = {}
        if decision.end == "budget used up":
            used_up = "scheduler.max_steps"
        elif decision.end:
            reasons = dict.fromkeys(race.configurations, f"the race has ended: {decision.end}")
        reasons |= {
            each.configuration: f"{each.reason} at step {each.step:,}" for each in decision.dropped
        }
        stopped = {numbers[name]: reason for name, reason in reasons.items()}
        return Round(chosen, stopped, used_up)

    def sentences(self, trials: Sequence[Trial]) -> list[str]:
        """Describe the state of the race, with the noise of held-out samples."""
        race = self._race(trials)
        decision = race.decide(rung_values(self.sweep, race, trials, self._held_out_noise))
        return decision.describe(race.rules, self.sweep.seed_list)

    def _race(self, trials: Sequence[Trial]) -> Race:
        return make_race(
            self.sweep, 1 + max(trial.configuration for trial in trials), self.total_steps
        )

    def _held_out_noise(self, trial: Trial, step: int) -> float:
        """Return the standard error of a trial's value at a step over held-out samples; NaN where
        it is not known.
        """
        values = read_by_sample(self.home.run(trial.run_id), step).get(self.sweep.metrics[0])
        if values is None or len(values) < 2:
            return math.nan
        return float(values.std(ddof=1) / math.sqrt(len(values)))


def make_race(sweep: Sweep, num_configurations: int, total_steps: int) -> Race:
    """Make the race of a sweep whose scheduler is one; configurations are named by their
    numbers.
    """
    spec = sweep.scheduler
    assert isinstance(spec, SeedRace)
    rules = RaceRules(
        rungs=spec.rungs(total_steps),
        metric=sweep.metrics[0],
        mode=sweep.modes[0],
        confidence=spec.confidence,
        min_seeds=len(sweep.first_seeds),
        max_seeds=sweep.num_seeds,
        indifference=spec.indifference,
        max_steps=spec.max_steps or math.inf,
    )
    return Race(tuple(f"configuration {number}" for number in range(num_configurations)), rules)


def rung_values(
    sweep: Sweep,
    race: Race,
    trials: Iterable[Trial],
    noise: Callable[[Trial, int], float] = lambda *_: math.nan,
) -> Iterator[RungValue]:
    """Yield the value of each trial at each rung that it has reached; of a failed one NaN at the
    next rung.

    `noise` gives the standard error of a trial's value at a step over held-out samples.
    """
    seeds = sweep.seed_list
    for trial in trials:
        curve = trial.curves.get(race.rules.metric) or MetricCurve([], [])
        # of a step that was done twice, the later
        values = dict(zip(curve.steps, curve.values, strict=True))
        configuration = race.configurations[trial.configuration]
        seed = seeds.index(trial.seed)
        for step in race.rules.rungs:
            if step not in values:
                if trial.status == "failed":
                    yield RungValue(configuration, seed, step, math.nan)
                break
            yield RungValue(configuration, seed, step, values[step], noise(trial, step))

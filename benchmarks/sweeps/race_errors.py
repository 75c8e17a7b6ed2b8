"""Errors of the race over seeds, and its training steps beside those of ASHA, on simulated learning
curves.

    python benchmarks/sweeps/race_errors.py [--races 2000] [--verdicts 600] [--seeds 48]
    python benchmarks/sweeps/race_errors.py --trained 40 [--processes 2]

First, races between equal configurations: the share in which one configuration is left, wanted at
most 6.5 % at confidence 0.95. Then one configuration is ahead of the others by 1, 2 or 4 standard
deviations of a pair's difference, and pairs have correlation 0.5, 0.8 or 0.95. ASHA compares means
over seeds, other ones for each configuration, of as many seeds as bring its rate of wrong winners
down to the race's; of that rate the upper end of a 95 % interval is taken, which favours ASHA.
Figures are training steps a right verdict, the race's over ASHA's; races without a verdict count
with their steps. A race that ends before the last rung trains one trial of its configuration to the
end. Both have three rungs, and the race at most `--seeds` seeds. With `--correlations 0` ASHA's
figures are those of ASHA over seeds that configurations share, at any correlation. With
`--trained`, races between two equal configurations are trained instead, on points of a plane with a
known optimum: the configurations draw noise and times for whole and for halved micro-batches, so
that they are equal in law.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

import numpy as np
from scipy.stats import binomtest

from benchmarks.rounds import report
from benchmarks.short_trainings import in_processes, train_short
from ditlab.spec.files import load_experiment
from ditlab_addons.race.race import Race, RaceRules, RungValue
from support.simulated_races import (
    expected_values,
    persistent,
    play,
    simulated_results,
    simulated_values,
)

RULES = RaceRules(rungs=(100, 300, 900))
REDUCTION = 3
BLOCKS = 5
"""Groups of races, each of which gives a ratio."""
MOST_WRONG = 0.065
"""Share of races between equal configurations with one left: 5 % are promised, and three standard
errors of 2,000 races added.
"""
ASHA_RACES = 20_000
TRAINED = RaceRules(rungs=(10, 30, 90), metric="eval/excess_loss", max_seeds=8)
SPEC = Path(__file__).parents[2] / "experiments" / "known" / "flow.yaml"
MOST_TRAINED = 5
"""Races of 40 that may end with one configuration: 2 are promised, and 6 or more come by chance in
1.4 % of 40 at 5 %.
"""


@dataclass(frozen=True)
class Verdicts:
    """Outcomes of races with one best configuration."""

    steps: np.ndarray
    """Training steps of each race, (num_races,)."""
    is_right: np.ndarray
    """The best configuration alone is left, (num_races,)."""
    is_wrong: np.ndarray
    """Another configuration alone is left, (num_races,)."""

    @property
    def steps_of_one(self) -> float:
        """Training steps of all races for each right verdict."""
        return float(self.steps.sum() / max(1, self.is_right.sum()))


def race_of(num_configurations: int, rules: RaceRules = RULES) -> Race:
    """Return a race of configurations `0`, `1`, ..."""
    return Race(tuple(map(str, range(num_configurations))), rules)


def play_races(
    generator: np.random.Generator, race: Race, effect: float, correlation: float, num: int
) -> Verdicts:
    """Play races in which configuration 0 is ahead by `effect` standard deviations of a pair's
    difference.
    """
    ends = [play(race, simulated_values(generator, race, effect, correlation)) for _ in range(num)]
    last = race.rules.rungs[-1]
    steps = [each.steps_used + (last - each.step if each.end == "one left" else 0) for each in ends]
    one_left = np.array([len(each.left) == 1 for each in ends])
    best_is_left = np.array(["0" in each.left for each in ends])
    return Verdicts(np.array(steps), one_left & best_is_left, one_left & ~best_is_left)


def play_asha(
    generator: np.random.Generator, race: Race, effect: float, correlation: float, num_seeds: int
) -> Verdicts:
    """Run ASHA on means over `num_seeds` seeds, which differ between configurations; effects are
    those of `simulated_values`.

    As in Ray Tune a trial stops if it is worse than the quantile 1 - 1/REDUCTION of those that came
    to the rung before. Configurations come in a random order, the same at every rung; the best at
    the last rung wins.
    """
    rungs, num_configurations = race.rules.rungs, len(race.configurations)
    expected = expected_values(race, effect, correlation)
    noise = persistent(
        generator.standard_normal((len(rungs), ASHA_RACES, num_configurations))
    ) / np.sqrt(num_seeds)
    order = generator.permuted(np.tile(np.arange(num_configurations), (ASHA_RACES, 1)), axis=1)
    values = np.take_along_axis(expected[:, None, :] + noise, order[None], axis=2)
    goes_on = np.ones((ASHA_RACES, num_configurations), dtype=bool)
    steps = np.full(ASHA_RACES, rungs[0] * num_configurations)
    for rung, (step, following) in enumerate(pairwise(rungs)):
        came = np.where(goes_on, values[rung], np.nan)
        for configuration in range(1, num_configurations):
            goes_on[:, configuration] &= ~(came[:, configuration] > cutoff(came[:, :configuration]))
        steps += (following - step) * goes_on.sum(axis=1)
    chosen = np.where(goes_on, values[-1], np.inf).argmin(axis=1)
    is_right = np.take_along_axis(order, chosen[:, None], axis=1)[:, 0] == 0
    return Verdicts(steps * num_seeds, is_right, ~is_right)


def cutoff(came: np.ndarray) -> np.ndarray:
    """Return the quantile 1 / REDUCTION of values that came to a rung, (num_races, num); infinity
    where none did.
    """
    ordered = np.sort(came, axis=1)  # NaN last
    place = (np.isfinite(came).sum(axis=1) - 1) / REDUCTION
    low = np.maximum(np.floor(place).astype(int), 0)[:, None]
    high = np.maximum(np.ceil(place).astype(int), 0)[:, None]
    below, above = (np.take_along_axis(ordered, each, axis=1)[:, 0] for each in (low, high))
    quantile = below + (above - below) * (place - low[:, 0])
    return np.where(place < 0, np.inf, quantile)


def asha_as_sure(
    generator: np.random.Generator, race: Race, effect: float, correlation: float, most_wrong: float
) -> tuple[int, Verdicts]:
    """Return the fewest seeds with which ASHA's rate of wrong winners is at most `most_wrong`, and
    its races.
    """
    low, high = 0, 1
    while (
        found := play_asha(generator, race, effect, correlation, high)
    ).is_wrong.mean() > most_wrong:
        low, high = high, 2 * high
    best = high, found
    while high - low > 1:
        middle = (low + high) // 2
        found = play_asha(generator, race, effect, correlation, middle)
        if found.is_wrong.mean() > most_wrong:
            low = middle
        else:
            high, best = middle, (middle, found)
    return best


def report_equal_configurations(generator: np.random.Generator, race: Race, num: int) -> None:
    """Play races between equal configurations; print how often one is left, and report that rate
    over the promised one.
    """
    draws = (simulated_values(generator, race, 0.0, 0.8) for _ in range(num))
    ends = [race.decide(simulated_results(race, values)) for values in draws]
    one_left = [len(each.left) == 1 for each in ends]
    some_behind = np.mean([bool(each.dropped) for each in ends])
    print(
        f"{len(race.configurations)} equal configurations: one left in {np.mean(one_left):.2%} "
        f"of {num:,} races, wanted {MOST_WRONG:.1%}; some configuration behind another in "
        f"{some_behind:.2%}"
    )
    promised = 1 - race.rules.confidence
    name = (
        f"equal configurations, {len(race.configurations)}: rate of verdicts over the promised "
        f"{promised:.0%}"
    )
    report(name, [float(np.mean(each)) / promised for each in np.array_split(one_left, BLOCKS)])


def trained_race(number: int, rules: RaceRules = TRAINED) -> bool:
    """Train a race between two equal configurations, of seeds that no other race has; True if one
    configuration is left.
    """
    race, curves = race_of(2, rules), dict[tuple[str, int], dict[int, dict[str, float]]]()
    results: list[RungValue] = []
    while (decision := race.decide(results)).end is None:
        for target in decision.train:
            place = target.configuration, target.seed
            if place not in curves:
                micro = 128 if target.configuration == "0" else 64
                every = math.gcd(*rules.rungs)
                curves[place] = train_short(
                    load_experiment(
                        SPEC,
                        [
                            f"seed={1000 * number + target.seed}",
                            f"training.steps={rules.rungs[-1]}",
                            f"evaluation.every={every}",
                            f"batch.micro={micro}",
                        ],
                    )
                ).evaluations
            value = curves[place][target.step][rules.metric]
            results.append(RungValue(target.configuration, target.seed, target.step, value))
    return len(decision.left) == 1


def report_trained(num: int, processes: int, rules: RaceRules = TRAINED) -> None:
    """Train races between equal configurations; print how many end with one configuration."""
    one_left = in_processes(partial(trained_race, rules=rules), range(num), processes)
    print(
        f"{num} trained races of two equal configurations: {sum(one_left)} with one left; of "
        f"40 at most {MOST_TRAINED} wanted"
    )
    promised = 1 - rules.confidence
    name = f"trained equal configurations: rate of verdicts over the promised {promised:.0%}"
    report(name, [float(np.mean(one_left)) / promised])


def report_best_configuration(
    generator: np.random.Generator, race: Race, effect: float, correlation: float, num: int
) -> None:
    """Play races with one best configuration; print rates and steps, and report steps over those of
    ASHA.
    """
    ours = play_races(generator, race, effect, correlation, num)
    num_wrong = int(ours.is_wrong.sum())
    most_wrong = binomtest(num_wrong, num).proportion_ci().high
    num_seeds, theirs = asha_as_sure(generator, race, effect, correlation, most_wrong)
    rough_seeds, rough = asha_as_sure(
        generator, race, effect, correlation, 1 - race.rules.confidence
    )
    last = race.rules.rungs[-1]
    print(
        f"{len(race.configurations)} configurations, ahead by {effect:g} deviations, "
        f"correlation {correlation:g}: right {ours.is_right.mean():.1%}, wrong {num_wrong} of "
        f"{num}, {ours.steps_of_one / last:.1f} trainings a right verdict; ASHA, {num_seeds} "
        f"seeds: wrong {theirs.is_wrong.mean():.2%}, {theirs.steps_of_one / last:.1f}; wrong "
        f"at most 5 %, {rough_seeds} seeds: {rough.steps_of_one / last:.1f}"
    )
    blocks = (
        Verdicts(*each)
        for each in zip(
            *(
                np.array_split(values, BLOCKS)
                for values in (ours.steps, ours.is_right, ours.is_wrong)
            ),
            strict=True,
        )
    )
    name = (
        f"steps over ASHA's, {len(race.configurations)} configurations, {effect:g} deviations, "
        f"correlation {correlation:g}"
    )
    report(name, [each.steps_of_one / theirs.steps_of_one for each in blocks])


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--races", type=int, default=2000, help="races between equal configurations"
    )
    parser.add_argument(
        "--verdicts", type=int, default=600, help="races with one best configuration, of each kind"
    )
    parser.add_argument("--configurations", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--best-configurations", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--correlations", type=float, nargs="+", default=[0.5, 0.8, 0.95])
    parser.add_argument(
        "--seeds", type=int, default=48, help="most seeds of races with one best configuration"
    )
    parser.add_argument(
        "--trained", type=int, help="train so many races between equal configurations instead"
    )
    parser.add_argument("--processes", type=int, default=2, help="that train at once")
    options = parser.parse_args()
    if options.trained:
        report_trained(options.trained, options.processes)
        return
    generator = np.random.default_rng(0)
    for num_configurations in options.configurations:
        report_equal_configurations(generator, race_of(num_configurations), options.races)
    for num_configurations in options.best_configurations:
        race = race_of(num_configurations, replace(RULES, max_seeds=options.seeds))
        for correlation in options.correlations:
            for effect in (1, 2, 4):
                report_best_configuration(generator, race, effect, correlation, options.verdicts)


if __name__ == "__main__":
    main()

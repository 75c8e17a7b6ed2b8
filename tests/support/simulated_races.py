"""Simulated learning curves of configurations over seeds, and races on them."""

from __future__ import annotations

import numpy as np

from ditlab_addons.race.race import Race, RaceDecision, RungValue

PERSISTENCE = 0.8
"""Correlation of a trial's deviation at a rung with that at the rung before."""


def expected_values(race: Race, effect: float, correlation: float) -> np.ndarray:
    """Return the configurations' curves at rungs, (num_rungs, num_configurations), of which the
    lowest is best.

    Configuration 0 is ahead of every other, at the last rung by `effect` standard deviations of the
    difference of a pair whose values deviate by 1 and with `correlation`, and earlier by less.
    """
    progress = (np.array(race.rules.rungs) / race.rules.rungs[-1])[:, None]
    is_behind = np.arange(len(race.configurations)) > 0
    curves: np.ndarray = (
        10 * progress**-0.3 + is_behind * effect * np.sqrt(2 * (1 - correlation)) * progress**0.25
    )
    return curves


def simulated_values(
    generator: np.random.Generator, race: Race, effect: float, correlation: float
) -> np.ndarray:
    """Draw values of trials around `expected_values`, (num_rungs, num_seeds,
    num_configurations).
    """
    shape = len(race.rules.rungs), race.rules.max_seeds
    of_seed = persistent(generator.standard_normal((*shape, 1)))
    of_trial = persistent(generator.standard_normal((*shape, len(race.configurations))))
    deviations: np.ndarray = np.sqrt(correlation) * of_seed + np.sqrt(1 - correlation) * of_trial
    return expected_values(race, effect, correlation)[:, None] + deviations


def persistent(noise: np.ndarray) -> np.ndarray:
    """Correlate noise over rungs, its first axis, without a change of its variance."""
    for rung in range(1, len(noise)):
        noise[rung] = PERSISTENCE * noise[rung - 1] + np.sqrt(1 - PERSISTENCE**2) * noise[rung]
    return noise


def simulated_results(race: Race, values: np.ndarray) -> list[RungValue]:
    """Return all results of a race with these values; a race reads those of its
    interim analyses alone."""
    places = np.ndindex(values.shape)
    return [
        RungValue(
            race.configurations[configuration],
            seed,
            race.rules.rungs[rung],
            float(values[rung, seed, configuration]),
        )
        for rung, seed, configuration in places
    ]


def play(race: Race, values: np.ndarray) -> RaceDecision:
    """Let trials have these values where the race asks for them, to its end."""
    every = {
        (each.configuration, each.seed, each.step): each for each in simulated_results(race, values)
    }
    results: list[RungValue] = []
    while (decision := race.decide(results)).end is None:
        results += [every[each.configuration, each.seed, each.step] for each in decision.train]
    return decision

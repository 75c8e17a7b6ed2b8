"""Simulated learning curves of arms over seeds, and races on them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ditlab.sweeps.race import Race, RaceDecision, RungValue

PERSISTENCE = 0.8
"""Correlation of a trial's deviation at a rung with that at the rung before."""


def simulated_values(
    generator: np.random.Generator, race: Race, effect: float, correlation: float, num: int | None = None
) -> Any:
    """Draw values of trials at rungs, (num_rungs, num_seeds, num_arms), of which the lowest is best.

    All arms have one curve that falls with the steps. Arm 0 is ahead of every other, at the last rung by `effect`
    standard deviations of the difference of a pair, and earlier by less. A value deviates by 1 from its curve, and two
    of equal seeds with `correlation`. `num`: seeds; those of the race without it.
    """
    rungs = np.array(race.rules.rungs, dtype=float)
    shape = len(rungs), num or race.rules.max_seeds
    of_seed = _persistent(generator.standard_normal((*shape, 1)))
    of_trial = _persistent(generator.standard_normal((*shape, len(race.arms))))
    deviations = np.sqrt(correlation) * of_seed + np.sqrt(1 - correlation) * of_trial
    progress = (rungs / rungs[-1])[:, None, None]
    behind = np.where(np.arange(len(race.arms)) > 0, effect * np.sqrt(2 * (1 - correlation)), 0.0)
    return 10 * progress**-0.3 + behind * progress**0.25 + deviations


def _persistent(noise: np.ndarray) -> np.ndarray:
    """Correlate noise over rungs, its first axis, without a change of its variance."""
    for rung in range(1, len(noise)):
        noise[rung] = PERSISTENCE * noise[rung - 1] + np.sqrt(1 - PERSISTENCE**2) * noise[rung]
    return noise


def play(race: Race, values: np.ndarray) -> RaceDecision:
    """Let trials have these values where the race asks for them, to its end."""
    results: list[RungValue] = []
    rungs = {step: index for index, step in enumerate(race.rules.rungs)}
    arms = {arm: index for index, arm in enumerate(race.arms)}
    while (decision := race.decide(results)).end is None:
        results += [
            RungValue(each.arm, each.seed, each.step, float(values[rungs[each.step], each.seed, arms[each.arm]]))
            for each in decision.train
        ]
    return decision

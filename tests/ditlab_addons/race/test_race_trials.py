"""A race as Tune asks it: trials from rung to rung, in any order of arrival, killed at any
moment.
"""

import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from ditlab.home import Home
from ditlab.reports.sweep_records import MetricCurve, Trial
from ditlab.spec.sweep_space import check_sweep, differences
from ditlab_addons.race.race import RaceChooser, make_race, rung_values
from support.damage import refused
from support.sweeps import METRIC, sweep_of

LAST = 81
GRID = {"optimizer.lr": {"kind": "grid", "values": [1e-4, 3e-4, 1e-3, 3e-3]}}
RACE = {"kind": "race", "grace": 9, "reduction": 3}
FIXED = {"training.steps": LAST, "evaluation.every": 9}


def race_sweep(space=GRID, **changes):
    fields = {
        "scheduler": RACE,
        "seeds": {"min": 3, "max": 8},
        "search": {"kind": "grid"},
        "trials": None,
        "fixed": FIXED,
    }
    return sweep_of(space, **{**fields, **changes})


def value_of(trial, step):
    """Configurations 0 and 1 are close, 2 behind, 3 far behind; what a seed adds is shared by its
    configurations.
    """
    noise = random.Random(f"{trial.configuration}/{trial.seed}/{step}").gauss(0, 0.02)
    return (
        1
        + 5 / step
        + random.Random(trial.seed).gauss(0, 1)
        + (0.0, 0.002, 0.4, 2.0)[trial.configuration]
        + noise
    )


RATES = GRID["optimizer.lr"]["values"]


class Trained:
    """A race whose trials end in a random order. Nothing but the trials lasts: each choice is that
    of a new session, as after a kill.
    """

    def __init__(self, sweep, seed):
        self.sweep, self.random, self.trials = sweep, random.Random(seed), {}
        for place in product(range(len(RATES)), sweep.first_seeds):
            self.add(*place)

    def add(self, configuration, seed):
        number = len(self.trials)
        facts = {"configuration": configuration, "seed": seed}
        values = {"optimizer.lr": RATES[configuration]}
        self.trials[configuration, seed] = Trial(number, f"run-{number}", values, **facts)

    @property
    def chooser(self):
        return RaceChooser(self.sweep, LAST, Home(Path("none")))

    def told(self):
        return [*self.trials.values()]

    def run(self, fails=()):
        while (found := self.chooser.next_round(self.told())).trials:
            *place, until = self.random.choice(found.trials)
            place, last = tuple(place), until or LAST
            if place not in self.trials:
                self.add(*place)
            trial, steps = self.trials[place], list(range(9, last + 1, 9))
            status = "finished" if until is None else "interrupted"
            if place in fails:
                status, steps = "failed", []
            curve = MetricCurve(steps, [value_of(trial, step) for step in steps])
            self.trials[place] = replace(trial, status=status, curves={METRIC: curve}, step=last)
        self.last_round = found
        race = make_race(self.sweep, len(RATES), LAST)
        return race.decide(rung_values(self.sweep, race, self.told()))


def test_a_race_drops_what_is_behind_and_names_no_winner_among_close_configurations():
    one = Trained(race_sweep(), 0)
    decision = one.run()
    assert decision.left == ("configuration 0", "configuration 1") and decision.end != "winner"
    dropped = {each.configuration: (each.reason, each.step) for each in decision.dropped}
    assert dropped["configuration 3"] == ("behind", 9)
    steps, seeds = {}, {}
    for trial in one.told():
        steps.setdefault(trial.configuration, []).append(trial.step)
        seeds.setdefault(trial.configuration, set()).add(trial.seed)
    assert max(steps[3]) == 9  # not trained further
    assert seeds[0] == {*range(8)}  # seeds were added
    ended = f"the race has ended: {decision.end}"
    assert one.last_round.stopped | {2: ""} == {0: ended, 1: ended, 2: "", 3: "behind at step 9"}
    told = one.chooser.sentences(one.told())
    assert told[0].startswith("Configuration 3 is behind at step 9: configuration")
    assert "(99." in told[0]
    assert told[-1] == (
        "No winner among configuration 0, configuration 1 with 8 seeds, the most, at step 81."
    )


def test_neither_order_nor_kills_change_a_decision():
    expected = Trained(race_sweep(), 0).run()
    for seed in range(1, 4):
        assert Trained(race_sweep(), seed).run() == expected


def test_a_race_at_the_end_of_its_steps_goes_on_with_more():
    short = race_sweep(scheduler={**RACE, "max_steps": 9 * 4 * 3})
    one = Trained(short, 0)
    decision = one.run()
    assert decision.end == "budget used up" and decision.steps_used == 9 * 4 * 3
    assert one.last_round.used_up == "scheduler.max_steps"
    one.sweep = race_sweep()
    assert differences(short, one.sweep) == []
    assert one.run() == Trained(race_sweep(), 0).run()


def test_rungs():
    race = race_sweep().scheduler
    assert race.rungs(LAST) == (9, 27, 81) and race.rungs(100) == (9, 27, 81, 100)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": 1}, "seeds=1 gives a race no pairs"),
        (
            {"fixed": {**FIXED, "training.stop": {"metric": METRIC}}},
            "training.stop ends runs before the rungs",
        ),
        (
            {"space": {"batch.size": {"kind": "grid", "values": [16, 32]}}},
            "space.batch.size changes which draws",
        ),
        ({"scheduler": {"kind": "none"}}, "is of scheduler.kind=race alone"),
        (
            {"scheduler": {**RACE, "grace": 10}},
            "scheduler.grace=10 is no multiple of evaluation.every=9",
        ),
        (
            {"scheduler": {**RACE, "max_steps": 100}},
            "scheduler.max_steps=100 is less than the first rung takes, 108",
        ),
        ({"metric": "train/loss"}, "metric=train/loss is not measured with fixed draws"),
        ({"search": {"kind": "optuna"}, "trials": 4}, "set search.kind to random or grid"),
        (
            {
                "search": {"kind": "random"},
                "space": {"optimizer.lr": {"kind": "uniform", "low": 0.1, "high": 0.2}},
                "trials": 1,
            },
            "trials=1 is one configuration",
        ),
    ],
)
def test_what_no_race_can_do_is_one_sentence(changes, words):
    with refused(words):
        check_sweep(race_sweep(**changes), "sweep.yaml")

"""A race as Tune asks it: trials from rung to rung, in any order of arrival, killed at any
moment.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from ray.tune.search import Searcher

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.reports.sweep_records import MetricCurve, Trial
from ditlab.spec.sweep_space import check_sweep, differences
from ditlab.sweeps.search import ChosenTrials
from ditlab_addons.race.race import RaceChooser, make_race, rung_values
from support.sweeps import METRIC, sweep_of

LAST = 81
GRID = {"optimizer.lr": {"kind": "grid", "values": [1e-4, 3e-4, 1e-3, 3e-3]}}
RACE = {"kind": "race", "grace": 9, "reduction": 3}
FIXED = {"training.steps": LAST, "evaluation.every": 9}


def race_sweep(**changes):
    fields = {
        "scheduler": RACE,
        "seeds": {"min": 3, "max": 8},
        "search": {"kind": "grid"},
        "trials": None,
        "fixed": FIXED,
    }
    return sweep_of(GRID, **{**fields, **changes})


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


class Session:
    """Sessions of one race, whose trials live on in `self.trials` when the searcher is gone."""

    def __init__(self, sweep, seed):
        self.sweep, self.random = sweep, random.Random(seed)
        self.trials, self.rounds, self.running = {}, [], {}
        configurations = dict(
            enumerate({"optimizer.lr": lr} for lr in GRID["optimizer.lr"]["values"])
        )
        for seed in sweep.first_seeds:  # as the ledger is made
            for configuration, values in configurations.items():
                self.plan(len(self.trials), values, configuration, seed)
        self.configurations = configurations
        self.begin()

    def plan(self, number, values, configuration, seed):
        self.trials[number] = Trial(
            number, f"run-{number}", values, configuration=configuration, seed=seed
        )
        return self.trials[number]

    def begin(self):
        self.running = {}
        self.chooser = RaceChooser(self.sweep, LAST, Home(Path("none")))
        self.search = ChosenTrials(
            self.sweep, self.chooser, self.told(), self.plan, self.rounds.append
        )

    def told(self):
        return list(self.trials.values())

    def decision(self):
        race = make_race(self.sweep, len(self.configurations), LAST)
        return race.decide(rung_values(self.sweep, race, self.told()))

    def run(self, kill=0.0, fails=()):
        asked = 0
        while True:
            while len(self.running) < 3:
                asked += 1
                found = self.search.suggest(f"leg-{asked}")
                if found == Searcher.FINISHED and not self.running:
                    assert self.rounds[-1].trials == []
                    return self.decision()
                if not isinstance(found, dict):
                    break
                self.running[f"leg-{asked}"] = dict(found["trial"])
            if self.random.random() < kill:  # everything but the journals is lost
                self.begin()
                continue
            leg = self.random.choice(sorted(self.running))
            config = self.running.pop(leg)
            trial, until = self.trials[config["number"]], config.get("until", LAST)
            steps = list(range(9, until + 1, 9))
            curve = MetricCurve(steps, [value_of(trial, step) for step in steps])
            status = (
                "failed"
                if (trial.configuration, trial.seed) in fails
                else "finished"
                if until == LAST
                else "interrupted"
            )
            if status == "failed":
                curve = MetricCurve([], [])
            self.trials[trial.number] = replace(
                trial, status=status, curves={METRIC: curve}, step=until
            )
            if self.random.random() < kill:  # between the journal's last line and Tune's result
                self.begin()
                continue
            result = {"step": until, METRIC: value_of(trial, until), "done": True}
            result |= {"status": "paused" if status == "interrupted" else status}
            self.search.on_trial_complete(
                leg, result if status != "failed" else {"status": "failed"}
            )


def test_a_race_drops_what_is_behind_and_names_no_winner_among_close_configurations():
    one = Session(race_sweep(), 0)
    decision = one.run()
    assert decision.left == ("configuration 0", "configuration 1") and decision.end != "winner"
    assert {each.configuration: (each.reason, each.step) for each in decision.dropped}[
        "configuration 3"
    ] == (
        "behind",
        9,
    )
    steps = {trial.number: trial.step for trial in one.trials.values()}
    # not trained further
    assert (
        max(steps[trial.number] for trial in one.trials.values() if trial.configuration == 3) == 9
    )
    # seeds were added
    assert {trial.seed for trial in one.trials.values() if trial.configuration == 0} == set(
        range(8)
    )
    ended = f"the race has ended: {decision.end}"
    assert one.rounds[-1].stopped | {2: ""} == {0: ended, 1: ended, 2: "", 3: "behind at step 9"}


@pytest.mark.parametrize("kill", [0.0, 0.15])
def test_neither_order_nor_kills_change_a_decision(kill):
    expected = Session(race_sweep(), 0).run()
    for seed in range(1, 4):
        assert Session(race_sweep(), seed).run(kill) == expected


def test_a_race_is_told_in_its_own_intervals():
    one = Session(race_sweep(), 0)
    one.run()
    told = one.chooser.sentences(one.told())
    assert (
        told[0].startswith("Configuration 3 is behind at step 9: configuration")
        and "(99." in told[0]
    )
    assert (
        told[-1]
        == "No winner among configuration 0, configuration 1 with 8 seeds, the most, at step 81."
    )


def test_a_failed_trial_takes_its_pair_and_the_race_goes_on():
    decision = Session(race_sweep(), 0).run(fails={(0, 1)})
    assert decision.left == ("configuration 0", "configuration 1") and decision.failed_trials == (
        ("configuration 0", 1),
    )


def test_a_race_at_the_end_of_its_steps_goes_on_with_more():
    short = race_sweep(scheduler={**RACE, "max_steps": 9 * 4 * 3})
    one = Session(short, 0)
    decision = one.run()
    assert decision.end == "budget used up" and decision.steps_used == 9 * 4 * 3
    assert one.rounds[-1].used_up == "scheduler.max_steps"
    one.sweep = race_sweep()
    assert differences(short, one.sweep) == []
    one.begin()
    assert one.run() == Session(race_sweep(), 0).run()


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
    fields = {
        "scheduler": RACE,
        "seeds": {"min": 3, "max": 8},
        "search": {"kind": "grid"},
        "trials": None,
        "fixed": FIXED,
        "space": GRID,
    }
    fields |= changes
    with pytest.raises(UserError) as caught:
        check_sweep(sweep_of(fields.pop("space"), **fields), "sweep.yaml")
    assert words in str(caught.value) and "\n" not in str(caught.value)

"""Claims about trials that are equal: how often a sweep's report finds a difference that there is
not.

    python benchmarks/sweeps/equal_trials.py [--groups 2000] [--reports 1000] [--laws gaussian ...]

First, differences of each configuration to the best one (`simultaneous_differences`): the share of
groups of equal configurations in which any interval excludes zero, wanted at most 6 % at 95 %. Pairs
of seeds, means without pairs, and configurations of two batch sizes, of which those of one size are
pairs. Then, without a wanted share, configurations of equal means and unequal spreads, and the share
in which one that is ahead by four deviations of a pair's difference is found the best, also where
another configuration diverges. Then single runs on common held-out samples, of which `ditlab
compare` names the lowest if its difference to the next one is above its error: the share of equal
runs of which one is named, wanted at most 6 %. Last, whole reports of sweeps of equal trials: the share that claims
anything (a difference, an axis that matters, one to widen), wanted at most 6 %. With `--searches`
only reports of Optuna's searches (TPE), whose values follow results. Figures are shares over 0.05.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

import numpy as np

from benchmarks.rounds import report
from ditlab.intervals import seed_band, simultaneous_differences
from ditlab.reports.sweep_differences import differences_to_best
from ditlab.reports.sweep_records import AxisInfo, SweepSummary, Trial, configurations_of
from ditlab.reports.sweep_report import conclusions

PROMISED = 0.05
MOST = 0.06
BLOCKS = 5
"""Parts of the groups, each of which gives a ratio."""
CONFIGURATIONS = (2, 3, 4, 6, 12)
SEEDS = (3, 5, 12)
WHOLE = ("gaussian", "lognormal of skewness 6.2")
"""Laws of which whole reports are made: their ranks along axes have one law."""
HELD_OUT = 200
"""Held-out samples of single runs."""
METRIC = "eval/loss"

Draw = Callable[[tuple[int, ...]], np.ndarray]
"""Draws of values of any shape."""


def laws(generator: np.random.Generator) -> dict[str, Draw]:
    """Return laws of a value by name, each of mean 0 and deviation 1."""
    return {
        "gaussian": generator.standard_normal,
        "student t of 3": lambda shape: generator.standard_t(3, shape) / math.sqrt(3),
        "gamma of skewness 2": lambda shape: generator.exponential(size=shape) - 1,
        "lognormal of skewness 6.2": lambda shape: (
            (generator.lognormal(size=shape) - math.exp(0.5)) / math.sqrt(math.e * (math.e - 1))
        ),
    }


def groups_of(values: np.ndarray, num_sizes: int = 1) -> list[dict[tuple[int, int], float]]:
    """Return the groups of values (num_seeds, num_configurations), the lowest mean first.

    Configurations take turns at `num_sizes` batch sizes; with as many as configurations there are
    no pairs.
    """
    order = np.argsort(values.mean(axis=0))
    seeds = range(len(values))
    return [
        {(seed, int(index) % num_sizes): float(values[seed, index]) for seed in seeds}
        for index in order
    ]


def claims_difference(values: np.ndarray, num_sizes: int = 1) -> bool:
    """Return True if any interval of a difference to the lowest mean excludes zero."""
    found = simultaneous_differences(groups_of(values, num_sizes))
    return any(each.excludes_zero for each in found)


def names_best(values: np.ndarray) -> bool:
    """Return True if configuration 0 is found better than every other one."""
    found = simultaneous_differences(groups_of(values))
    return values.mean(axis=0).argmin() == 0 and all(each.excludes_zero for each in found)


def print_share(name: str, claims: np.ndarray, wanted: str = "") -> None:
    """Print a share of groups or reports with its binomial error, and report it over the promised
    one.
    """
    share = float(np.mean(claims))
    error = math.sqrt(share * (1 - share) / len(claims))
    print(
        f"{name}: {share:.1%} +- {error:.1%} of {len(claims):,}{wanted and f', wanted {wanted}'}",
        flush=True,
    )
    blocks = np.array_split(np.asarray(claims, dtype=float), BLOCKS)
    report(name, [float(each.mean()) / PROMISED for each in blocks])


def report_differences(law: str, draw: Draw, num_groups: int) -> None:
    """Print the errors of differences to the best of equal configurations."""
    wanted = f"at most {MOST:.0%}"
    for num in CONFIGURATIONS:
        for num_seeds in SEEDS:
            values = draw((num_groups, num_seeds, num))
            claims = np.array([claims_difference(each) for each in values])
            print_share(f"{law}, pairs, {num} x {num_seeds} seeds", claims, wanted)


def report_without_pairs(law: str, draw: Draw, num_groups: int) -> None:
    """Print the errors where no configurations, or half of them, share draws."""
    wanted = f"at most {MOST:.0%}"
    for num in (2, 4, 12):
        for num_seeds in SEEDS:
            name = f"{num} x {num_seeds} seeds"
            values = draw((num_groups, num_seeds, num))
            claims = np.array([claims_difference(each, num) for each in values])
            print_share(f"{law}, no pairs, {name}", claims, wanted)
            # seeds of one size have a common effect
            common = draw((num_groups, num_seeds, 2))
            values += 2 * common[:, :, np.arange(num) % 2]
            claims = np.array([claims_difference(each, 2) for each in values])
            print_share(f"{law}, two batch sizes, {name}", claims, wanted)


def report_spreads(num_groups: int, sizes: tuple[int, ...] = (3, 6, 12)) -> None:
    """Print the errors with unequal spreads, and how often the best one is found."""
    for num in sizes:
        draw = np.random.default_rng(num).standard_normal
        spreads = {
            "one with 3 times the spread": np.r_[3.0, np.ones(num - 1)],
            "one with 10 times the spread": np.r_[10.0, np.ones(num - 1)],
            "spreads from 1 to 10": np.geomspace(1, 10, num),
        }
        for num_seeds in SEEDS:
            for name, spread in spreads.items():
                values = draw((num_groups, num_seeds, num)) * spread
                claims = np.array([claims_difference(each) for each in values])
                print_share(f"gaussian, {name}, {num} x {num_seeds} seeds", claims)
            values = draw((num_groups, num_seeds, num))
            values[:, :, 0] -= 4 * math.sqrt(2)
            found = np.mean([names_best(each) for each in values])
            values[:, :, -1] = 100 + 30 * values[:, :, -1]
            beside = np.mean([names_best(each) for each in values])
            print(
                f"{num} x {num_seeds} seeds, one ahead by 4 deviations: found the best in "
                f"{found:.0%}; where another diverges in {beside:.0%}"
            )


def report_lowest(law: str, draw: Draw, num_groups: int) -> None:
    """Print how often one of equal runs is named the lowest over held-out samples."""
    for num in CONFIGURATIONS:
        values = draw((HELD_OUT, num_groups, num))
        order = np.argsort(values.mean(axis=0), axis=1)
        lowest = np.take_along_axis(values, order[None, :, :1], axis=2)[:, :, 0]
        following = np.take_along_axis(values, order[None, :, 1:2], axis=2)[:, :, 0]
        claims = seed_band(lowest - following).high < 0
        name = f"{law}, {num} runs on {HELD_OUT} held-out samples, one named"
        print_share(name, claims, f"at most {MOST:.0%}")


AXES = [
    AxisInfo("optimizer.lr", "log"),
    AxisInfo("model.depth", "linear"),
    AxisInfo("schedule.kind", "category"),
]
GRID = [(lr, depth) for lr in (1e-4, 1e-3, 1e-2) for depth in (2, 4, 6, 8)]


def random_values(generator: np.random.Generator) -> dict[str, object]:
    """Draw the values of a random search."""
    drawn = (
        float(10 ** generator.uniform(-4, -2)),
        int(generator.integers(2, 9)),
        ["constant", "cosine"][generator.integers(2)],
    )
    return dict(zip([axis.path for axis in AXES], drawn, strict=True))


def grid_values(num: int) -> list[dict[str, object]]:
    """Return `num` points of a grid of two axes."""
    paths = [axis.path for axis in AXES[:2]]
    return [dict(zip(paths, point, strict=True)) for point in GRID[:num]]


def asha(curves: np.ndarray) -> np.ndarray:
    """Return the rung, from 0, at which each trial stops: a third goes on; curves (rungs, trials)."""
    reached = np.zeros(curves.shape[1], dtype=int)
    for rung in range(len(curves) - 1):
        here = np.flatnonzero(reached == rung)
        best = here[np.argsort(curves[rung, here])][: math.ceil(len(here) / 3)]
        reached[best] = rung + 1
    return reached


def sweep_of(
    generator: np.random.Generator,
    draw: Draw,
    num: int,
    num_seeds: int = 1,
    search: str = "random",
    stops: bool = False,
) -> SweepSummary:
    """Make a sweep of equal trials; `stops`: ASHA ends them at three rungs."""
    points = grid_values(num)
    if search == "random":
        points = [random_values(generator) for _ in range(num)]
    curves = np.cumsum(draw((3, num_seeds * num)), axis=0)
    last = np.full(num_seeds * num, 2)
    if stops:
        last = asha(curves)
    trials = []
    for number in range(num_seeds * num):
        configuration = number % num
        rung = int(last[number])
        status = "finished" if rung == 2 else "stopped"
        step = (10, 30, 90)[rung]
        metrics = {METRIC: float(curves[rung, number])}
        place = {}
        if num_seeds > 1:
            place = {"configuration": configuration, "seed": number // num}
        facts = (points[configuration], status, step, 90, 1.0, metrics)
        trials.append(Trial(number, f"run-{number}", *facts, **place))
    found = trials
    if num_seeds > 1:
        found = configurations_of(trials, [METRIC])
    axes = [axis for axis in AXES if axis.path in points[0]]
    facts = (search, "asha" if stops else "none", 1.0, len(trials), "base", num_seeds)
    return SweepSummary("5eed", "equal", (METRIC,), ("min",), axes, found, *facts)


SWEEPS: dict[str, dict[str, object]] = {
    "random, 8 trials": {"num": 8},
    "random, 24 trials": {"num": 24},
    "grid, 9 trials": {"num": 9, "search": "grid"},
    "grid, 12 trials": {"num": 12, "search": "grid"},
    "random, 4 x 3 seeds": {"num": 4, "num_seeds": 3},
    "random, 12 x 3 seeds": {"num": 12, "num_seeds": 3},
    "grid, 12 x 3 seeds": {"num": 12, "num_seeds": 3, "search": "grid"},
    "grid, 9 x 5 seeds": {"num": 9, "num_seeds": 5, "search": "grid"},
    "random, 27 trials, ASHA": {"num": 27, "stops": True},
    "random, 12 x 3 seeds, ASHA": {"num": 12, "num_seeds": 3, "stops": True},
}


def claims_anything(summary: SweepSummary) -> bool:
    """Return True if a report of the sweep claims a difference or an axis."""
    if any(each.interval.excludes_zero for each in differences_to_best(summary)):
        return True
    text = " ".join(conclusions(summary))
    return "search there" in text or "To try next" in text


def report_searches(num_searches: int, sizes: tuple[int, ...] = (16, 40)) -> None:
    """Print the share of Optuna's searches over equal trials whose report names an axis."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for num in sizes:
        claims = []
        for seed in range(num_searches):
            results = np.random.default_rng([num, seed]).standard_normal(num)
            study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
            trials = []
            for number, result in enumerate(results.tolist()):
                trial = study.ask()
                values = {
                    "optimizer.lr": trial.suggest_float("lr", 1e-4, 1e-2, log=True),
                    "model.depth": trial.suggest_int("depth", 2, 8),
                    "schedule.kind": trial.suggest_categorical("kind", ["constant", "cosine"]),
                }
                study.tell(trial, result)
                facts = (values, "finished", 90, 90, 1.0, {METRIC: result})
                trials.append(Trial(number, f"run-{number}", *facts))
            facts_of_sweep = ("optuna", "none", 1.0, num, "base")
            summary = SweepSummary(
                "5eed", "equal", (METRIC,), ("min",), AXES, trials, *facts_of_sweep
            )
            claims.append(claims_anything(summary))
        print_share(f"report: Optuna, {num} trials", np.array(claims), f"at most {MOST:.0%}")


def report_whole(law: str, generator: np.random.Generator, draw: Draw, num_reports: int) -> None:
    """Print the share of reports of equal trials that claim anything."""
    for name, facts in SWEEPS.items():
        claims = np.array(
            [claims_anything(sweep_of(generator, draw, **facts)) for _ in range(num_reports)]  # type: ignore[arg-type]
        )
        print_share(f"{law}, report: {name}", claims, f"at most {MOST:.0%}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=2000)
    parser.add_argument("--reports", type=int, default=1000)
    parser.add_argument("--laws", nargs="+", help="these alone")
    parser.add_argument("--searches", type=int, help="so many of Optuna's searches alone")
    options = parser.parse_args()
    if options.searches:
        report_searches(options.searches)
        return
    for number, law in enumerate(laws(np.random.default_rng())):
        if options.laws and law not in options.laws:
            continue
        generator = np.random.default_rng(number)
        draw = laws(generator)[law]
        report_differences(law, draw, options.groups)
        report_lowest(law, draw, options.groups)
        if law in WHOLE:
            report_without_pairs(law, draw, options.groups)
            report_whole(law, generator, draw, options.reports)
        if law == "gaussian":
            report_spreads(options.groups)
    print(f"figures are shares over {PROMISED:g}: a ratio of 1 is what was promised")


if __name__ == "__main__":
    main()

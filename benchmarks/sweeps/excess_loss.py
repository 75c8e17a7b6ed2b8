"""Excess loss that searches reach on data with a known optimum, and pairs of trainings of equal
configurations.

Searches and schedulers are those of `ditlab tune`, trainings are the platform's own, in this
process in place of Ray: one trial after the other, or the whole population from takeover to
takeover. All searches get the steps of so many whole trials; the figure is the least
`eval/excess_loss` of any evaluation so far, after a quarter, half and all of these steps, over that
of the random search of the same seed. The seed decides the search, the trainings and the data.

    python benchmarks/sweeps/excess_loss.py [--seeds 8] [--trials 12] [--steps 300]
    [--processes 2] python benchmarks/sweeps/excess_loss.py --pairs pairs.json [--pair-seeds
    40]

With `--pairs`, the configurations `whole` and `halves` of one setting are trained instead. They
have one start and one order of samples, and differ in the micro-batch that draws of noise and times
are keyed by: in law they are equal.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

import numpy as np

from benchmarks.rounds import Measured, report
from benchmarks.short_trainings import final_value, in_processes, train_short
from ditlab.checkpoints.start_point import take_over
from ditlab.checkpoints.store import CheckpointStore
from ditlab.reports.sweep_records import Trial
from ditlab.spec.files import load_experiment
from ditlab.spec.sweep import Pbt, Sweep, build_sweep
from ditlab.spec.sweep_space import enumerate_trials, experiment_for
from ditlab.sweeps.search import OptunaTrials, make_scheduler
from ditlab_addons.race.race import RungValue, make_race

BASE = Path(__file__).parents[2] / "experiments" / "known" / "flow.yaml"
METRIC = "eval/excess_loss"
SPACE = {
    "optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1},
    "optimizer.weight_decay": {"kind": "loguniform", "low": 1e-4, "high": 1.0},
    "objective.weights.direction": {"kind": "uniform", "low": 0.0, "high": 1.0},
    "training.ema.decay": {"kind": "choice", "values": [0.9, 0.97, 0.99, 0.999]},
}
EVALUATIONS = 8
"""Evaluations of a whole trial."""
SEARCHES: dict[str, dict[str, Any]] = {
    "random": {"search": {"kind": "random"}},
    "tpe": {"search": {"kind": "optuna", "startup": 4}},
    "asha": {
        "search": {"kind": "random"},
        "scheduler": {"kind": "asha", "grace": 1, "reduction": 3},
    },
    "pbt": {"search": {"kind": "random"}, "scheduler": {"kind": "pbt", "interval": 2}},
    "race": {
        "search": {"kind": "random"},
        "scheduler": {"kind": "race", "grace": 1, "reduction": 3},
        "seeds": {"min": 3, "max": 6},
    },
}
"""Settings of each search; steps are counted in evaluations here."""
SHARES = (0.25, 0.5, 1.0)
Curve = list[tuple[int, float]]
"""(steps of all trials so far, metric) of each evaluation, in order."""


def make_sweep(name: str, seed: int, trials: int, steps: int) -> Sweep:
    """Build the sweep of a search: a seed has its own data."""
    every = steps // EVALUATIONS
    base = load_experiment(BASE, [f"seed={seed}", f"data.seed={seed}", f"training.steps={steps}"])
    settings = json.loads(json.dumps(SEARCHES[name]))
    for key in ("grace", "interval"):
        if key in settings.get("scheduler", {}):
            settings["scheduler"][key] *= every
    mapping = {
        "name": name,
        "base": base.to_dict(),
        "fixed": {"evaluation.every": every},
        "space": SPACE,
    }
    return build_sweep(
        {**mapping, "metric": METRIC, "trials": trials, "seed": seed, **settings}, name
    )


class InProcessTrial:
    """The part of Tune's trial that schedulers read, and the folder of its checkpoints."""

    experiment_tag = ""
    run_metadata = SimpleNamespace(
        checkpoint_manager=SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=0))
    )

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self.config, self.folder = config, folder
        self.trial_id = str(config["trial"]["number"])

    def is_finished(self) -> bool:
        """Return False: schedulers forget trials that have ended."""
        return False

    def set_config(self, config: dict[str, Any]) -> None:
        """Take the values of a takeover."""
        self.config = config


def by_trial(sweep: Sweep, budget: int, total: int) -> Curve:
    """Train trials one after the other until `budget` steps are spent, each as far as its scheduler
    lets it.
    """
    planned: list[Trial] = []

    def plan(number: int, values: Mapping[str, Any], configuration: int, seed: int | None) -> Trial:
        planned.append(Trial(number, str(number), values, configuration=configuration, seed=seed))
        return planned[-1]

    drawn = iter(enumerate_trials(sweep) or [])
    search = OptunaTrials(sweep, [], plan) if sweep.search.kind == "optuna" else None
    stopped: set[int] = set()
    scheduler = make_scheduler(sweep, total, [], stopped.add)
    curve, spent, controller = Curve(), 0, SimpleNamespace()
    for number in range(sweep.trials or 0):
        if spent >= budget:
            break
        proposed: Any = (
            search.suggest(str(number))
            if search
            else {"trial": {"number": number, "run_id": str(number), "values": next(drawn)}}
        )
        trial: Any = InProcessTrial(proposed, Path())
        scheduler.on_trial_add(controller, trial)

        def judge(
            step: int, metrics: dict[str, float], trial: Any = trial, before: int = spent
        ) -> bool:
            curve.append((before + step, metrics[METRIC]))
            if step == total:
                return True
            scheduler.on_trial_result(
                controller, trial, {"step": step, METRIC: metrics[METRIC], "time_total_s": 0.0}
            )
            return int(trial.trial_id) not in stopped and before + step < budget

        found = train_short(
            experiment_for(sweep, trial.config["trial"]["values"]), judge=judge
        ).evaluations
        last = max(found)
        result = {
            "step": last,
            METRIC: found[last][METRIC],
            "status": "finished",
            "time_total_s": 0.0,
        }
        scheduler.on_trial_complete(controller, trial, result)
        if search:
            search.on_trial_complete(str(number), result)
        spent += last
    return curve


def by_population(sweep: Sweep, total: int, folder: Path) -> Curve:
    """Train the whole population from takeover to takeover."""
    assert isinstance(sweep.scheduler, Pbt)
    every = sweep.scheduler.interval
    trials: list[Any] = [
        InProcessTrial(
            {"trial": {"number": number, "run_id": str(number), "values": values}},
            folder / str(number),
        )
        for number, values in enumerate(enumerate_trials(sweep) or [])
    ]
    scheduler = make_scheduler(sweep, total, [], lambda number: None)
    controller = SimpleNamespace(
        search_alg=None,
        get_live_trials=lambda: trials,
        _schedule_trial_train=lambda trial: None,
        pause_trial=lambda trial, should_checkpoint: None,
    )
    for trial in trials:
        scheduler.on_trial_add(controller, trial)
    curve, reached = Curve(), dict[int, float]()
    for start in range(0, total, every):
        for trial in trials:
            if takeover := trial.config["trial"].pop("takeover", None):
                donor = CheckpointStore.at(folder / takeover["run_id"])
                take_over(CheckpointStore.at(trial.folder), donor, takeover["step"])
        for number, trial in enumerate(trials):
            experiment = experiment_for(sweep, trial.config["trial"]["values"]).replace(
                "checkpoint.every", every
            )
            found = train_short(
                experiment, trial.folder, lambda step, metrics, to=start + every: step < to
            ).evaluations
            before = start * len(trials) + every * number
            curve += [(before + step - start, metrics[METRIC]) for step, metrics in found.items()]
            reached[number] = found[start + every][METRIC]
        for number, trial in enumerate(trials if start + every < total else []):
            scheduler.on_trial_result(
                controller, trial, {"step": start + every, METRIC: reached[number]}
            )
    return curve


def by_race(sweep: Sweep, budget: int, total: int, folder: Path) -> Curve:
    """Train the legs of a race from rung to rung until it ends, or `budget` steps are spent."""
    configurations = enumerate_trials(sweep) or []
    race, results = make_race(sweep, len(configurations), total), list[RungValue]()
    curve, spent = Curve(), 0
    while (decision := race.decide(results)).end is None and spent < budget:
        for target in decision.train:
            configuration, seed = (
                race.configurations.index(target.configuration),
                sweep.seed_list[target.seed],
            )
            experiment = experiment_for(sweep, configurations[configuration], seed=seed)
            every = experiment.evaluation.every or total
            found = train_short(
                experiment.replace("checkpoint.every", every),
                folder / f"{configuration}-{seed}",
                lambda step, metrics, to=target.step: step < to,
            ).evaluations
            start = min(found) - every
            curve += [(spent + step - start, metrics[METRIC]) for step, metrics in found.items()]
            spent += max(found) - start
            results.append(
                RungValue(
                    target.configuration, target.seed, target.step, found[target.step][METRIC]
                )
            )
    return curve


def search_curve(job: tuple[str, int], trials: int, steps: int) -> Curve:
    """Run one search of a seed."""
    name, seed = job
    every = steps // EVALUATIONS
    total = every * EVALUATIONS
    if name in ("pbt", "race"):
        sweep = make_sweep(name, seed, trials, total)
        with tempfile.TemporaryDirectory() as folder:
            if name == "pbt":
                return by_population(sweep, total, Path(folder))
            return by_race(sweep, trials * total, total, Path(folder))
    most = trials * EVALUATIONS if name == "asha" else trials  # as many as the steps suffice for
    return by_trial(make_sweep(name, seed, most, total), trials * total, total)


def best_after(curve: Curve, steps: float) -> float:
    """Least finite value of the evaluations within so many steps."""
    return min(value for at, value in curve if at <= steps and math.isfinite(value))


def mean_interval(values: list[float]) -> str:
    """Mean of values with its 95 % interval by Student's t."""
    from scipy.stats import t

    half = (
        t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
        if len(values) > 1
        else 0.0
    )
    mean = statistics.mean(values)
    return f"{mean:.5f} ({mean - half:.5f} to {mean + half:.5f})"


def compare_searches(
    seeds: int, trials: int, steps: int, processes: int, only: list[str] | None = None
) -> None:
    """Report searches' excess loss over seeds, and its ratio to the random search's of the same
    seed.
    """
    names = list(dict.fromkeys(["random", *(only or SEARCHES)]))
    jobs = [(name, seed) for seed in range(seeds) for name in names]
    work = partial(search_curve, trials=trials, steps=steps)
    curves = dict(zip(jobs, in_processes(work, jobs, processes), strict=True))
    budget = trials * steps
    for share in SHARES:
        found = {
            name: [best_after(curves[name, seed], share * budget) for seed in range(seeds)]
            for name in names
        }
        for name, values in found.items():
            print(
                f"{name}: after {share:.0%} of {budget:,} steps {mean_interval(values)}, mean "
                f"of {seeds} seeds"
            )
        for name in names[1:]:
            ratios = list(np.divide(found[name], found["random"]).tolist())
            report(
                f"excess_loss of {name} over random search's, after {share:.0%} of the steps",
                ratios,
            )


def equal_configuration(job: tuple[int, int], steps: int) -> float:
    """Train one configuration of a seed, with a micro-batch of its own."""
    micro, seed = job
    settings = [
        f"seed={seed}",
        f"training.steps={steps}",
        f"evaluation.every={steps}",
        f"batch.micro={micro}",
    ]
    return final_value(load_experiment(BASE, settings), METRIC)


def write_pairs(path: Path, seeds: int, steps: int, processes: int) -> None:
    """Train equal configurations on each seed, write `{"metric": ..., "configurations":
    {configuration: [value by seed]}}`, report their ratios.
    """
    size = load_experiment(BASE).batch.size
    configurations = {"whole": size, "halves": size // 2}
    jobs = [(micro, seed) for micro in configurations.values() for seed in range(seeds)]
    values = in_processes(partial(equal_configuration, steps=steps), jobs, processes)
    found = {
        name: values[index * seeds : (index + 1) * seeds]
        for index, name in enumerate(configurations)
    }
    path.write_text(json.dumps({"metric": METRIC, "configurations": found}, indent=1) + "\n")
    if seeds > 2:
        print(
            f"{path}: correlation of the configurations over {seeds} seeds "
            f"{np.corrcoef(*found.values())[0, 1]:.2f}"
        )
    report(
        "excess_loss of equal configurations",
        list(np.divide(found["halves"], found["whole"]).tolist()),
        Measured(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument(
        "--trials", type=int, default=12, help="whole trials whose steps each search gets"
    )
    parser.add_argument("--steps", type=int, default=304, help="of a whole trial")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--only",
        choices=list(SEARCHES),
        action="append",
        help="beside random: this search; may be repeated",
    )
    parser.add_argument(
        "--pairs", type=Path, help="write pairs of equal configurations to this file instead"
    )
    parser.add_argument("--pair-seeds", type=int, default=40)
    options = parser.parse_args()
    if options.pairs:
        write_pairs(options.pairs, options.pair_seeds, options.steps, options.processes)
    else:
        compare_searches(
            options.seeds, options.trials, options.steps, options.processes, options.only
        )


if __name__ == "__main__":
    main()

"""Cost of a sweep's trials beside their training, and beside a plain sweep.

Workers that are kept from trial to trial, against fresh ones: a sweep whose trials find warm
workers, the same sweep with fresh processes for every trial, and the floor: the same trainings one
after the other in one process, without Ray or MLflow, its imports paid once. A trial's start is the
time from the last step of the trial before to its own first step, over that of `python -c "import
torch, deepspeed, ray.train"`.

Then sweeps of a few trials take turns with a plain one of as many (`plain/ray_sweep.py`), one trial
at a time and under the same environment variables of Ray: seconds from a trial's first step to the
next one's, and of the whole command. Processes of Ray count as other load there.

    python benchmarks/runs/sweep_cost.py --trials 20 --fresh 6 --rounds 3
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, Timed, report, report_beside, timed
from ditlab.cluster.session import SETTINGS as RAY_SETTINGS
from ditlab.engine.distributed import single_process
from ditlab.home import Home
from ditlab.spec.sweep import build_sweep
from ditlab.spec.sweep_space import enumerate_trials, experiment_for
from ditlab.spec.yaml_text import dump_yaml
from ditlab.sweeps.session import SETTINGS as TUNE_SETTINGS
from ditlab.tracking.history import metric_history
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.trainer import train
from support.trainings.workers import training_run

IMPORTS = "import torch, deepspeed, ray.train"
PLAIN = Path(__file__).parents[1] / "plain" / "ray_sweep.py"
ENVIRONMENT = {**RAY_SETTINGS, **TUNE_SETTINGS, "TUNE_MAX_PENDING_TRIALS_PG": "1"}


def trivial(trials: int, reuse: bool) -> dict[str, Any]:
    """Six steps of a tiny network."""
    return {
        "name": "trivial",
        "base": {
            "name": "trivial",
            "model": {
                "family": "dit",
                "image_size": 8,
                "patch_size": 4,
                "width": 32,
                "depth": 2,
                "num_heads": 2,
            },
            "batch": {"size": 32},
            "training": {"steps": 6},
            "checkpoint": {"every": None},
            "evaluation": {"every": 6, "samples": 0, "limit": 64},
            "tracking": {"system_metrics": False},
        },
        "space": {"optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-2}},
        "metric": "eval/velocity",
        "trials": trials,
        "concurrent": 1,
        "reuse_workers": reuse,
    }


def swept(folder: Path, trials: int, reuse: bool) -> tuple[Timed, list[list[float]]]:
    """(the whole command, times of each trial's steps in seconds)."""
    home, path = folder / f"home-{reuse}", folder / f"sweep-{reuse}.yaml"
    path.write_text(dump_yaml(trivial(trials, reuse)))
    took, printed = command("-m", "ditlab", "tune", str(path), "--json", DITLAB_HOME=str(home))
    found = sorted(printed["trials"], key=lambda trial: trial["number"])
    times = [metric_history(Home(home).run(trial["run_id"]))["train/loss"].times for trial in found]
    return took, [[each / 1000 for each in steps] for steps in times]


def command(*arguments: str, **environment: str) -> tuple[Timed, Any]:
    """Run a Python process; return what it took, and the JSON of its last line."""
    printed: list[str] = []

    def run() -> None:
        found = os.environ | environment
        done = subprocess.run(
            [sys.executable, *arguments], env=found, stdout=subprocess.PIPE, text=True, check=True
        )
        printed.extend(done.stdout.splitlines())

    return timed(run), json.loads(printed[-1])


def report_peer(trials: int, rounds: int) -> None:
    """Let sweeps and plain ones take turns, and report their trials and the whole commands."""
    whole: tuple[list[Timed], list[Timed]] = [], []
    each: tuple[list[Timed], list[Timed]] = [], []
    for number in range(rounds):
        for side in (number % 2, 1 - number % 2):
            with tempfile.TemporaryDirectory() as folder:
                if side == 0:
                    took, steps = swept(Path(folder), trials, reuse=True)
                    starts = [times[0] for times in steps]
                else:
                    took, starts = command(str(PLAIN), folder, str(trials), **ENVIRONMENT)
            whole[side].append(took)
            each[side].append(Timed(median_gap(starts, starts), took.processor / trials, took.load))
    peer = f"Ray Tune {version('ray')}, reuse_actors, a TorchTrainer a trial"
    report_beside("trial of nothing, start to start", peer, *each, at_most=1.1)
    report_beside(f"sweep of {trials} trials of nothing", peer, *whole, at_most=1.1)


def median_gap(ends: Sequence[float], starts: Sequence[float]) -> float:
    """Median of the seconds from each trial's end to the next one's start."""
    return statistics.median(
        after - before for before, after in zip(ends[:-1], starts[1:], strict=True)
    )


def by_hand(folder: Path, trials: int) -> float:
    """Seconds of the same trainings in this process."""
    sweep = build_sweep(trivial(trials, True), "trivial")
    home = Home(folder / "by-hand")
    seconds = 0.0
    for number, values in enumerate(enumerate_trials(sweep) or []):
        experiment = experiment_for(sweep, values)
        begin = time.perf_counter()
        with single_process(use_gpu=False) as rank:
            run = training_run(experiment, home.root, folder / "checkpoints" / str(number))
            train(run, rank, Reporter(_never, print, ProgressMarker()))
        # the first one pays for imports
        seconds += (time.perf_counter() - begin) if number else 0.0
    return seconds * trials / (trials - 1)


def _never() -> bool:
    return False


def imports() -> float:
    """Seconds of a fresh interpreter that imports what a worker needs."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20, help="of the sweep with warm workers")
    parser.add_argument("--fresh", type=int, default=6, help="of the sweep with fresh workers")
    parser.add_argument("--beside", type=int, default=6, help="of the sweeps beside a plain one")
    parser.add_argument("--rounds", type=int, default=7, help="of those")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        floors, starts = [], [imports()]
        floors.append(by_hand(folder, options.trials))
        fresh, fresh_steps = swept(folder, options.fresh, reuse=False)
        starts.append(imports())
        warm, warm_steps = swept(folder, options.trials, reuse=True)
        starts.append(imports())
    floor, start = statistics.median(floors), statistics.median(starts)
    print(f"floor: {options.trials} trainings by hand {floor:.1f} s; {IMPORTS!r} {start:.1f} s")
    gaps = []
    for kind, took, steps in (("fresh", fresh, fresh_steps), ("warm", warm, warm_steps)):
        gaps.append(median_gap([times[-1] for times in steps], [times[0] for times in steps]))
        over = took.seconds / (floor * len(steps) / options.trials)
        print(
            f"{kind} workers: {len(steps)} trials {took.seconds:.1f} s, ratio {over:.1f} over "
            f"the floor; start of a trial {gaps[-1]:.2f} s (median), ratio "
            f"{gaps[-1] / start:.2f} over the imports"
        )
    report(
        "start of a trial, warm workers over fresh ones",
        [gaps[1] / gaps[0]],
        Measured(seconds=gaps[1]),
    )
    report_peer(options.beside, options.rounds)


if __name__ == "__main__":
    main()

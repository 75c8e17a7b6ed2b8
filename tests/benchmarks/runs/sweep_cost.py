"""Cost of a sweep's trials beside their training: workers that are kept from trial to trial, against fresh ones.

Three sides: a sweep whose trials find warm workers, the same sweep with fresh processes for every trial, and the floor:
the same trainings one after the other in one process, without Ray or MLflow, its imports paid once. A trial's start is
the time from the last step of the trial before to its own first step, over that of `python -c "import torch, deepspeed,
ray.train"`.

    python tests/benchmarks/runs/sweep_cost.py --trials 20 --fresh 6
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.rounds import Measured, report
from ditlab.engine.distributed import single_process
from ditlab.home import Home
from ditlab.spec.sweep import build_sweep
from ditlab.spec.sweep_space import enumerate_trials, experiment_for
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.history import metric_history
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.trainer import train
from support.trainings.workers import training_run

IMPORTS = "import torch, deepspeed, ray.train"


def trivial(trials: int, reuse: bool) -> dict[str, Any]:
    """Six steps of a tiny network."""
    return {
        "name": "trivial",
        "base": {
            "name": "trivial",
            "model": {"family": "dit", "image_size": 8, "patch_size": 4, "width": 32, "depth": 2, "num_heads": 2},
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


def swept(folder: Path, trials: int, reuse: bool) -> tuple[float, list[float]]:
    """(seconds of the whole command, seconds to the start of each trial after the first)."""
    home, path = folder / f"home-{reuse}", folder / f"sweep-{reuse}.yaml"
    path.write_text(dump_yaml(trivial(trials, reuse)))
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "ditlab", "tune", path, "--json"],
        env={**os.environ, "DITLAB_HOME": str(home)}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    found = sorted(json.loads(done.stdout.splitlines()[-1])["trials"], key=lambda trial: trial["number"])
    times = [metric_history(Home(home).run(trial["run_id"]))["train/loss"].times for trial in found]
    return seconds, [(after[0] - before[-1]) / 1000 for before, after in itertools.pairwise(times)]


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
        seconds += (time.perf_counter() - begin) if number else 0.0  # the first one pays for imports
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        floors, starts = [], [imports()]
        floors.append(by_hand(folder, options.trials))
        fresh, fresh_starts = swept(folder, options.fresh, reuse=False)
        starts.append(imports())
        warm, warm_starts = swept(folder, options.trials, reuse=True)
        starts.append(imports())
    floor, start = statistics.median(floors), statistics.median(starts)
    print(f"floor: {options.trials} trainings by hand {floor:.1f} s; {IMPORTS!r} {start:.1f} s")
    for kind, trials, seconds, gaps in (
        ("fresh", options.fresh, fresh, fresh_starts),
        ("warm", options.trials, warm, warm_starts),
    ):
        gap = statistics.median(gaps)
        print(
            f"{kind} workers: {trials} trials {seconds:.1f} s, ratio {seconds / (floor * trials / options.trials):.1f} "
            f"over the floor; start of a trial {gap:.2f} s (median), ratio {gap / start:.2f} over the imports"
        )
    ratio = statistics.median(warm_starts) / statistics.median(fresh_starts)
    report("start of a trial, warm workers over fresh ones", [ratio], Measured(seconds=statistics.median(warm_starts)))


if __name__ == "__main__":
    main()

"""Step time that `ditlab plan --measure` predicts over that of a real run.

    python benchmarks/step/planned_step.py [--quick] [--spec experiments/digits/dit.yaml]
        [--seconds 25]

Plans, trains and plans once more, each in a process of its own. The trained step is the median of
stretches of a quarter of a second and more, from `--settle` seconds after the first step on: until
then MLflow is imported and opens its database beside the steps, on the same cores. The figure to
quote is the ratio; the aim is within 0.75 and 1.25. Where the two plans differ by more than a tenth
the machine was not quiet, and a line says so. Nothing is asserted here.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report

ROOT = Path(__file__).parents[2]
CHANGES = [
    "evaluation.every=null",
    "schedule={kind: constant}",
    "checkpoint.every=null",
    "tracking.system_metrics=false",
    "tracking.report=false",
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--spec", default=str(ROOT / "experiments" / "digits" / "dit.yaml"))
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="P=V")
    parser.add_argument(
        "--settle", type=float, default=15.0, help="seconds of training that are left out"
    )
    parser.add_argument(
        "--seconds", type=float, default=25.0, help="seconds of training that count"
    )
    arguments = parser.parse_args()
    changes = [*CHANGES, *arguments.changes, *(["batch.size=16"] if arguments.quick else [])]
    settle, seconds = (0.0, 0.5) if arguments.quick else (arguments.settle, arguments.seconds)
    with tempfile.TemporaryDirectory() as home:
        os.environ["DITLAB_HOME"] = home
        before = apart(planned_step, arguments.spec, changes)
        steps = max(4, round((settle + seconds) / before))
        trained = apart(trained_step, arguments.spec, [*changes, f"training.steps={steps}"], settle)
        after = apart(planned_step, arguments.spec, changes)
    planned = statistics.mean((before, after))
    print(
        f"planned {before * 1000:.1f} and {after * 1000:.1f} ms, trained {trained * 1000:.1f} "
        "ms a step"
    )
    is_quiet = abs(before - after) <= 0.1 * planned
    note = (
        "" if is_quiet else "the machine was not quiet: the two plans differ by more than a tenth"
    )
    report(
        f"{Path(arguments.spec).stem}, planned step over trained",
        [planned / trained],
        Measured(trained),
        note,
    )


def apart(work: Callable[..., float], *arguments: Any) -> float:
    """Return what a function returns in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def planned_step(spec: str, changes: list[str]) -> float:
    """Return the seconds that a plan gives a step of a spec as it is."""
    from ditlab_addons.plan.functions import plan

    return plan(spec, changes, measure=True).own.seconds.total


def trained_step(spec: str, changes: list[str], settle: float) -> float:
    """Return the median seconds of a real run's steps, from `settle` seconds after its first one
    on.
    """
    from ditlab.api.training import train

    seen: dict[int, float] = {}
    train(
        spec,
        changes,
        local=True,
        warn=lambda _: None,
        on_progress=lambda progress: seen.setdefault(progress.step, time.perf_counter()),
    )
    times = sorted((step, at) for step, at in seen.items() if step > 0)
    late = [each for each in times if each[1] - times[0][1] >= settle]
    used = late if len(late) > 1 else times[-2:]
    return statistics.median((b - a) / (n - m) for (m, a), (n, b) in pairwise(used))


if __name__ == "__main__":
    main()

"""Step time that `ditlab plan --measure` predicts over that of a real run.

    python tests/benchmarks/step/planned_step.py [--quick] [--spec experiments/digits/dit.yaml] [--steps 25]

The plan takes its few steps in a process of its own; then the run trains in this one, and the median time between the
later half of its steps counts. The figure to quote is the ratio; the aim is within 0.75 and 1.25. Nothing is asserted
here.
"""

import argparse
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[3]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--spec", default=str(ROOT / "experiments" / "digits" / "dit.yaml"))
    parser.add_argument("--steps", type=int, default=25)
    arguments = parser.parse_args()
    steps = 4 if arguments.quick else arguments.steps
    with tempfile.TemporaryDirectory() as home:
        os.environ["DITLAB_HOME"] = home
        from ditlab.interface.planning import plan
        from ditlab.interface.training import train

        changes = [f"training.steps={steps}", "evaluation.every=null", "schedule={kind: constant}",
                   "engine.compile=false", "tracking.system_metrics=false", "tracking.report=false"]  # fmt: skip
        if arguments.quick:
            changes.append("batch.size=16")
        planned = plan(arguments.spec, changes, measure=True)
        seen: dict[int, float] = {}
        train(
            arguments.spec, changes, local=True, warn=lambda _: None,
            on_progress=lambda progress: seen.setdefault(progress.step, time.perf_counter()),
        )  # fmt: skip
    times = sorted(seen.items())[len(seen) // 2 :]
    gaps = [(b - a) / (n - m) for (m, a), (n, b) in pairwise(times) if n > m]
    real = statistics.median(gaps)
    predicted = planned.own.seconds.total
    print(f"planned {predicted * 1000:.1f} ms, trained {real * 1000:.1f} ms a step: ratio {predicted / real:.3f}")


if __name__ == "__main__":
    main()

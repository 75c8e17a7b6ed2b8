"""Time of a step with asynchronous evaluations, on another node, over the same training without
evaluations.

    python benchmarks/runs/async_evaluation.py [--rounds 3] [--steps 2000] [--every 200]

Two Ray nodes on this machine: one trains, the other, with a resource of its own, evaluates. The
sides take turns: no evaluation but the last, evaluations beside, evaluations inline. A step's time
is the span of all but the first steps, waits included, by the journal, over their number; the wait
for the last evaluation is left out. What remains is what saves, taking answers in and the other
node's use of this machine cost. The longest span of a step is printed as well. Both nodes share the
machine's cores, so a machine without idle ones measures that. Nothing is asserted.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, Timed, report_beside, timed
from ditlab.home import Home
from ditlab.spec.experiment import Experiment
from ditlab.tracking.history import metric_history
from support.trainings.workers import tiny

FIRST = 20
"""Steps that are left out: the start, and the checkpoint of step 0."""


def experiment(side: str, steps: int, every: int) -> Experiment:
    evaluation = {"every": steps if side == "none" else every, "samples": 16, "limit": 512}
    if side != "inline":
        evaluation |= {"mode": "async", "resources": {"cpus": 1, "custom": {"evaluator": 1}}}
    return tiny(
        name=side,
        training__steps=steps,
        checkpoint={"every": None},
        evaluation=evaluation,
        sampling={"steps": 10},
        resources={"cpus_per_worker": 1},
    )


def spans(home: Path, run_id: str) -> np.ndarray:
    """Seconds between the records of neighbouring steps, after the first ones."""
    return np.diff(metric_history(Home(home).run(run_id))["train/loss"].times[FIRST:]) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="async-evaluation-") as folder:
        os.environ["DITLAB_HOME"] = folder
        import ditlab.cluster.session as session

        for name, value in session.SETTINGS.items():
            os.environ.setdefault(name, value)
        import ray
        from ray.cluster_utils import Cluster

        from ditlab.api.training import train

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
        cluster.add_node(num_cpus=1, resources={"evaluator": 1})
        ray.init(address=cluster.address, log_to_driver=False)
        found: dict[str, list[Timed]] = {"none": [], "async": [], "inline": []}
        longest = dict.fromkeys(found, 0.0)
        try:
            for number in range(options.rounds):
                for side in list(found)[:: 1 - 2 * (number % 2)]:
                    spec = experiment(side, options.steps, options.every)
                    results = []
                    whole = timed(
                        lambda spec=spec, results=results: results.append(
                            train(spec, address=cluster.address)
                        )
                    )
                    steps = spans(Path(folder), results[0].run_id)
                    longest[side] = max(longest[side], float(steps.max()))
                    found[side].append(whole._replace(seconds=float(steps.mean())))
        finally:
            ray.shutdown()
            cluster.shutdown()
    for side in ("async", "inline"):
        measured = Measured(seconds=float(np.median([each.seconds for each in found[side]])))
        row = f"a step with evaluations {side}, every {options.every} steps"
        report_beside(
            row,
            "the same training without evaluations",
            found[side],
            found["none"],
            at_most=1.05,
            measured=measured,
        )
    print(
        "longest span of a step: "
        + ", ".join(f"{side} {1000 * each:.0f} ms" for side, each in longest.items())
    )


if __name__ == "__main__":
    main()

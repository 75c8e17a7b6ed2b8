"""Cost of journaling a step's metrics, relative to the step and beside three lines of JSON written
by hand.

    python benchmarks/tracking/journal_cost.py [--spec experiments/digits/dit.yaml] [--seconds
        40] [--set P=V]

Every step of one training run is timed in two parts, the call and the rest, while the tracker's
threads put the journal on the disk and send it to a SQLite store; so both parts meet the same
machine, and the call the caches that a real step leaves. What those threads take from the step
itself is not in this figure; `tracking_outage.py` compares whole steps. Then the same metrics are
logged step after step by `JournalWriter.log_metrics` alone, in turns with a plain loop that writes
each step as three unbuffered lines of JSON, a third of the metrics each. Nothing is asserted here.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import beside, report
from ditlab.engine.distributed import single_process
from ditlab.home import Home
from ditlab.spec.files import load_experiment
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import create_run
from ditlab.tracking.tracker import RunTracker
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.trainer import train
from support.trainings.workers import training_run

WARM_UP = 20
"""Steps that are not counted."""
LOGGED = 2000
"""Steps of a round that are logged one after another."""


class Timed(Reporter):
    """A reporter that journals every step, and times the call and what lies between two calls."""

    def __init__(self, tracker: RunTracker, seconds: float) -> None:
        super().__init__(self._is_over, print, ProgressMarker())
        self.metrics = self._log
        self.calls: list[float] = []
        self.rests: list[float] = []
        self.values: Mapping[str, float] = {}
        self._tracker = tracker
        self._seconds = seconds
        self._begin = self._since = time.perf_counter()

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        begin = time.perf_counter()
        self._tracker.journal.log_metrics(step, values)
        end = time.perf_counter()
        if step > WARM_UP:
            self.calls.append(end - begin)
            self.rests.append(begin - self._since)
        else:
            self._begin = end
        self._since = end
        self.values = values

    def _is_over(self) -> bool:
        return bool(self.calls) and time.perf_counter() - self._begin > self._seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--spec", type=Path, default=Path(__file__).parents[2] / "experiments/digits/dit.yaml"
    )
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    length = ["training.steps=100000", "evaluation.every=null", "checkpoint.every=null"]
    experiment = load_experiment(options.spec, [*length, *options.overrides])
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder)).ensure()
        run = create_run(home, experiment.name, family=experiment.model.family, spec_hash="")
        tracker = RunTracker(run, None, home, budget=experiment.tracking.budget)
        tracker.start(experiment.name, "benchmark", experiment.model.family)
        while tracker.mlflow_run_id is None:  # making a new store takes seconds, once
            time.sleep(0.1)
        timed = Timed(tracker, options.seconds)
        with single_process(use_gpu=False) as rank:
            train(training_run(experiment, home.root, Path(folder, "checkpoints")), rank, timed)
        left = tracker.close(30)
    print(
        f"{experiment.name}: {statistics.median(timed.rests) * 1e3:.2f} ms a step, journaling "
        f"{len(timed.values)} metrics {statistics.median(timed.calls) * 1e6:.0f} us (median; "
        f"longest {max(timed.calls) * 1e3:.2f} ms), {len(timed.calls)} steps, {left} records "
        "left unsent"
    )
    share = statistics.fmean(timed.calls) / statistics.median(timed.rests)
    print(f"mean call over median step {share:.5f}")
    report(
        "a step with its line in the journal over one without",
        [1 + share],
        note="target at most 1.005",
    )
    with tempfile.TemporaryDirectory() as folder:
        report_beside_lines(Path(folder), timed.values)


def report_beside_lines(folder: Path, values: Mapping[str, float]) -> None:
    """Log steps with these metrics in turns with three unbuffered lines of JSON a step."""
    home, steps = Home(folder).ensure(), itertools.count()
    writer = JournalWriter(create_run(home, "logged", family="dit", spec_hash=""))
    thirds = [dict(list(values.items())[part::3]) for part in range(3)]
    with Path(folder, "lines.jsonl").open("ab", buffering=0) as file:

        def by_hand() -> None:
            for step in itertools.islice(steps, LOGGED):
                for part in thirds:
                    file.write(
                        json.dumps({"time": time.time(), "step": step, **part}).encode() + b"\n"
                    )

        def ours() -> None:
            for step in itertools.islice(steps, LOGGED):
                writer.log_metrics(step, values)

        beside(
            f"a logged step of {len(values)} metrics",
            "three JSON lines by hand",
            ours,
            by_hand,
            at_most=1.0,
        )
    writer.close()


if __name__ == "__main__":
    main()

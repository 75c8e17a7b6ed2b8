"""Step time with tracking to a server that does not answer, over the same steps without tracking.

    python benchmarks/tracking/tracking_outage.py [--spec experiments/digits/dit.yaml]
        [--rounds 5] [--block 30]

One training run in one process; its steps take turns in blocks: no tracking, tracking to a port
that accepts connections and never answers (as a stopped server does), no tracking, tracking to a
port that refuses them. Each tracked block has a run and a tracker of its own, as a sender that was
left hanging goes on hanging; opening and closing it is not timed. Each tracked block is compared
with the two silent ones beside it, so a machine whose speed drifts slows both alike; the figure to
quote is the median. Nothing is asserted here.
"""

import argparse
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import report
from ditlab.engine.distributed import single_process
from ditlab.home import Home
from ditlab.spec.files import load_experiment
from ditlab.tracking.mlflow_connection import load_mlflow
from ditlab.tracking.records import create_run
from ditlab.tracking.tracker import RunTracker
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.trainer import train
from support.trainings.workers import training_run

WARM_UP = 20
"""Steps that are not counted."""
TURNS = ("silent", "hanging", "silent", "refused")


class TakingTurns(Reporter):
    """A reporter that tracks in some blocks of steps and not in others, and times each block."""

    def __init__(self, home: Home, addresses: Mapping[str, str], rounds: int, block: int) -> None:
        super().__init__(self._is_over, print, ProgressMarker())
        self.metrics = self._log
        self.blocks: list[tuple[str, float]] = []
        """(kind, seconds a step)."""
        self._home, self._addresses, self._block = home, addresses, block
        self._num_blocks = rounds * len(TURNS) + 1
        self._tracker: RunTracker | None = None
        self._steps, self._since = -WARM_UP, 0.0

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        if self._tracker is not None:
            self._tracker.journal.log_metrics(step, values)
        self._steps += 1
        if self._steps == self._block:
            self._end_block((time.perf_counter() - self._since) / self._block)
        if self._steps in (0, self._block):
            self._begin_block()

    def _is_over(self) -> bool:
        return len(self.blocks) >= self._num_blocks

    def _end_block(self, seconds: float) -> None:
        kind = TURNS[len(self.blocks) % len(TURNS)]
        self.blocks.append((kind, seconds))
        print(f"  {kind:8} {seconds * 1e3:7.2f} ms", flush=True)
        if self._tracker is not None:
            self._tracker.close(0)
            self._tracker = None

    def _begin_block(self) -> None:
        kind = TURNS[len(self.blocks) % len(TURNS)]
        if kind != "silent":
            run = create_run(self._home, kind, family="dit", spec_hash="")
            self._tracker = RunTracker(
                run, self._addresses[kind], self._home, warn=lambda message: None
            )
            self._tracker.start(kind, "benchmark", "dit")
        self._steps, self._since = 0, time.perf_counter()


def ratios(blocks: list[tuple[str, float]], kind: str) -> list[float]:
    """Each block of a kind over the mean of its silent neighbours."""
    seconds = [each for _, each in blocks]
    at = [index for index, (name, _) in enumerate(blocks) if name == kind]
    return [
        seconds[index] / statistics.mean((seconds[index - 1], seconds[index + 1])) for index in at
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--spec", type=Path, default=Path(__file__).parents[2] / "experiments/digits/dit.yaml"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block", type=int, default=30)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    length = ["training.steps=100000", "evaluation.every=null", "checkpoint.every=null"]
    experiment = load_experiment(options.spec, [*length, *options.overrides])
    load_mlflow()  # imports MLflow, which a run does once
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket() as hanging,
        socket.socket() as closed,
    ):
        hanging.bind(("127.0.0.1", 0))
        hanging.listen(128)
        closed.bind(("127.0.0.1", 0))  # bound, and nobody listens
        names = {"hanging": hanging, "refused": closed}
        addresses = {
            kind: f"http://127.0.0.1:{one.getsockname()[1]}" for kind, one in names.items()
        }
        home = Home(Path(folder)).ensure()
        turns = TakingTurns(home, addresses, options.rounds, options.block)
        with single_process(use_gpu=False) as rank:
            train(training_run(experiment, home.root, Path(folder, "checkpoints")), rank, turns)
    silent = statistics.median(seconds for kind, seconds in turns.blocks if kind == "silent")
    print(
        f"{experiment.name}: {silent * 1e3:.2f} ms a step without tracking, {os.cpu_count()} cores"
    )
    for kind in ("hanging", "refused"):
        found = ratios(turns.blocks, kind)
        report(
            f"a step with a {kind} server over one without tracking",
            found,
            note="target at most 1.01",
        )


if __name__ == "__main__":
    main()

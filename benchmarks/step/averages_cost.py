"""Cost of keeping averages of power-function profile: steps with them over steps without, in one
training run.

    python benchmarks/step/averages_cost.py [--spec experiments/digits/dit.yaml] [--rounds 20]
        [--block 4]

Blocks of steps with the update of the averages and without it take turns, each first in every other
round, so that a machine whose speed drifts slows both alike. Beside the ratio, which a busy machine
blurs, stand the seconds of the update itself; the memory of the averages, counted from their
storages, over that of the rest of the state; and what a snapshot holds the step loop up: a copy in
host memory, which is written beside the steps (`checkpoint.write=background`). A run of any length
has about 34 of them. Nothing is asserted here.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report
from ditlab.engine import engine
from ditlab.engine.averages import WeightAverages
from ditlab.engine.distributed import single_process
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment
from ditlab.training import checkpointing, trainer
from ditlab.training.checkpointing import AverageSnapshots
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.state import TrainingState
from support.trainings.workers import training_run

WARM_UP = 4
"""Blocks that are not counted; snapshots are taken in them."""


class SwitchedAverages(WeightAverages):
    """Averages whose update of all but the exponential one can be off."""

    is_on = True
    kept_bytes = 0
    state_bytes = 0
    """Masters, moments and moving average."""
    seconds: dict[bool, list[float]] = {True: [], False: []}  # noqa: RUF012
    """Seconds of each update, with the averages on (True) and off (False)."""

    def __init__(self, partitions: Any, *arguments: Any) -> None:
        super().__init__(partitions, *arguments)
        self._on = self.exponents
        flats = [
            self._flats[field][index]
            for field in self.exponents
            for index in range(len(partitions.flats))
        ]
        SwitchedAverages.kept_bytes = sum(flat.untyped_storage().nbytes() for flat in flats)
        SwitchedAverages.state_bytes = 4 * sum(
            flat.numel() * flat.element_size() for flat in partitions.flats
        )

    def _follow(self, *arguments: Any) -> None:
        self.exponents = self._on if self.is_on else {}
        begin = time.perf_counter()
        super()._follow(*arguments)
        self.seconds[self.is_on].append(time.perf_counter() - begin)
        self.exponents = self._on


class TimedSnapshots(AverageSnapshots):
    """Snapshots in the warm-up alone, timed."""

    last, every = 0, 1
    held_up: list[float] = []  # noqa: RUF012

    def is_due(self, step: int) -> bool:
        return step <= self.last and step % self.every == 0

    def save(self, state: TrainingState) -> None:
        begin = time.perf_counter()
        super().save(state)
        self.held_up.append(time.perf_counter() - begin)


class Blocks(Reporter):
    """A reporter that times blocks of steps, and turns the averages off and on between them."""

    def __init__(self, rounds: int, block: int) -> None:
        super().__init__(self._count, print, ProgressMarker())
        self._rounds, self._block = rounds, block
        self._calls, self._since = 0, 0.0
        self.times: dict[bool, list[float]] = {True: [], False: []}

    def _count(self) -> bool:
        """Called by the step loop after each step."""
        self._calls += 1
        if self._calls % self._block:
            return False
        now, number = time.perf_counter(), self._calls // self._block
        if number > WARM_UP:
            self.times[SwitchedAverages.is_on].append((now - self._since) / self._block)
        # on, off, off, on: neither is always the one after the other
        SwitchedAverages.is_on = number % 4 in (0, 3)
        self._since = time.perf_counter()
        return number >= WARM_UP + 2 * self._rounds


def measure(experiment: Experiment, rounds: int, block: int) -> None:
    TimedSnapshots.last, TimedSnapshots.every = (WARM_UP - 1) * block, block
    with tempfile.TemporaryDirectory() as folder, single_process(use_gpu=False) as rank:
        home = Path(folder)
        blocks = Blocks(rounds, block)
        trainer.train(training_run(experiment, home, home / "checkpoints"), rank, blocks)
        shards = [
            path.stat().st_size
            for path in (home / "checkpoints" / "averages").glob("step-*/shard-*")
        ]
    ratios = [on / off for on, off in zip(blocks.times[True], blocks.times[False], strict=True)]
    step, held_up = (
        statistics.median(blocks.times[False]),
        statistics.median(TimedSnapshots.held_up),
    )
    update = statistics.fmean(SwitchedAverages.seconds[True]) - statistics.fmean(
        SwitchedAverages.seconds[False]
    )
    kept, state = SwitchedAverages.kept_bytes, SwitchedAverages.state_bytes
    print(
        f"{experiment.name}: {step * 1e3:.2f} ms a step without averages; they take "
        f"{kept / 2**20:.1f} MiB beside {state / 2**20:.1f} MiB of masters, moments and moving "
        f"average ({kept / state:.2f}); their update takes {update * 1e3:.2f} ms, "
        f"{update / step:.4f} of a step; a snapshot of {statistics.median(shards) / 2**20:.1f} "
        f"MiB holds the steps up for {held_up * 1e3:.1f} ms, {held_up / step:.2f} of a step"
    )
    report(
        f"{experiment.name}: steps with two averages over without",
        ratios,
        Measured(seconds=statistics.median(blocks.times[True])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--spec", type=Path, default=Path(__file__).parents[2] / "experiments/digits/dit.yaml"
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    length = [
        "training.epochs=null",
        "training.steps=1000000",
        "evaluation.every=null",
        "checkpoint.every=null",
    ]
    experiment = load_experiment(
        options.spec, [*length, "training.averages={}", *options.overrides]
    )
    engine.WeightAverages = SwitchedAverages  # type: ignore[misc]
    checkpointing.AverageSnapshots = TimedSnapshots  # type: ignore[misc]
    measure(experiment, options.rounds, options.block)


if __name__ == "__main__":
    main()

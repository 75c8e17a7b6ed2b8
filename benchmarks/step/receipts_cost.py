"""Cost of recording receipts: steps with them over steps without them, in one training run.

    python benchmarks/step/receipts_cost.py [--spec experiments/digits/dit.yaml] [--rounds 20]
        [--block 4]
    python benchmarks/step/receipts_cost.py --tiny

Blocks of steps with receipts and without them take turns, each first in every other round, so that
a machine whose speed drifts slows both alike. Without them no sample is digested, and no row
chained, held or written; rows of the store travel with the batches either way, as they do without
receipts. `--tiny` takes a network of a few milliseconds a step in place of a spec. Beside the
ratio, which a busy machine blurs, stands the sum of the calls themselves: what a step digests,
chains and writes. The aim is at most 1.01. Nothing is asserted here.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report
from ditlab.engine.distributed import Rank, single_process
from ditlab.home import RunFolder
from ditlab.receipts.writer import ReceiptWriter
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment
from ditlab.training import receipts, trainer
from ditlab.training.hooks import ConsumedPass
from ditlab.training.plan import TrainingRun
from ditlab.training.receipts import attempt_facts, passes_digest
from ditlab.training.recovery import MemoryPlan
from ditlab.training.reporting import ProgressMarker, Reporter
from support.trainings.workers import tiny, training_run

WARM_UP = 4
"""Blocks that are not counted."""
CALLS = 5000
"""Steps whose calls alone are timed."""


class Switch:
    """True where steps have receipts."""

    is_on = True


def switched_digest(passes: Sequence[ConsumedPass]) -> int:
    """Digest a step's passes while steps have receipts."""
    return passes_digest(passes) if Switch.is_on else 0


class SwitchedWriter(ReceiptWriter):
    """A writer that can be off."""

    is_on = True

    def add(self, *numbers: Any, **more: Any) -> None:
        if self.is_on:
            super().add(*numbers, **more)


class Blocks(Reporter):
    """A reporter that times blocks of steps, and turns receipts off and on between them."""

    def __init__(self, folder: Path, rounds: int, block: int) -> None:
        super().__init__(self._count, print, ProgressMarker())
        self.receipts: SwitchedWriter = SwitchedWriter(RunFolder(folder), print)
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
            self.times[self.receipts.is_on].append((now - self._since) / self._block)
        # on, off, off, on: neither is always the one after the other
        Switch.is_on = self.receipts.is_on = number % 4 in (0, 3)
        self._since = time.perf_counter()
        return number >= WARM_UP + 2 * self._rounds


def calls_of_a_step(run: TrainingRun, rank: Rank, folder: Path) -> float:
    """Seconds that a step of one worker digests, chains and writes."""
    experiment = run.experiment
    size, unit = experiment.batch.size, experiment.batch.micro or experiment.batch.size
    rows = run.data.train.rows[list(range(min(unit, size)))]
    writer = ReceiptWriter(RunFolder(folder), print)
    writer.begin(attempt_facts(run, rank, MemoryPlan(), 0), {})
    begin = time.perf_counter()
    for step in range(CALLS):
        passes = [
            ConsumedPass(rows, first, first // unit, 0, step, experiment.seed)
            for first in range(0, size, unit)
        ]
        writer.add(step + 1, passes_digest(passes), 0.5, 1.0, 1e-3)
    seconds = (time.perf_counter() - begin) / CALLS
    writer.close()
    return seconds


def measure(experiment: Experiment, rounds: int, block: int) -> None:
    with tempfile.TemporaryDirectory() as folder, single_process(use_gpu=False) as rank:
        home = Path(folder)
        run = training_run(experiment, home, home / "checkpoints")
        blocks = Blocks(home / "run", rounds, block)
        trainer.train(run, rank, blocks)
        blocks.receipts.close()
        calls = calls_of_a_step(run, rank, home / "calls")
    ratios = [on / off for on, off in zip(blocks.times[True], blocks.times[False], strict=True)]
    step = statistics.median(blocks.times[False])
    print(
        f"{experiment.name}: {step * 1e3:.2f} ms a step without receipts; calls of a step "
        f"{calls * 1e6:.1f} us, {calls / step:.5f} of it"
    )
    report(
        f"{experiment.name}: steps with receipts over without",
        ratios,
        Measured(seconds=statistics.median(blocks.times[True])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--spec", type=Path, default=Path(__file__).parents[2] / "experiments/digits/dit.yaml"
    )
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    if options.tiny:
        none = {"every": None}
        experiment = tiny(
            training__steps=1_000_000, evaluation=none | {"samples": 0}, checkpoint=none
        )
    else:
        length = [
            "training.epochs=null",
            "training.steps=1000000",
            "evaluation.every=null",
            "checkpoint.every=null",
        ]
        experiment = load_experiment(options.spec, [*length, *options.overrides])
    receipts.passes_digest = switched_digest
    measure(experiment, options.rounds, options.block)


if __name__ == "__main__":
    main()

"""Cost of the clock of phases: steps with it over steps without it, in one training run.

    python benchmarks/step/phase_cost.py [--spec experiments/digits/dit.yaml] [--rounds 20]
        [--block 4]

Blocks of steps with the clock and without it take turns, each first in every other round, so that a
machine whose speed drifts slows both alike. Without it no mark is taken, read, exchanged or logged;
what is left of it is the entry and the exit of empty contexts. Beside the ratio, which a busy
machine blurs, stands the sum of the calls themselves: the time of a step's marks, of reading them,
and of a logged point a second. Nothing is asserted here.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report
from ditlab.engine.distributed import single_process
from ditlab.engine.phase_clock import PhaseClock
from ditlab.spec.files import load_experiment
from ditlab.training import trainer
from ditlab.training.reporting import ProgressMarker, Reporter
from support.trainings.timings import phase_log
from support.trainings.workers import training_run

WARM_UP = 4
"""Blocks that are not counted."""


class SwitchedClock(PhaseClock):
    """A clock that can be off."""

    is_on = True

    def switch(self, index: int) -> int:
        return super().switch(index) if self.is_on else index

    def end_step(self) -> None:
        if self.is_on:
            super().end_step()


class Blocks(Reporter):
    """A reporter that times blocks of steps, and turns the clock off and on between them."""

    def __init__(self, clock: SwitchedClock, rounds: int, block: int) -> None:
        super().__init__(self._count, print, ProgressMarker())
        self._clock, self._rounds, self._block = clock, rounds, block
        self._calls, self._since = 0, 0.0
        self.times: dict[bool, list[float]] = {True: [], False: []}

    def _count(self) -> bool:
        """Called by the step loop after each step."""
        self._calls += 1
        if self._calls % self._block:
            return False
        now, number = time.perf_counter(), self._calls // self._block
        if number > WARM_UP:
            self.times[self._clock.is_on].append((now - self._since) / self._block)
        # on, off, off, on: neither is always the one after the other
        self._clock.is_on = number % 4 in (0, 3)
        self._clock.restart()
        self._since = time.perf_counter()
        return number >= WARM_UP + 2 * self._rounds


def calls_of_a_step(num: int = 5000) -> float:
    """Seconds of the calls that a step of one worker makes, and of a logged point each second of
    100 steps.
    """
    log, _, tick = phase_log()
    log.clock = PhaseClock()
    begin = time.perf_counter()
    for number in range(num):
        for name in ("data", "forward", "forward", "backward", "reduce", "update", "reduce"):
            with log.clock.phase(name):
                pass
        log.clock.end_step()
        log.read()
        log.is_due()
        if number % 100 == 0:
            tick(1.0)
            log.point()
    return (time.perf_counter() - begin) / num


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--spec", type=Path, default=Path(__file__).parents[2] / "experiments/digits/dit.yaml"
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    clock = SwitchedClock()
    trainer.phase_clock = lambda _: clock  # type: ignore[assignment]
    blocks = Blocks(clock, options.rounds, options.block)
    length = [
        "training.epochs=null",
        "training.steps=100000",
        "evaluation.every=null",
        "checkpoint.every=null",
    ]
    experiment = load_experiment(options.spec, [*length, *options.overrides])
    with tempfile.TemporaryDirectory() as folder, single_process(use_gpu=False) as rank:
        trainer.train(
            training_run(experiment, Path(folder), Path(folder, "checkpoints")), rank, blocks
        )
    ratios = [on / off for on, off in zip(blocks.times[True], blocks.times[False], strict=True)]
    step, calls = statistics.median(blocks.times[False]), calls_of_a_step()
    print(
        f"{experiment.name}: {step * 1e3:.1f} ms a step without the clock; calls of a step "
        f"{calls * 1e6:.1f} us, {calls / step:.5f} of it"
    )
    report(
        "steps with the clock over without",
        ratios,
        Measured(seconds=statistics.median(blocks.times[True])),
    )


if __name__ == "__main__":
    main()

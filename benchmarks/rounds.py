"""The figure of a benchmark whose sides took turns: the median of the rounds' ratios, and how sure
it is.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

RESULTS = "DITLAB_BENCHMARK_RESULTS"
"""Environment variable that names a file, to which each figure is added as a line of JSON."""
MOST_SPREAD = 2.0
"""Rows whose rounds lie further apart than this factor measured nothing."""
MOST_LOAD = 0.5
"""Above so many busy cores of others, processor seconds stand beside wall time."""


@dataclass(frozen=True)
class Measured:
    """What else was measured of the side that a figure is about; None where it was not."""

    seconds: float | None = None
    """Median of a step, pass or draw."""
    samples_per_second: float | None = None
    utilisation: float | None = None
    """Operations a second over those of a matrix product of the same round."""
    peak_memory: int | None = None
    """Bytes."""
    device: str = "cpu"


@dataclass(frozen=True)
class BenchmarkFigure:
    """A ratio, as `make bench` writes it."""

    name: str
    ratio: float
    low: float
    high: float
    """`low` and `high` hold the median with 95%; they are the range of fewer than 6 rounds."""
    rounds: int
    threads: int | None
    """Threads that torch computed with; None without torch."""
    measured: Measured
    peer: Peer | None = None
    """What ours was measured beside, in rows of the table of peers."""


@dataclass(frozen=True)
class Peer:
    """The other side of a row, and what is wanted of the ratio."""

    name: str
    """`litdata 0.2.61`, `torch.save and fsync`: a library's version, or the plain form."""
    aim: float
    is_rate: bool
    """True: ratios are of rates, `aim` is the least wanted; False: of seconds, `aim` is the
    most.
    """
    least: float
    most: float
    """`least` and `most`: range of the rounds' ratios."""
    load: float
    """Cores that others kept busy meanwhile."""
    processor_ratio: float
    """Median of the same ratio in processor seconds, children that have ended included."""

    @property
    def sign(self) -> str:
        """The aim, as `>= 1.2`."""
        return f"{'>=' if self.is_rate else '<='} {self.aim:g}"

    def verdict(self, ratio: float) -> str:
        """Say whether a median ratio reaches the aim, and whether ours is ahead of the peer at
        all.
        """
        if self.most > MOST_SPREAD * self.least:
            return "not measured"
        if ratio >= self.aim if self.is_rate else ratio <= self.aim:
            return "reached"
        return "missed" if (ratio > 1 if self.is_rate else ratio < 1) else "missed, behind"


class Timed(NamedTuple):
    """What a piece of work took."""

    seconds: float
    processor: float
    """Processor seconds of this process and of its children that have ended."""
    load: float
    """Cores that others kept busy meanwhile."""


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the order statistics between which the median lies with `confidence`, whatever the
    distribution.

    Each value is below the median as a coin falls (David and Nagaraja 2003, Order Statistics,
    section 7.1); the whole range where there are too few for that confidence. Raises ValueError for
    no values.
    """
    if not values:
        raise ValueError("no rounds were measured; --rounds must be at least 1")
    ordered, num = sorted(values), len(values)
    tail, left = 0.0, 0
    for below in range(num // 2):
        tail += math.comb(num, below) / 2**num
        if 2 * tail > 1 - confidence:
            break
        left = below
    return ordered[left], ordered[num - 1 - left]


def describe_ratios(ratios: Sequence[float]) -> str:
    """Describe rounds: `ratio 1.013 (median of 20 rounds; 95% interval 1.004 to 1.021)`; fewer than
    6 have a range.
    """
    middle = statistics.median(ratios)
    if len(ratios) == 1:
        return f"ratio {middle:.3f} (one round)"
    low, high = median_interval(ratios)
    # all of 5 values hold the median with 94%
    kind = "95% interval" if len(ratios) >= 6 else "range"
    return f"ratio {middle:.3f} (median of {len(ratios)} rounds; {kind} {low:.3f} to {high:.3f})"


class Stopwatch:
    """Clock that runs from its making on."""

    def __init__(self) -> None:
        self._busy, self._own, self._begin = _busy(), _processor(), time.perf_counter()

    def read(self) -> Timed:
        """Return what this process and the others took since."""
        seconds, processor = time.perf_counter() - self._begin, _processor() - self._own
        return Timed(seconds, processor, max(0.0, _busy() - self._busy - processor) / seconds)


def timed(work: Callable[[], object]) -> Timed:
    """Do a piece of work, and return what it took."""
    watch = Stopwatch()
    work()
    return watch.read()


def beside(
    row: str,
    peer: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    rounds: int = 7,
    measured: Measured | None = None,
) -> None:
    """Let ours and a peer's do the same work in turns, and report the row of the table "ours beside
    peers".

    `at_least`: the wanted ratio of rates, ours over theirs; or `at_most`: of seconds. Each side
    does its work once before the first round. The side that begins changes with each round.
    """
    sides = (ours, theirs)
    for work in sides:
        work()
    took: list[list[Timed]] = [[], []]
    for number in range(rounds):
        for side in (number % 2, 1 - number % 2):
            took[side].append(timed(sides[side]))
    report_beside(row, peer, *took, at_least=at_least, at_most=at_most, measured=measured)


class Turns:
    """Steps of a side in a process of its own: a block of them at each of its turns.

    A loop asks `stepped` before each step but the warming-up ones, or behind each step of a loop
    that is not its own.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe, self._left, self._watch = pipe, 0, Stopwatch()

    def stepped(self) -> bool:
        """Count a step; at a block's end tell what it took, and wait for the next turn. Return True
        when all are over.

        The first call says that the side is ready.
        """
        self._left -= 1
        if self._left > 0:
            return False
        torch: Any = sys.modules.get("torch")
        if torch and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._pipe.send(self._watch.read())
        self._left = self._pipe.recv()
        self._watch = Stopwatch()
        return self._left == 0


def take_turns(
    sides: Mapping[str, Callable[[Turns], object]], rounds: int, block: int, warm_up: int = 1
) -> dict[str, list[Timed]]:
    """Let sides take turns, each in a process of its own, so that no library's settings or memory
    are another's.

    `sides`: functions of a module, or `partial`s of such, which step as long as `Turns` says. They
    are started one after the other. A turn is a block of steps; the side that begins changes with
    each round. Returns what each block took, without the first `warm_up` rounds. Raises EOFError
    for a side that ends early.
    """
    context, pipes = multiprocessing.get_context("spawn"), dict[str, Any]()
    for name, side in sides.items():
        pipes[name], theirs = context.Pipe()
        context.Process(target=_run_side, args=(side, theirs), daemon=True).start()
        theirs.close()  # or the end of the process would not be seen here
        pipes[name].recv()
    took: dict[str, list[Timed]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(warm_up + rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            pipes[name].send(block)
            took[name].append(pipes[name].recv())
    for pipe in pipes.values():
        pipe.send(0)
    for process in multiprocessing.active_children():
        process.join()
    return {name: each[warm_up:] for name, each in took.items()}


def _run_side(side: Callable[[Turns], object], pipe: Any) -> None:
    side(Turns(pipe))


def report_beside(
    row: str,
    peer: str,
    ours: Sequence[Timed],
    theirs: Sequence[Timed],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    measured: Measured | None = None,
) -> None:
    """Report a row of the table "ours beside peers" from rounds that were measured elsewhere, as
    `beside` does.

    Raises ValueError for no rounds, or without exactly one aim.
    """
    if (at_least is None) == (at_most is None):
        raise ValueError("a row has one aim: at_least or at_most")
    pairs = list(zip(ours, theirs, strict=True))
    if at_least is not None:
        pairs = [(their, our) for our, their in pairs]
    ratios = [one.seconds / other.seconds for one, other in pairs]
    processor = statistics.median(
        one.processor / max(other.processor, 1e-9) for one, other in pairs
    )
    load = statistics.median(each.load for each in (*ours, *theirs))
    aim = (at_most or 0.0) if at_least is None else at_least
    facts = Peer(peer, aim, at_least is not None, min(ratios), max(ratios), load, processor)
    words = f"beside {peer}, wanted {facts.sign}: {facts.verdict(statistics.median(ratios))}"
    if load > MOST_LOAD:
        words += f"; others kept {load:.1f} cores busy, in processor seconds {processor:.3f}"
    measured = measured or Measured(seconds=statistics.median(each.seconds for each in ours))
    report(row, ratios, measured, words, facts)


def _busy() -> float:
    """Return the processor seconds that all processes of the machine have used."""
    times = psutil.cpu_times()
    return times.user + times.system


def _processor() -> float:
    return sum(os.times()[:4])


def report(
    name: str,
    ratios: Sequence[float],
    measured: Measured | None = None,
    note: str = "",
    peer: Peer | None = None,
) -> None:
    """Print a figure and its note, and add it to the file that `RESULTS` names, if there is one.

    Raises ValueError for no ratios.
    """
    low, high = median_interval(ratios)
    print(f"{name}: {describe_ratios(ratios)}{note and f'; {note}'}", flush=True)
    if file := os.environ.get(RESULTS):
        torch = sys.modules.get("torch")
        threads = None if torch is None else torch.get_num_threads()
        middle = statistics.median(ratios)
        figure = BenchmarkFigure(
            name, middle, low, high, len(ratios), threads, measured or Measured(), peer
        )
        with Path(file).open("a") as lines:
            lines.write(json.dumps(asdict(figure)) + "\n")

"""Where the time of training goes: phases of all workers, slow workers, throughput, utilisation.

The phases of a step are exchanged once a step with the requests to stop, and logged about once a
second.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from ditlab.engine.distributed import Rank
from ditlab.engine.phase_clock import OWN_WORK, PHASES, PhaseClock
from ditlab.tracking.history import STRAGGLER_TAG
from ditlab.training.hooks import StepHook
from ditlab.training.plan import TrainingRun
from ditlab.training.reporting import Reporter

# Throughput
RECENT = 31
"""Latest stretches, of a second or a step each, whose median pace the time left is told from."""
# Slow workers
FACTOR = 1.5
"""Times the median of the other workers that a slow worker's own work takes."""
LEAST_POINTS = 5
"""Logged points in a row, at least a second each: short steps of a busy machine differ by more than
the factor.
"""
# Utilisation
COUNTED_AFTER = 2.0
"""Seconds of steps before their operations are counted: a shorter run, as of a test, has no
utilisation.
"""
# Phases
INTERVAL = 1.0
"""Least seconds between two logged points: short steps would fill the journal with their times."""
SHARE = 1e-4
"""Least time between two points as a share of that since the start: a month's take 30 MB, not 40 MB
a day.
"""
_BETWEEN_STEPS = [PHASES.index("checkpoint"), PHASES.index("evaluation")]
_DATA = PHASES.index("data")
_NUM_PHASES = len(PHASES)
# Numbers that a worker sends: nanoseconds by phase, steps, bytes of its peak memory.
_NUM_NUMBERS = _NUM_PHASES + 2
_SECOND = 1_000_000_000  # nanoseconds


class ThroughputMeter:
    """Samples per second over the latest stretch of steps, without evaluations and saves."""

    def __init__(self, batch_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._batch_size = batch_size
        self._clock = clock
        self.restart()
        self.samples_per_second = 0.0
        self.seconds_per_sample = 0.0
        """Median of the `RECENT` latest stretches: what the time left is told from."""
        self._paces: deque[float] = deque(maxlen=RECENT)
        self._pauses: dict[str, float] = {}
        """Seconds that the latest pause of each kind took."""

    def restart(self) -> None:
        """Begin a new stretch: the time since the last step was spent on something else."""
        self._since = self._clock()
        self._steps = 0

    def count_step(self) -> None:
        """Count a finished step."""
        self._steps += 1
        elapsed = self._clock() - self._since
        if elapsed > 0 and (elapsed > 1.0 or not self.samples_per_second):
            samples = self._steps * self._batch_size
            self._paces.append(elapsed / samples)
            self.seconds_per_sample = statistics.median(self._paces)
            self.samples_per_second = samples / elapsed
            self.restart()

    def seconds_left(self, steps: int, pauses: Mapping[str, int]) -> float:
        """Return the time of so many more steps and pauses by kind; a kind of which none is over
        yet counts nothing.
        """
        between = sum(num * self._pauses.get(kind, 0.0) for kind, num in pauses.items())
        return steps * self._batch_size * self.seconds_per_sample + between

    @contextmanager
    def paused(self, kind: str = "") -> Iterator[None]:
        """Exclude the time inside from the throughput; of a `kind` it is kept for the time left."""
        start = self._clock()
        try:
            yield
        finally:
            elapsed = self._clock() - start
            self._since += elapsed
            if kind:
                self._pauses[kind] = elapsed


def slowest(work: Sequence[float]) -> tuple[int, float, float]:
    """Return rank and seconds of the slowest of several workers, and the median of the others'
    seconds.
    """
    worker = max(range(len(work)), key=lambda rank: work[rank])
    return worker, work[worker], statistics.median([*work[:worker], *work[worker + 1 :]])


@dataclass(frozen=True)
class StepWork:
    """Operations of one step, and the rate that they are compared with."""

    model: float
    """Operations of the forward and backward passes of the global batch, without recomputation."""
    hardware: float
    """Operations including those that activation checkpointing computes a second time."""
    rate: float
    """Operations a second of a matrix product, of all workers together."""


def step_work(run: TrainingRun, rank: Rank, warn: Callable[[str], None]) -> StepWork | None:
    """Count a step's operations and measure the rate of a matrix product: about half a second, once
    a run.

    None, and a warning, for a network whose operations cannot be counted.
    """
    from ditlab.inputs.flops import matrix_rate, step_flops
    from ditlab.inputs.meta_step import DTYPES
    from ditlab.inputs.model_inputs import data_shape

    experiment = run.experiment
    try:
        flops = step_flops(experiment, data_shape(experiment, run.data))
    # a family of another package may do on the meta device what fails there
    except Exception as error:
        warn(
            f"perf/mfu is not reported: the operations of {experiment.model.family} cannot be "
            f"counted ({error})."
        )
        return None
    rate = matrix_rate(rank.device, DTYPES[experiment.training.precision])
    return StepWork(flops.model, flops.hardware, rate * rank.world_size)


class PhaseLog(StepHook):
    """Where the time of a run goes, as each worker knows it from all; the first one logs it and
    names stragglers.
    """

    def __init__(
        self,
        run: TrainingRun,
        rank: Rank,
        reporter: Reporter,
        clock: PhaseClock,
        now: Callable[[], float] = time.monotonic,
        measure: Callable[[TrainingRun, Rank, Callable[[str], None]], StepWork | None] = step_work,
    ) -> None:
        self.clock = clock
        self._run = run
        self._rank = rank
        self._reporter = reporter
        self._now = now
        self._measure = measure
        rows = (field.shape for field in run.experiment.batch_fields() if field.name == "tokens")
        self._tokens = next((int(shape[0]) for shape in rows if shape), 0)
        """Tokens of a row of text; 0 for other data."""
        self._begin = self._logged = now()
        self._work: StepWork | None = None
        self._is_counted = False
        self._own = [0] * _NUM_NUMBERS
        """Numbers that this worker has not sent yet."""
        self._waited = 0.0
        self._num_waits = 0
        self._memory_at = -INTERVAL
        shape = (rank.world_size, _NUM_PHASES)
        self._sums = np.zeros(shape)
        self._steps = np.zeros(rank.world_size, np.int64)
        """Seconds (worker, phase) and steps since the last logged point."""
        self.totals = np.zeros(shape)
        """Seconds (worker, phase) since this process began the run."""
        self.peaks = np.zeros(rank.world_size, np.int64)
        """Peak memory of each worker, bytes."""
        self._slowest = -1
        """Rank of the slowest worker at the last point."""
        self._num_slow = 0
        """Points in a row at which it was slow."""

    def restart(self) -> None:
        """Begin to train: what came before was building and loading."""
        self.clock.restart()
        self._logged = self._now()

    def read(self, is_over: bool = False) -> None:
        """Read this worker's clock: the steps that have ended; with `is_over` also what lies behind
        the last one.
        """
        if is_over:
            found = self.clock.read_rest()
            self._memory_at = -INTERVAL
        else:
            found = self.clock.read()
            if not found.num_steps:
                return
        for phase, seconds in enumerate(found.seconds):
            self._own[phase] += round(seconds * _SECOND)
        self._own[_NUM_PHASES] += found.num_steps
        self._waited += found.seconds[_DATA]
        self._num_waits += found.num_steps
        if self._rank.world_size == 1:
            self._take([self._sent()])

    def pack(self) -> list[int]:
        """Return this worker's numbers, and forget them; [] for a single worker."""
        return self._sent() if self._rank.world_size > 1 else []

    def merge(self, step: int, records: Sequence[Sequence[int]]) -> None:
        """Take in the numbers of all workers."""
        if self._rank.world_size > 1:
            self._take(records)

    def _take(self, records: Sequence[Sequence[int]]) -> None:
        rows = np.array(records, np.int64)
        seconds = rows[:, :_NUM_PHASES] / _SECOND
        steps = rows[:, _NUM_PHASES]
        self._sums += seconds
        self._steps += steps
        self.totals += seconds
        np.maximum(self.peaks, rows[:, _NUM_PHASES + 1], out=self.peaks)

    def data_wait(self, restart: bool) -> float:
        """Return the seconds a step that this worker waited for its batch; `restart` begins a new
        mean.
        """
        mean = self._waited / max(1, self._num_waits)
        if restart:
            self._waited = 0.0
            self._num_waits = 0
        return mean

    def is_due(self) -> bool:
        """Return True if the last logged point is older than a second, or than a ten-thousandth of
        the run so far.
        """
        return self._now() - self._logged >= max(INTERVAL, SHARE * (self._now() - self._begin))

    def point(self) -> dict[str, float]:
        """Return the metrics since the last point, by MLflow name, and begin again; {} before a
        step's end.
        """
        if not self._steps.all():
            return {}
        self._logged = self._now()
        of_workers = self._sums / self._steps[:, None]
        mean = of_workers.mean(0)
        num_steps = int(self._steps[0])
        values = {
            f"time/{name}": float(seconds) for name, seconds in zip(PHASES, mean, strict=True)
        }
        values["time/steps"] = float(num_steps)
        if self._rank.world_size > 1:
            worker, own, others = slowest(of_workers[:, OWN_WORK].sum(1).tolist())
            values["time/slowest"] = own / others if others else 1.0
            self._follow_slowest(worker, values["time/slowest"])
        step = float(mean.sum() - mean[_BETWEEN_STEPS].sum())
        if step > 0:
            pace = self._run.experiment.batch.size / step / self._rank.world_size
            values["perf/samples_per_second"] = pace
            if self._tokens:
                values["perf/tokens_per_second"] = pace * self._tokens
        trained = self.totals[0].sum() - self.totals[0, _BETWEEN_STEPS].sum()
        if not self._is_counted and trained >= COUNTED_AFTER:
            self._is_counted = True
            self._work = self._measure(self._run, self._rank, self._reporter.warn)
        if self._work and step > 0:
            # Chowdhery et al. 2022, arXiv:2204.02311, appendix B.
            done = self._work.rate * step
            values["perf/mfu"] = self._work.model / done
            values["perf/hfu"] = self._work.hardware / done
        values["perf/memory"] = float(self.peaks.max())
        self._sums[:] = 0.0
        self._steps[:] = 0
        return values

    def _follow_slowest(self, worker: int, ratio: float) -> None:
        """Name a worker, once, that was slow at some points in a row; `ratio` is its time over the
        others' median.
        """
        is_slow = ratio > FACTOR
        is_same = worker == self._slowest
        if not (is_slow and is_same):
            self._num_slow = 0
        if is_slow:
            self._num_slow += 1
        self._slowest = worker
        if self._num_slow == LEAST_POINTS:
            text = (
                f"{self._reporter.worker_name(worker)} takes {ratio:.1f} times as long for its "
                "forward and backward passes as the others"
            )
            self._reporter.tags({STRAGGLER_TAG: text})
            self._reporter.warn(f"{text}; they wait for it at every step.")

    def _sent(self) -> list[int]:
        sent = self._own
        self._own = [0] * _NUM_NUMBERS
        if self._now() - self._memory_at < INTERVAL:  # torch's statistics of a GPU take 0.1 ms
            return sent
        self._memory_at = self._now()
        # The peak in bytes: of torch's tensors on a GPU, of the whole process's resident memory on
        # a CPU.
        if self._rank.device.type == "cuda":
            sent[_NUM_PHASES + 1] = int(torch.cuda.max_memory_allocated(self._rank.device))
        else:
            sent[_NUM_PHASES + 1] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return sent

"""Seconds of all workers by phase: exchanged once a step with the requests to stop, logged about once a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from ditlab.engine.distributed import Rank
from ditlab.engine.phase_clock import PHASES, PhaseClock
from ditlab.tracking.journal.facts import STRAGGLER_TAG
from ditlab.training.plan import TrainingRun
from ditlab.training.reporting import Reporter
from ditlab.training.timing.memory import peak_memory
from ditlab.training.timing.stragglers import SlowStretch, follow_slowest, slowest_share
from ditlab.training.timing.utilisation import StepWork, step_work

INTERVAL = 1.0
"""Least seconds between two logged points: short steps would fill the journal with their times."""
SHARE = 1e-4
"""Least time between two points as a share of that since the start: a month's take 30 MB, not 40 MB a day."""
COUNTED_AFTER = 2.0
"""Seconds of steps before their operations are counted: a shorter run, as of a test, has no utilisation."""
_OWN_WORK = [PHASES.index("forward"), PHASES.index("backward")]
_BETWEEN_STEPS = [PHASES.index("checkpoint"), PHASES.index("evaluation")]
_DATA = PHASES.index("data")
_NUM_PHASES = len(PHASES)
_ROW = _NUM_PHASES + 2  # numbers that a worker sends: nanoseconds by phase, steps, bytes of its peak memory
_SECOND = 1_000_000_000  # nanoseconds


class PhaseLog:
    """Where the time of a run goes, as each worker knows it from all; the first one logs it and names stragglers."""

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
        self._run, self._rank, self._reporter, self._now, self._measure = run, rank, reporter, now, measure
        self._batch_size, self._tokens = run.experiment.batch.size, _tokens_of_sample(run)
        self._begin = self._logged = now()
        self._work: StepWork | None = None
        self._is_counted = False
        self._own = [0] * _ROW
        """Numbers that this worker has not sent yet."""
        self._waited, self._num_waits = 0.0, 0
        self._memory_at = -INTERVAL
        shape = (rank.world_size, _NUM_PHASES)
        self._sums, self._steps = np.zeros(shape), np.zeros(rank.world_size, np.int64)
        """Seconds (worker, phase) and steps since the last logged point."""
        self.totals = np.zeros(shape)
        """Seconds (worker, phase) since this process began the run."""
        self.peaks = np.zeros(rank.world_size, np.int64)
        """Peak memory of each worker, bytes."""
        self._stretch: SlowStretch | None = None
        self._named = -1

    def restart(self) -> None:
        """Begin to train: what came before was building and loading."""
        self.clock.restart()
        self._logged = self._now()

    def read(self, is_over: bool = False) -> None:
        """Read this worker's clock: the steps that have ended; with `is_over` also what lies behind the last one."""
        found = self.clock.read_rest() if is_over else self.clock.read()
        if is_over:
            self._memory_at = -INTERVAL
        elif not found.num_steps:
            return
        for phase, seconds in enumerate(found.seconds):
            self._own[phase] += round(seconds * _SECOND)
        self._own[_NUM_PHASES] += found.num_steps
        self._waited, self._num_waits = self._waited + found.seconds[_DATA], self._num_waits + found.num_steps
        if self._rank.world_size == 1:
            self.take(self._sent())

    def row(self) -> list[int]:
        """Return this worker's numbers, zero in the places of the others, and forget them; [] for a single worker."""
        if self._rank.world_size == 1:
            return []
        before = [0] * (_ROW * self._rank.rank)
        return [*before, *self._sent(), *[0] * (_ROW * (self._rank.world_size - self._rank.rank - 1))]

    def take(self, numbers: Sequence[int]) -> None:
        """Take in the numbers of all workers, the largest in each place of their rows; [] has none."""
        if not numbers:
            return
        rows = np.array(numbers, np.int64).reshape(-1, _ROW)
        seconds, steps = rows[:, :_NUM_PHASES] / _SECOND, rows[:, _NUM_PHASES]
        self._sums += seconds
        self._steps += steps
        self.totals += seconds
        np.maximum(self.peaks, rows[:, _NUM_PHASES + 1], out=self.peaks)
        if self._rank.is_first and self._rank.world_size > 1 and steps.min() > 0:
            work = seconds[:, _OWN_WORK].sum(1) / steps * steps.min()
            self._stretch = follow_slowest(self._stretch, work.tolist(), int(steps.min()))
            self._name_straggler()

    def data_wait(self, restart: bool) -> float:
        """Return the seconds a step that this worker waited for its batch; `restart` begins a new mean."""
        mean = self._waited / max(1, self._num_waits)
        if restart:
            self._waited, self._num_waits = 0.0, 0
        return mean

    def is_due(self) -> bool:
        """Return True if the last logged point is older than a second, or than a ten-thousandth of the run so far."""
        return self._now() - self._logged >= max(INTERVAL, SHARE * (self._now() - self._begin))

    def point(self) -> dict[str, float]:
        """Return the metrics since the last point, under their MLflow names, and begin anew; {} before a step's end."""
        if not self._steps.all():
            return {}
        self._logged = self._now()
        of_workers = self._sums / self._steps[:, None]
        mean, num_steps = of_workers.mean(0), int(self._steps[0])
        values = {f"time/{name}": float(seconds) for name, seconds in zip(PHASES, mean, strict=True)}
        values["time/steps"] = float(num_steps)
        if self._rank.world_size > 1:
            values["time/slowest"] = slowest_share(of_workers[:, _OWN_WORK].sum(1).tolist())
        step = float(mean.sum() - mean[_BETWEEN_STEPS].sum())
        if step > 0:
            pace = self._batch_size / step / self._rank.world_size
            values["perf/samples_per_second"] = pace
            if self._tokens:
                values["perf/tokens_per_second"] = pace * self._tokens
        if work := self._step_work():
            values |= work.utilisation(step)
        values["perf/memory"] = float(self.peaks.max())
        self._sums[:], self._steps[:] = 0.0, 0
        return values

    def _sent(self) -> list[int]:
        sent, self._own = self._own, [0] * _ROW
        if self._now() - self._memory_at >= INTERVAL:  # torch's statistics of a GPU take 0.1 ms
            self._memory_at = self._now()
            sent[-1] = peak_memory(self._rank.device)
        return sent

    def _step_work(self) -> StepWork | None:
        trained = self.totals[0].sum() - self.totals[0, _BETWEEN_STEPS].sum()
        if not self._is_counted and trained >= COUNTED_AFTER:
            self._is_counted = True
            self._work = self._measure(self._run, self._rank, self._reporter.warn)
        return self._work

    def _name_straggler(self) -> None:
        """Tag the run with a worker that has become a straggler, and warn; once for each until another one is."""
        found = self._stretch
        if found is None or not found.is_straggler or found.worker == self._named:
            return
        self._named = found.worker
        text = found.describe(self._reporter.worker_name(found.worker))
        self._reporter.tags({STRAGGLER_TAG: text})
        self._reporter.warn(f"{text}; they wait for it at every step.")


def _tokens_of_sample(run: TrainingRun) -> int:
    """Tokens of a row of text; 0 for other data."""
    rows = (field.shape for field in run.experiment.batch_fields() if field.name == "tokens")
    return next((int(shape[0]) for shape in rows if shape), 0)

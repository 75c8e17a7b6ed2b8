"""Metrics of training steps: summed on the device, read once they have arrived on the host, checked
and reported.
"""

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from ditlab.data.splits import DataSplits
from ditlab.engine.distributed import Rank
from ditlab.engine.phase_clock import PHASES
from ditlab.quality import quality_names
from ditlab.spec.experiment import Experiment
from ditlab.training.evaluation import EXCESS_LOSS, analytic_target
from ditlab.training.hooks import Hooks
from ditlab.training.plan import TrainingRun
from ditlab.training.recovery import NonFiniteMonitor
from ditlab.training.reporting import Phase, Reporter, TrainingProgress
from ditlab.training.timing import PhaseLog, ThroughputMeter

PROGRESS_INTERVAL = 0.25  # seconds between progress reports


class PendingStep(NamedTuple):
    """Numbers of a finished step on their way to the host."""

    step: int
    is_logged: bool
    names: list[str]
    values: Tensor
    event: torch.cuda.Event | None
    """Event that passes once they have arrived; None on a CPU."""


class StepMetrics:
    """Mean of a step's loss components over micro-batches and workers, computed without making a
    GPU wait.

    On CUDA the numbers are copied to the host asynchronously and read when they have arrived.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._names: list[str] = []
        self._sums: Tensor | None = None
        self._pending: list[PendingStep] = []

    def add(self, components: Mapping[str, Tensor], share: float) -> None:
        """Add one forward pass's components, which hold `share` of the step's mean over all
        workers.
        """
        self._names = list(components)
        values = torch.stack([value.float() for value in components.values()]) * share
        self._sums = values if self._sums is None else self._sums + values

    def drop(self) -> None:
        """Drop the sums of a step that was begun and not finished."""
        self._sums = None

    def all_finite(self) -> Tensor:
        """Sum the step's components over workers; return a bool tensor on the device, true if all
        are finite.
        """
        assert self._sums is not None
        if self._world_size > 1:
            distributed.all_reduce(self._sums)
        return self._sums.isfinite().all()

    def finish(self, step: int, extra: Mapping[str, Tensor | float], is_logged: bool) -> None:
        """Close the step, after `all_finite`; `extra` are values that are equal on all workers."""
        assert self._sums is not None
        sums = self._sums
        self._sums = None
        # A number becomes a tensor on the device by a fill: a copy from the host would wait for the
        # GPU.
        more = [
            value.to(sums) if isinstance(value, Tensor) else sums.new_full((), value)
            for value in extra.values()
        ]
        values = torch.cat([sums, torch.stack(more)])
        event = None
        if values.is_cuda:
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            values = host
        self._pending.append(PendingStep(step, is_logged, [*self._names, *extra], values, event))

    def read(self, wait: bool = False) -> list[tuple[int, dict[str, float], bool]]:
        """Return every step whose numbers have arrived (every finished step with `wait`): step,
        metrics, is logged.
        """
        arrived = []
        while self._pending:
            pending = self._pending[0]
            if pending.event is not None:
                if not wait and not pending.event.query():
                    break
                pending.event.synchronize()
            self._pending.pop(0)
            numbers = dict(zip(pending.names, pending.values.tolist(), strict=True))
            arrived.append((pending.step, numbers, pending.is_logged))
        return arrived


class MetricLog:
    """Latest metrics of a run; the first worker reports them, every worker checks them for NaN and
    infinities.
    """

    def __init__(
        self, run: TrainingRun, rank: Rank, reporter: Reporter, phases: PhaseLog, hooks: Hooks
    ) -> None:
        self.phases = phases
        self._hooks = hooks
        self._reporter = reporter
        self._experiment = run.experiment
        self._total_steps = run.plan.total_steps
        self._is_first = rank.is_first
        self._world_size = rank.world_size
        self.steps = StepMetrics(rank.world_size)
        self.throughput = ThroughputMeter(run.experiment.batch.size)
        self.monitor = NonFiniteMonitor(run.experiment)
        self.latest: dict[str, float] = {}
        """Metrics of the last finite step and the last evaluation, under their MLflow names."""
        self._reported = 0.0
        self.bad_step = 0
        """First non-finite step (from 1) that the run is to roll back from; 0 for none."""

    def discard_pending(self) -> None:
        """Discard steps that come again after a roll-back, as they are measured again."""
        self.bad_step = 0
        self.steps = StepMetrics(self._world_size)

    def read_steps(self, current_step: int, wait: bool = False) -> None:
        """Check every step whose numbers have arrived (every step with `wait`), and report those
        that are due.

        Raises RunFailed where the policy for non-finite steps is to stop.
        """
        self.phases.read()
        for step, numbers, is_logged in self.steps.read(wait):
            self._take_step(step, numbers, is_logged)
        is_over = current_step == self._total_steps
        if is_over or time.monotonic() - self._reported > PROGRESS_INTERVAL:
            self._reported = time.monotonic()
            self.report_progress(current_step, "training", self.throughput.samples_per_second)

    def _take_step(self, step: int, numbers: dict[str, float], is_logged: bool) -> None:
        """Check the numbers of a step, and report them if they are due or not finite."""
        for measured in self._hooks.measured:
            measured(step, numbers)
        values = {f"train/{name}": value for name, value in numbers.items()}
        values["train/samples_per_second"] = self.throughput.samples_per_second
        values["train/data_wait"] = self.phases.data_wait(restart=is_logged)
        loss = numbers["loss"]
        norm = numbers["grad_norm"]
        if self._experiment.training.precision == "fp16":
            norm = 0.0  # gradients overflow until the loss scale fits
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        if is_finite:
            self.monitor.num_consecutive = 0
            self._update(values)
        else:
            self._count_non_finite(step, loss, norm)
        if not self._is_first or (is_finite and not is_logged):
            return
        if is_logged and step < self._total_steps and self.phases.is_due():
            with self.throughput.paused():
                times = self.phases.point()
            self._update(times)
            values |= times
        self._reporter.metrics(step, values)

    def _count_non_finite(self, step: int, loss: float, norm: float) -> None:
        self.monitor.record(step, loss, norm)
        if self._experiment.training.non_finite.policy == "rollback":
            # the first one: those after it are trained again
            self.bad_step = self.bad_step or step
        elif self._is_first:
            self._report_skipped(step)

    def finish(self, step: int) -> None:
        """Report the times since the last point, with the evaluation and the checkpoint after the
        last step.
        """
        if self._is_first:
            self._report_skipped(step, is_over=True)
            self.add(step, self.phases.point())

    def _report_skipped(self, step: int, is_over: bool = False) -> None:
        """Report a skipped step: the first, the tenth, the hundredth and so on, and at the end
        their number.
        """
        num = self.monitor.num_skipped
        if is_over == (num in (0, *(10**power for power in range(9)))):
            return
        if num == 1:
            what = f"step {step} was skipped: its"
        else:
            what = f"{num:,} steps were skipped up to step {step:,}: their"
        self._reporter.warn(f"{what} loss or gradient was NaN or infinite.")
        self._reporter.tags({"ditlab.failure": "non_finite", "ditlab.skipped_steps": str(num)})

    def add(self, step: int, values: dict[str, float]) -> None:
        """Take in and report metrics after `step` steps, such as an evaluation's."""
        self._update(values)
        if self._is_first and values:
            self._reporter.metrics(step, values)

    def report_progress(self, step: int, phase: Phase, speed: float = 0.0) -> None:
        """Report the progress at `step`, with the time left where there is a `speed` (samples per
        second).
        """
        if self._is_first:
            total = self._total_steps
            spec = self._experiment
            every = {"evaluation": spec.evaluation.every, "checkpoint": spec.checkpoint.every}
            # one at the last step too, where that is no multiple
            pauses = {
                kind: -(-total // each) - step // each for kind, each in every.items() if each
            }
            left = None
            if speed:
                left = self.throughput.seconds_left(total - step, pauses)
            self._reporter.progress(
                TrainingProgress(step, total, speed, dict(self.latest), phase, left)
            )

    def _update(self, values: dict[str, float]) -> None:
        """Replace the metrics of the groups (`train`, `eval`) that `values` belong to.

        A loss component that has come to an end has no value any more.
        """
        groups = {name.partition("/")[0] for name in values}
        others = {
            name: value
            for name, value in self.latest.items()
            if name.partition("/")[0] not in groups
        }
        self.latest = others | values


def metric_names(experiment: Experiment, data: DataSplits, objective: Any) -> list[str]:
    """Return the MLflow names of the metrics of every step, then of every evaluation.

    `objective` is the experiment's, on whatever device.
    """
    trained = [name for name, weight in objective.weights.items() if weight]
    names = [
        f"train/{name}"
        for name in ("loss", *trained, "grad_norm", "lr", "samples_per_second", "data_wait")
    ]
    if experiment.evaluation.every is not None and len(data.held_out):
        groups = ["eval/"]
        if data.mixture:
            parts = data.mixture.measured(experiment.evaluation.limit)
            groups += [f"eval/{part}/" for part in parts]
        for group in groups:
            names += [group + name for name in objective.metric_names()]
        if analytic_target(data, objective) is not None:
            names.append(f"eval/{EXCESS_LOSS}")
        if experiment.evaluation.quality:
            names += quality_names(experiment, data)
    return names


def pace_names(experiment: Experiment) -> list[str]:
    """Return the MLflow names of the metrics of a run's speed, logged about once a second."""
    speeds = ["mfu", "hfu", "samples_per_second"]
    if any(field.name == "tokens" for field in experiment.batch_fields()):
        speeds.append("tokens_per_second")
    speeds.append("memory")
    return [*(f"time/{phase}" for phase in PHASES), *(f"perf/{name}" for name in speeds)]

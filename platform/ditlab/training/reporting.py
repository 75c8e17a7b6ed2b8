"""What a training run says while it runs, and to whom: a protocol that launchers implement."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, distributed

from denoisers.figures import Figure
from ditlab.training.progress_marker import Pulse


@dataclass(frozen=True)
class Progress:
    """A line's worth of news."""

    step: int
    total_steps: int
    samples_per_second: float
    metrics: dict[str, float]
    """Under their MLflow names: `train/loss` and so on."""
    phase: Literal["training", "evaluating", "saving"] = "training"
    seconds_left: float | None = None
    """To the last step, evaluations and saves left out."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: Literal["finished", "interrupted", "stopped"]
    """Stopped: by a sweep's scheduler, for good."""
    step: int
    metrics: dict[str, float]
    """Those of its last step and its last evaluation, under their MLflow names."""
    checkpoint: str | None
    """Path or URI of the last checkpoint."""


class Reporter(Protocol):
    """Called by the step loop; nothing in it may block for long or raise for a tracking server's sake."""

    pulse: Pulse
    """Where the loop says how far it has come."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics after `step` steps. First worker only."""
        ...

    def progress(self, progress: Progress) -> None:
        """First worker only."""
        ...

    def samples(self, step: int, figure: Figure) -> None:
        """The evaluation's samples, as shown to people. First worker only."""
        ...

    def checkpoint(self, step: int, location: str, metrics: Mapping[str, float]) -> None:
        """A checkpoint exists. First worker only."""
        ...

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> bool:
        """An evaluation before the last step is done. Returns within a minute whether training shall wait still, and be
        asked again. First worker only."""
        ...

    def before_checkpoint(self) -> None:
        """A checkpoint is about to exist: what was reported so far shall be durable first. First worker only, from a
        thread beside the step loop."""
        ...

    def tags(self, values: Mapping[str, str]) -> None:
        """Facts about the run that people look for later. First worker only."""
        ...

    def should_stop(self) -> bool:
        """Whether somebody asked this worker to end early."""
        ...

    def warn(self, message: str) -> None:
        """A sentence for people."""
        ...


class SilentReporter:
    """Says nothing: what all workers but the first need, a stop signal and a pulse to be felt."""

    def __init__(self, should_stop: Callable[[], bool], warn: Callable[[str], None], pulse: Pulse) -> None:
        self.should_stop, self.warn, self.pulse = should_stop, warn, pulse

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def samples(self, step: int, figure: Figure) -> None: ...

    def checkpoint(self, step: int, location: str, metrics: Mapping[str, float]) -> None: ...

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> bool:
        return False

    def before_checkpoint(self) -> None: ...

    def tags(self, values: Mapping[str, str]) -> None: ...


@dataclass(frozen=True)
class StepValues:
    """The numbers of one step."""

    step: int
    values: dict[str, float]
    wanted: bool
    """Whether they shall be logged, and not only looked at."""


class StepMetrics:
    """Averages a step's loss components over micro-batches and workers without making a GPU wait.

    On CUDA the numbers are copied to the host asynchronously and read when they have arrived.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._names: list[str] = []
        self._sums: Tensor | None = None
        self._pending: list[tuple[int, bool, list[str], Tensor, torch.cuda.Event | None]] = []

    def add(self, components: Mapping[str, Tensor], share: float) -> None:
        """One forward pass's components, which count for `share` of the step over all workers."""
        self._names = list(components)
        values = torch.stack([value.float() for value in components.values()]) * share
        self._sums = values if self._sums is None else self._sums + values

    def drop(self) -> None:
        """Forgets a step that was begun and not finished."""
        self._sums = None

    def all_finite(self) -> Tensor:
        """Sums the step's components over workers; returns whether all are finite, a bool tensor on the device."""
        assert self._sums is not None
        if self._world_size > 1:
            distributed.all_reduce(self._sums)
        return self._sums.isfinite().all()

    def finish(self, step: int, extra: Mapping[str, Tensor | float], wanted: bool) -> None:
        """Closes the step, after `all_finite`; `extra` are values that all workers hold alike."""
        assert self._sums is not None
        sums, self._sums = self._sums, None
        more = torch.stack(
            [torch.as_tensor(value, dtype=torch.float32, device=sums.device) for value in extra.values()]
        )
        values, event = torch.cat([sums, more]), None
        if values.is_cuda:
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            values = host
        self._pending.append((step, wanted, [*self._names, *extra], values, event))

    def read(self, wait: bool = False) -> list[StepValues]:
        """Every step whose numbers have arrived; every step with `wait`."""
        ready = []
        while self._pending:
            step, wanted, names, values, event = self._pending[0]
            if event is not None and not wait and not event.query():
                break
            if event is not None:
                event.synchronize()
            self._pending.pop(0)
            ready.append(StepValues(step, dict(zip(names, values.tolist(), strict=True)), wanted))
        return ready

"""Reporter of a training run: the records that the step loop sends to the launcher, and the stop
request it reads.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ditlab.receipts.records import VERBS
from ditlab.receipts.writer import ReceiptWriter
from ditlab.reports.formatting import format_clock
from ditlab.training.hooks import StepHook
from ditlab.training.inbox import Request
from ditlab_models.figures import Figure

_NOT_SHOWN = {f"train/{name}" for name in ("samples_per_second", "data_wait", "grad_norm", "lr")}
Phase = Literal["training", "compiling", "evaluating", "saving"]


@dataclass
class ProgressMarker:
    """Current activity of one worker; written by the step loop, read by the heartbeat thread of the
    same process.
    """

    step: int = 0
    activity: str = "starting"
    num_begun: int = 0
    """Activities begun so far; equal on workers that are equally far."""
    num_done: int = 0
    """Parts of the current activity that are done."""
    since: float = field(default_factory=time.monotonic)
    """Monotonic time of the last change."""
    is_untimed: bool = True
    """True while the activity may take any time: building, loading and saving depend on disks and
    networks.
    """

    def begin(self, step: int, activity: str, is_untimed: bool = False) -> None:
        """Record that the step loop begins an activity."""
        self.step = step
        self.activity = activity
        self.is_untimed = is_untimed
        self.num_begun += 1
        self.num_done = 0
        self.since = time.monotonic()

    def tick(self) -> None:
        """Record that a part of the current activity is done."""
        self.num_done += 1
        self.since = time.monotonic()

    @property
    def idle(self) -> float:
        """Seconds since the last change; 0 during an activity that may take any time."""
        if self.is_untimed:
            return 0.0
        return time.monotonic() - self.since


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a run for people: one line's worth."""

    step: int
    total_steps: int
    samples_per_second: float
    metrics: dict[str, float]
    """Latest metrics under their MLflow names: `train/loss` and so on."""
    phase: Phase = "training"
    seconds_left: float | None = None
    """Time to the end, from the median pace of the latest steps, without evaluations and saves."""

    def describe(self) -> str:
        """One line for people: `step 120/600 · loss 0.5123 · velocity 0.5123 · 1,530 samples/s ·
        0:35 left`.
        """
        parts = [f"step {self.step}/{self.total_steps}"]
        for name, value in self.metrics.items():
            if name.startswith("train/") and name not in _NOT_SHOWN:
                parts.append(f"{name.removeprefix('train/')} {value:.4f}")
        if self.phase != "training":
            parts.append(f"{self.phase} ...")
        elif self.samples_per_second > 0 and self.seconds_left is not None:
            parts += [
                f"{self.samples_per_second:,.0f} samples/s",
                f"{format_clock(self.seconds_left)} left",
            ]
        return " · ".join(parts)


@dataclass(frozen=True)
class RunOutcome:
    """Final status of a run."""

    status: Literal["finished", "interrupted", "stopped"]
    """Stopped: by a sweep's scheduler, for good."""
    step: int
    metrics: dict[str, float]
    """Metrics of its last step and its last evaluation, under their MLflow names."""
    checkpoint: str | None
    """Path or URI of the last checkpoint."""
    is_asked: bool = False
    """True where a request has ended the run (`ditlab ask RUN stop-after-evaluation`)."""


class RecordedRun:
    """View of the run's journal, with what earlier attempts logged. This one is empty: the first
    worker has another.
    """

    def tags(self) -> Mapping[str, str]:
        """Return every tag of the run with its last value."""
        return {}

    def history(self, metric: str) -> list[tuple[int, float]]:
        """Return steps and values of a metric, as they were logged."""
        return []


class Requests:
    """Requests to a run while it trains. Here are none: all workers but the first have these."""

    def next(self) -> Request | None:
        """Return the oldest request that is not begun."""
        return None

    def begin(self, request: Request, step: int) -> None:
        """Take note that the workers do what a request asks for, after a step."""

    def sampled(self, step: int, figure: Figure) -> None:
        """Log the samples of the request that was begun after a step, apart from those of
        evaluations.
        """

    def done(self, step: int, metrics: Mapping[str, float], problem: str = "") -> None:
        """Answer the request that was begun after a step; a `problem` is a sentence on why nothing
        was done.

        One for a checkpoint is answered once that is complete, or could not be written (`saved`).
        """

    def saved(self, step: int, location: str, problem: str = "") -> None:
        """Take note of a checkpoint that is complete, or could not be written for a `problem`."""


class Reporter(StepHook):
    """Receiver of a run's records; nothing in it may block for long or raise for a tracking
    server's sake.

    This one drops the records, and keeps the stop request, warnings and the marker: all workers but
    the first have it. The first worker alone sends records; all read `should_stop` and send
    warnings.
    """

    receipts: ReceiptWriter | None = None
    """Writer of the steps' receipts; None: nobody keeps them."""
    requests: Requests = Requests()
    """Requests to the run."""
    recorded: RecordedRun = RecordedRun()
    """View of the run's journal."""
    worker_nodes: Sequence[str] = ()
    """Names of the workers' nodes in order of rank; none where they are not known."""

    def __init__(
        self, should_stop: Callable[[], bool], warn: Callable[[str], None], marker: ProgressMarker
    ) -> None:
        """Report with `warn`, which shows people a full sentence, and stop once `should_stop`
        returns True.

        In `marker` the loop records how far it has come.
        """
        self.should_stop = should_stop
        self.warn = warn
        self.marker = marker

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a step (counted from 1), under their MLflow names."""

    def progress(self, progress: TrainingProgress) -> None:
        """Show the progress to people."""

    def samples(self, step: int, figure: Figure) -> None:
        """Log the samples of an evaluation, as shown to people."""

    def log_samples(self, step: int) -> None:
        """Log the samples of an asynchronous evaluation, which lie in the run's folder."""

    def held_out(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Keep the loss components of an evaluation by held-out sample, (num,) each in the samples'
        order.
        """

    def before_checkpoint(self) -> None:
        """Make all earlier records durable, before a checkpoint exists; called from a thread beside
        the step loop.
        """

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the tracked run."""

    def worker_name(self, rank: int) -> str:
        """Return the name of a worker for people, with its node where there are several."""
        name = f"worker {rank}"
        if len(set(self.worker_nodes)) > 1:
            return f"{name} on {self.worker_nodes[rank]}"
        return name


class AgreedRequest(StepHook):
    """Request that all workers do after the step at which they agreed on it, in the exchange of its
    end.

    The first worker alone finds requests; its place is the largest, as the others have 0.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._found: Request | None = None
        self.verb = ""
        """One of `VERBS`; empty for none."""

    def pack(self) -> list[int]:
        """Return the place of this worker's verb in `VERBS`, from 1; 0 for none."""
        self._found = self._requests.next()
        if self._found is None:
            return [0]
        return [VERBS.index(self._found.verb) + 1]

    def merge(self, step: int, records: Sequence[Sequence[int]]) -> None:
        """Take in the places of all workers."""
        place = max(place for (place,) in records)
        self.verb = VERBS[place - 1] if place else ""

    def begin(self, step: int) -> None:
        """Say, on the worker that has found the request, that it is done after a step."""
        if self._found:
            self._requests.begin(self._found, step)

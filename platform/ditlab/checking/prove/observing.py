"""A few steps of a run by its own loop: the first of all, then two around an epoch's border from a state without zeros.

Fresh weights hide faults: gates and heads that begin at zero give whole branches a gradient of zero, and the first
moments are those of one step. The later steps therefore begin, by the path that a resume takes, from weights, moments
and averages that were moved apart, past the warm-up of the learning rate where the plan reaches that far.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ditlab.checking.prove.recording import RecordingStepper
from ditlab.checking.prove.records import RecordedStep
from ditlab.checkpoints.store import CheckpointStore
from ditlab.engine.distributed import Rank
from ditlab.inputs.noise import derived_seed
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimisation.clipping import RatioZClip, ZClip
from ditlab.spec.optimisation.schedules import SteppedCosineRestartSchedule
from ditlab.training.plan import RunPlan, TrainingRun, WorkerShare
from ditlab.training.reporting import ProgressMarker, SilentReporter
from ditlab.training.state import TrainingState
from ditlab.training.trainer import StepLoop, Worker, WorkerParts

ALWAYS = 2**31 - 1
"""Steps in a row without a finite loss that a proof passes over."""
WEIGHTS, AVERAGES, GRADIENTS = 0.02, 0.05, 0.01
"""Standard deviations of what is added to weights, and of averages against weights; size of the moments."""
MOST_DRAWN = 1000
"""Furthest step for a mixture, whose order draws for every step before."""
LOSS_SCALE = 2.0**8
"""Scale of float16's loss in the later steps: a run's first scale overflows and leaves steps out until it fits."""


@dataclass(frozen=True)
class StepSpan:
    """Consecutive steps (from 0) that are observed."""

    first: int
    stop: int
    is_moved: bool
    """True if they begin from a state that was moved apart."""


def observed_spans(experiment: Experiment, plan: RunPlan) -> list[StepSpan]:
    """Return which steps are observed: the first, and two around the end of an epoch after the warm-up."""
    total, epoch = plan.total_steps, plan.epoch_steps
    warmup = 0
    if not isinstance(experiment.schedule, SteppedCosineRestartSchedule):
        warmup = experiment.schedule.warmup_steps(epoch)
    border = -(-max(warmup, epoch) // epoch) * epoch - 1 if epoch else min(max(warmup, 100), MOST_DRAWN)
    first = max(0, min(border, total - 2))
    return [StepSpan(0, 1, False), StepSpan(first, min(first + 2, total), True)]


def observed_experiment(experiment: Experiment) -> Experiment:
    """Return the experiment with each step logged, without evaluations, from fresh weights, whatever the losses."""
    return experiment.replace_all(
        {
            "tracking.every": 1, "evaluation.every": None, "evaluation.samples": 0, "evaluation.quality": 0,
            "checkpoint.storage": None, "checkpoint.keep": 1, "training.non_finite.policy": "skip",
            "training.non_finite.limit": ALWAYS, "start": None,
        }
    )  # fmt: skip


def observe_steps(run: TrainingRun, rank: Rank, folder: Path) -> list[RecordedStep]:
    """Train the observed steps of a run on this worker, and return their records; raises what training raises."""
    experiment = observed_experiment(run.experiment)
    checkpoints = CheckpointStore.at(folder / "observed")
    own = replace(run, experiment=experiment, checkpoints=checkpoints, swap=folder / "swap", start=None)
    recorded: list[RecordedStep] = []
    reporter = _StepReporter()
    worker = ObservedWorker(own, rank, reporter, recorded)
    try:
        worker.resume()
        for span in observed_spans(experiment, run.plan):
            worker.observe(span)
    finally:
        worker.close()
    worker.release()
    return recorded


class ObservedWorker(Worker):
    """Worker that trains spans of steps, and records them."""

    def __init__(self, run: TrainingRun, rank: Rank, reporter: "_StepReporter", recorded: list[RecordedStep]) -> None:
        self._recorded, self._steps = recorded, reporter
        super().__init__(run, rank, reporter)

    def observe(self, span: StepSpan) -> None:
        """Train the steps of a span."""
        state = self.state
        if span.is_moved:
            moved = MovedState(state.engine.state(), state.buffers, self._run.experiment)
            scalars = {**state.engine.scalars(), **_later_scalars(self._run.experiment, span.first)}
            scalars = {name: value for name, value in scalars.items() if name in state.engine.scalars()}
            state.load(moved, scalars, span.first, span.first * self._run.experiment.batch.size)
        self._steps.stop = span.stop
        self._parts.receipts.begin(state.step, self._memory, {})
        num = len(self._recorded)
        self._step_loop().run()
        for record in self._recorded[num:]:
            record.metrics = self._steps.values.pop(record.step, {})

    def _step_loop(self) -> StepLoop:
        return ObservedLoop(self._parts, self._state, self._share, self._recorded)


class ObservedLoop(StepLoop):
    """Step loop that records its steps and saves nothing."""

    def __init__(
        self, parts: WorkerParts, state: TrainingState, share: WorkerShare, recorded: list[RecordedStep]
    ) -> None:
        super().__init__(parts, state, share, ())
        stepper = RecordingStepper(parts.run, parts.rank, state, share, parts.inputs, parts.metrics.steps, parts.clock)
        stepper.recorded = recorded
        self._stepper = stepper

    def _save(self) -> None:
        """Save nothing: what a checkpoint holds is compared elsewhere."""


class _StepReporter(SilentReporter):
    """Reporter that keeps each step's metrics, by step from 0, and ends the loop where a span ends."""

    def __init__(self) -> None:
        self.stop = 0
        self.values: dict[int, dict[str, float]] = {}
        marker = ProgressMarker()
        super().__init__(lambda: marker.step + 1 >= self.stop, lambda message: None, marker)
        self.metrics = self._keep

    def _keep(self, step: int, values: Mapping[str, float]) -> None:
        self.values.setdefault(step - 1, {}).update(values)


def _later_scalars(experiment: Experiment, step: int) -> dict[str, float]:
    """Return the state of counters and statistics after so many steps."""
    scalars = {"adam_step": float(step), "loss_scale.cur_scale": LOSS_SCALE}
    if isinstance(experiment.training.clip, ZClip | RatioZClip):
        warmup = getattr(experiment.training.clip, "warmup", 1)
        scalars |= {"clip.count": float(warmup), "clip.mean": GRADIENTS, "clip.variance": (GRADIENTS / 10) ** 2}
    return scalars


class MovedState:
    """State to load in place of a saved one: this worker's own, with nothing at zero and no two values alike.

    The numbers are a function of seed, field, parameter and place, so that workers agree on them.
    """

    def __init__(self, state: Any, buffers: Mapping[str, Tensor], experiment: Experiment) -> None:
        self._held = {key: values.detach().to("cpu", copy=True) for key, values in state}
        self._buffers = {name: value.detach().float().cpu().view(-1).clone() for name, value in buffers.items()}
        self._seed = experiment.seed

    def has(self, kind: str) -> bool:
        """Return True if any slice of a field is there."""
        return any(key[0] == kind for key in self._held)

    def read(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        """Return values `start` to `stop` of a flattened tensor, float32."""
        if kind == "buffer":
            return self._buffers[name][start:stop]
        drawn = self._normal(kind, name, start, stop)
        if kind == "exp_avg_sq":
            return GRADIENTS**2 * (0.5 + drawn.abs())
        if kind in ("exp_avg", "momentum"):
            return GRADIENTS * drawn
        masters = self._held["master", name, start] + WEIGHTS * self._normal("master", name, start, stop)
        return masters if kind == "master" else masters + AVERAGES * drawn

    def _normal(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        generator = torch.Generator().manual_seed(derived_seed(self._seed, "prove", kind, name))
        return torch.randn(stop, generator=generator)[start:]

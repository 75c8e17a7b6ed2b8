"""Observer of a replay's steps: each sample's loss before the update, and norms by parameter and
layer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from ditlab.data.loading.loader import WorkerBatches
from ditlab.data.loading.transfer import MicroBatch
from ditlab.receipts.records import joined_digest
from ditlab.training.hooks import ConsumedPass, StepHook
from ditlab.training.receipts import passes_digest
from ditlab.training.recovery import MemoryPlan
from ditlab.training.state import TrainingState
from ditlab.training.stepping import Stepper
from ditlab_addons.check.process_group import report_done
from ditlab_addons.check.replay.history import METRICS, Execution
from ditlab_addons.check.watching import seen_inputs


@dataclass(frozen=True)
class ParameterNorms:
    """L2 norms of one parameter, over all workers' parts of it."""

    gradient: float
    """Norm before clipping."""
    update: float
    """Norm of the change of the float32 weights."""
    weight: float
    """Norm of the float32 weights before the update."""

    @property
    def ratio(self) -> float | None:
        """Norm of the update over that of the weights; None for weights of zero."""
        return self.update / self.weight if self.weight else None


class UpdateNorms:
    """Norms of the steps that are taken until they are read; costs a copy of the weights that a
    step updates.

    They are taken around the optimiser's own step. There every ZeRO stage and offload holds the
    reduced, unscaled and not yet clipped gradient beside the float32 weights.
    """

    def __init__(self, state: TrainingState) -> None:
        self._partitions = state.engine.partitions
        names = [name for name, each in state.module.named_parameters() if each.requires_grad]
        self._squares = {name: torch.zeros(3, dtype=torch.float64) for name in names}
        self._before: dict[int, Tensor] = {}
        adam = self._partitions.adam
        self._hooks = [
            adam.register_step_pre_hook(self._begin),
            adam.register_step_post_hook(self._end),
        ]

    def read(self, device: torch.device) -> dict[str, ParameterNorms]:
        """Return the norms by parameter, in the order of the network, alike on all workers. All
        must call.

        All are 0 where the optimiser took no step, as where the scale of float16 overflows.
        """
        for hook in self._hooks:
            hook.remove()
        squares = torch.stack([*self._squares.values()]).to(device)
        # workers hold different parts
        if self._partitions.stage > 0 and distributed.get_world_size() > 1:
            distributed.all_reduce(squares)
        return dict(
            zip(
                self._squares,
                (ParameterNorms(*row) for row in squares.sqrt().tolist()),
                strict=True,
            )
        )

    def _begin(self, *_: Any) -> None:
        """Keep the weights that have a gradient, as ZeRO-3 updates them group by group."""
        for index, flat in enumerate(self._partitions.flats):
            if flat.grad is not None:
                self._before[index] = flat.detach().clone()
                self._add(index, 0, flat.grad.contiguous())
                self._add(index, 2, self._before[index])

    def _end(self, *_: Any) -> None:
        for index, before in self._before.items():
            self._add(index, 1, self._partitions.flats[index].detach() - before)
        self._before.clear()

    def _add(self, index: int, column: int, flat: Tensor) -> None:
        for part in self._partitions.slices_of[index]:
            norm = torch.linalg.vector_norm(part.of(flat), dtype=torch.float64)
            self._squares[part.name][column] += norm.square().cpu()


_LAYER = re.compile(r"([^.]+\.)*?\d+(?=\.|$)|objective\.[^.]+|[^.]+")
TIME_NAMES = ("t", "time", "timestep", "sigma")
"""Names of a network's argument that says how far a sample is noised."""


@dataclass(frozen=True)
class SampleLoss:
    """One sample of a step."""

    place: int
    """Place in the global batch."""
    row: int
    """Row of the training store."""
    loss: float
    """Weighted sum of its components, with the weights before the update."""
    components: dict[str, float]
    time: float | None
    """Time or noise level that the network was given, a mean over tokens that have one each; None
    for one without.
    """


@dataclass
class ReplayedStep:
    """One step as it was done again: as one worker observed it, or all of them together."""

    execution: Execution
    """The execution of the step that was replayed; of one worker, its number alone."""
    rows: np.ndarray
    """Rows of the training store by place in the global batch, int64 (samples,)."""
    indices: np.ndarray
    """Index of each row's sample in the training view, int64, in the shape of `rows`."""
    samples: Sequence[SampleLoss] = ()
    """Samples by place; empty where the step was not measured sample by sample."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Loss, components, gradient norm and learning rate under their MLflow names; empty for a
    skipped step.
    """
    norms: Mapping[str, ParameterNorms] | None = None
    """Norms by parameter, alike on all workers; None where the step was not measured."""
    clip_factor: float = 1.0
    """Number that clipping divided the gradient by; 1 for none."""
    digest: int = 0
    """Digest of samples and draws, as receipts have it; 0 for a skipped step."""

    @property
    def step(self) -> int:
        """Number of the step, from 1."""
        return self.execution.step

    def number(self, name: str) -> float | None:
        """Return loss, gradient norm or learning rate, named as in `METRICS`; None for a skipped
        step.
        """
        return self.metrics.get(METRICS[name])

    @property
    def clipped_norm(self) -> float | None:
        """Gradient norm after clipping."""
        norm = self.number("norm")
        return None if norm is None else norm / self.clip_factor

    @property
    def update_norm(self) -> float | None:
        """Norm of the change of the float32 weights; None where it was not measured."""
        if self.norms:
            return math.sqrt(sum(each.update**2 for each in self.norms.values()))
        return None


def joined_step(parts: Sequence[ReplayedStep], execution: Execution) -> ReplayedStep:
    """Return an execution of a step by all workers, from the step of each in the order of ranks,
    which is that of their places."""
    return replace(
        parts[0],
        execution=execution,
        rows=np.concatenate([part.rows for part in parts]),
        indices=np.concatenate([part.indices for part in parts]),
        samples=sorted(
            (sample for part in parts for sample in part.samples), key=lambda sample: sample.place
        ),
        digest=joined_digest([part.digest for part in parts]),
    )


class StepObserver(StepHook):
    """Observer of a replay: measures the steps `shown` (from 1) beside their training, and keeps
    their numbers.
    """

    def __init__(self, shown: Collection[int], steps: range) -> None:
        """Observe `steps` (from 1)."""
        self._shown = shown
        self._steps = steps
        self.seen: dict[int, ReplayedStep] = {}
        """Observations of this worker, by step."""
        self._norms: UpdateNorms | None = None

    def attempt_begun(self, stepper: Stepper, memory: MemoryPlan, saved: Mapping[str, str]) -> None:
        self._stepper = stepper

    def loader_opened(self, batches: WorkerBatches, position: int) -> None:
        before = position // batches.order.batch_size - 1 - self._stepper.state.step
        self._places = batches.places
        for step in self._steps:
            # a loader opens again where a loss retires: what was observed stays
            if step in self.seen:
                continue
            indices = batches.order.batches(before + step, 1, batches.places).reshape(-1)
            self.seen[step] = ReplayedStep(
                Execution(step, 0, 1), batches.view.rows[indices], indices
            )

    def step_begun(self, step: int, micro_batches: Sequence[MicroBatch]) -> None:
        if step in self._shown:
            self.seen[step].samples = self._sample_losses(micro_batches, self.seen[step].rows)
            self._norms = UpdateNorms(self._stepper.state)

    def consumed(self, step: int, passes: Sequence[ConsumedPass]) -> None:
        if passes:
            self.seen[step].digest = passes_digest(passes)

    def step_ended(self, step: int) -> None:
        if self._stepper.rank.is_first:
            report_done(step - self._steps.start + 1)
        if self._norms:
            self.seen[step].norms = self._norms.read(self._stepper.rank.device)
            self.seen[step].clip_factor = self._stepper.state.engine.partitions.clip_factor
            self._norms = None

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        self.seen[step].metrics = {f"train/{name}": value for name, value in values.items()}

    def _sample_losses(
        self, micro_batches: Sequence[MicroBatch], rows: np.ndarray
    ) -> list[SampleLoss]:
        """Compute each sample's loss by itself, with its slice of the draws; all workers make
        equally many passes.
        """
        found = []
        stepper = self._stepper
        engine = stepper.state.engine
        parts = [
            (part, start) for part in stepper.share.passes for start in range(part.start, part.stop)
        ]
        network = stepper.state.module.network
        with (
            engine.evaluating(averaged=False),
            seen_inputs(network, lambda name, _: name in TIME_NAMES) as times,
        ):
            for part, start in parts:
                micro = micro_batches[part.number]
                one = replace(part, start=start, stop=start + 1)
                times.clear()
                noise = stepper.noise(one)
                components = engine.losses(stepper.batch(one, micro, noise), noise)
                if part.counts:
                    place = part.number * len(micro.row_ids) + start
                    values = {name: float(value) for name, value in components.items()}
                    time = float(times[0].float().mean()) if times else None
                    loss = values.pop("loss")
                    found.append(
                        SampleLoss(int(self._places[place]), int(rows[place]), loss, values, time)
                    )
        return found


def layers_of(norms: Mapping[str, ParameterNorms]) -> dict[str, ParameterNorms]:
    """Return norms by layer, in the order of the network: `blocks.3`, `final`, of the loss's own
    `objective...`.

    A parameter's layer is its name up to the first number, else up to the first module below the
    network.
    """
    groups: dict[str, list[ParameterNorms]] = {}
    for name, each in norms.items():
        layer = _LAYER.match(name.removeprefix("network."))
        assert layer is not None
        groups.setdefault(layer[0], []).append(each)
    return {
        layer: ParameterNorms(
            *(math.hypot(*values) for values in zip(*map(astuple, members), strict=True))
        )
        for layer, members in groups.items()
    }

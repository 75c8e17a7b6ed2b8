"""One optimiser step on one worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, distributed

from ditlab.data.loading.transfer import MicroBatch, send
from ditlab.engine.distributed import Rank
from ditlab.engine.phase_clock import PhaseClock
from ditlab.inputs.model_inputs import ModelInputs, counts_on_host, prepare_on_host
from ditlab.inputs.noise import KeyedNoise
from ditlab.training.hooks import ConsumedPass, Hooks
from ditlab.training.metrics import StepMetrics
from ditlab.training.plan import ForwardPass, TrainingRun, WorkerShare, planned_rate
from ditlab.training.recovery import OutOfMemory, is_out_of_memory
from ditlab.training.state import TrainingState


class Stepper:
    """Forward and backward passes of this worker's micro-batches, then the update."""

    def __init__(
        self,
        run: TrainingRun,
        rank: Rank,
        state: TrainingState,
        share: WorkerShare,
        inputs: ModelInputs,
        metrics: StepMetrics,
        clock: PhaseClock,
        hooks: Hooks,
    ) -> None:
        self._experiment = run.experiment
        self._plan = run.plan
        self._columns = run.data.train.columns
        self.rank = rank
        self.state = state
        self.share = share
        self.inputs = inputs
        self._metrics = metrics
        self._clock = clock
        self._hooks = hooks

    def step(self, micro_batches: Sequence[MicroBatch], is_logged: bool) -> None:
        """Train one step on this worker's micro-batches; its numbers go to the step metrics.

        Raises OutOfMemory for a pass that does not fit; weights and moments are then as they were
        before.
        """
        state = self.state
        metrics = self._metrics
        number = state.step + 1
        for begun in self._hooks.step_begun:
            begun(number, micro_batches)
        try:
            passes = self._accumulate(micro_batches)
        except Exception as error:
            metrics.drop()
            if is_out_of_memory(error):
                raise OutOfMemory(state.step, str(error).splitlines()[0]) from error
            raise
        for consumed in self._hooks.consumed:
            consumed(number, passes)
        with self._clock.phase("reduce"):
            finite = metrics.all_finite()
        lr = planned_rate(self._experiment, self._plan, state.step)
        with self._clock.phase("update"):
            norm = state.engine.step(state.step, lr, finite)
        self._clock.end_step()
        self._count(number)
        metrics.finish(state.step, {"grad_norm": norm, "lr": lr}, is_logged)

    def skip(self) -> None:
        """Count a step and its batch, without training on it."""
        number = self.state.step + 1
        for consumed in self._hooks.consumed:
            consumed(number, ())
        self._count(number)

    def batch(
        self,
        part: ForwardPass,
        micro: MicroBatch,
        noise: KeyedNoise,
        moved: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Any]:
        """Prepare what the loss reads of a pass of a micro-batch; `moved`: its columns that are on
        the device.
        """
        rows = slice(part.start, part.stop)
        batch = self.inputs.prepare_batch(
            micro.rows, self._columns, rows=rows, moved=moved, noise=noise
        )
        return batch | prepare_on_host(
            self.state.objective, micro.rows, self._columns, self.inputs, noise, rows
        )

    def noise(self, part: ForwardPass) -> KeyedNoise:
        """Return the noise source of a pass.

        Without a micro-batch size of its own an experiment draws for the whole batch and every pass
        takes its slice, or the number of workers would decide the numbers.
        """
        batch = self._experiment.batch
        unit = batch.micro or batch.size
        index, start = divmod(self._place(part), unit)
        return KeyedNoise(
            self._experiment.seed, "train", self.state.step, index, unit, self.rank.device, start
        )

    def _count(self, number: int) -> None:
        self.state.step = number
        self.state.position += self._experiment.batch.size
        for ended in self._hooks.step_ended:
            ended(number)

    def _accumulate(self, micro_batches: Sequence[MicroBatch]) -> list[ConsumedPass]:
        passes = self.share.passes
        with self._clock.phase("forward"):
            counts = self._mean_counts(micro_batches)
        consumed = []
        for number, part in enumerate(passes):
            with self._clock.phase("forward"):
                micro = micro_batches[part.number]
                noise = self.noise(part)
                batch = self.batch(part, micro, noise, micro.on_device()) | counts
            weight = self.share.weight if part.counts else 0.0
            components = self.state.engine.forward_backward(
                batch, noise, number == len(passes) - 1, weight
            )
            if part.counts:
                self._metrics.add(components, 1 / self.share.total_passes)
                rows = micro.row_ids[part.start : part.stop]
                consumed.append(
                    ConsumedPass(
                        rows,
                        self._place(part),
                        noise.micro_index,
                        noise.start,
                        noise.step,
                        noise.seed,
                    )
                )
        return consumed

    def _mean_counts(self, micro_batches: Sequence[MicroBatch]) -> dict[str, Tensor]:
        """Return the mean over all passes of the step's batch, of all workers, of each count by
        which the objective divides its loss.
        """
        totals: dict[str, Tensor] = {}
        for part in self.share.passes:
            if not part.counts:
                continue
            counts = counts_on_host(
                self.state.objective,
                micro_batches[part.number].rows,
                self._columns,
                self.inputs,
                self.noise(part),
                slice(part.start, part.stop),
            )
            for name, count in counts.items():
                totals[name] = totals[name] + count if name in totals else count
        means = {}
        for name, total in totals.items():
            on_device = send(total, self.rank.device)
            if self.rank.world_size > 1:
                distributed.all_reduce(on_device)
            means[name] = on_device / self.share.total_passes
        return means

    def _place(self, part: ForwardPass) -> int:
        """Place of a pass's first sample in the global batch."""
        return self.share.micro_indices[part.number] * self._experiment.micro_size + part.start

"""One optimiser step on one worker."""

from collections.abc import Sequence

import numpy as np

from ditlab.data.loading.transfer import MicroBatch
from ditlab.engine.distributed import Rank
from ditlab.engine.phase_clock import PhaseClock
from ditlab.inputs.model_inputs import ModelInputs, prepare_on_host
from ditlab.inputs.noise import KeyedNoise
from ditlab.training.metrics import StepMetrics
from ditlab.training.plan import ForwardPass, TrainingRun, WorkerShare, learning_rate
from ditlab.training.receipts import FedPass, StepDigester
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
    ) -> None:
        self._experiment, self._plan, self._columns = run.experiment, run.plan, run.data.train.columns
        self._rank, self._state, self._share = rank, state, share
        self._inputs, self._metrics, self._clock = inputs, metrics, clock
        self._digester = StepDigester()
        self.samples = 0
        """Digest of the samples and draws of the last step's passes on this worker; 0 for a step that was left out."""

    def step(self, micro_batches: Sequence[MicroBatch], is_logged: bool) -> None:
        """Train one step on this worker's micro-batches; its numbers go to the step metrics.

        Raises:
            OutOfMemory: a pass does not fit; weights and moments are then as they were before.
        """
        state, metrics = self._state, self._metrics
        try:
            self._accumulate(micro_batches)
        except Exception as error:
            metrics.drop()
            if is_out_of_memory(error):
                raise OutOfMemory(state.step, str(error).splitlines()[0]) from error
            raise
        with self._clock.phase("reduce"):
            finite = metrics.all_finite()
        lr = self._learning_rate()
        with self._clock.phase("update"):
            norm = state.engine.step(state.step, lr, finite)
        self._clock.end_step()
        self._count()
        metrics.finish(state.step, {"grad_norm": norm, "lr": lr}, is_logged)

    def skip(self) -> None:
        """Count a step and its batch, without training on it."""
        self.samples = 0
        self._count()

    def _count(self) -> None:
        self._state.step += 1
        self._state.position += self._experiment.batch.size

    def _accumulate(self, micro_batches: Sequence[MicroBatch]) -> None:
        passes = self._share.passes
        fed = []
        for number, part in enumerate(passes):
            rows = slice(part.start, part.stop)
            with self._clock.phase("forward"):
                micro, noise = micro_batches[part.number], self._noise(part)
                batch = self._inputs.prepare_batch(micro.rows, self._columns, rows=rows, moved=micro.on_device())
                batch |= prepare_on_host(self._state.objective, micro.rows, self._columns, self._inputs, noise, rows)
            weight = self._share.weight if part.counts else 0.0
            components = self._state.engine.forward_backward(batch, noise, number == len(passes) - 1, weight)
            if part.counts:
                self._metrics.add(components, 1 / self._share.total_passes)
                fed.append(self._fed(micro.row_ids[rows], part, noise))
        self.samples = self._digester.digest(fed)

    def _fed(self, row_ids: np.ndarray, part: ForwardPass, noise: KeyedNoise) -> FedPass:
        place = self._share.micro_indices[part.number] * self._experiment.micro_size + part.start
        return FedPass(row_ids, place, noise.micro_index, noise.start, noise.step, noise.seed)

    def _noise(self, part: ForwardPass) -> KeyedNoise:
        """Return the noise source of a pass.

        Without a micro-batch size of its own an experiment draws for the whole batch and every pass takes its slice,
        or the number of workers would decide the numbers.
        """
        batch, size = self._experiment.batch, self._experiment.micro_size
        unit = batch.micro or batch.size
        first = self._share.micro_indices[part.number] * size + part.start
        index, start = divmod(first, unit)
        return KeyedNoise(self._experiment.seed, "train", self._state.step, index, unit, self._rank.device, start)

    def _learning_rate(self) -> float:
        experiment, plan = self._experiment, self._plan
        return learning_rate(
            experiment.schedule, experiment.optimizer.lr, self._state.step, plan.total_steps, plan.epoch_steps
        )

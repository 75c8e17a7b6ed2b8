"""One optimiser step on one worker."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ditlab.data.stores.manifest import Column
from ditlab.engine.distributed import Rank
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import KeyedNoise
from ditlab.spec.experiment import Experiment
from ditlab.training.memory import OutOfMemory, is_out_of_memory
from ditlab.training.plan import RunPlan
from ditlab.training.reporting import StepMetrics
from ditlab.training.schedules import learning_rate
from ditlab.training.shares import Share, Slice
from ditlab.training.state import TrainingState

MicroBatch = Mapping[str, Tensor]


class Stepper:
    """Takes a state from step to step: this worker's forward and backward passes, then the update."""

    def __init__(
        self,
        experiment: Experiment,
        plan: RunPlan,
        rank: Rank,
        state: TrainingState,
        share: Share,
        inputs: ModelInputs,
        columns: Mapping[str, Column],
        metrics: StepMetrics,
    ) -> None:
        self._experiment, self._plan, self._rank = experiment, plan, rank
        self._state, self._share = state, share
        self._inputs, self._columns = inputs, columns
        self._metrics = metrics

    def step(self, micro_batches: Sequence[MicroBatch], wanted: bool) -> None:
        """One step on this worker's micro-batches. Its numbers go to the metrics; `wanted` says whether to log them.

        Raises OutOfMemory where a pass does not fit; weights and moments are then what they were before.
        """
        state, metrics = self._state, self._metrics
        try:
            self._accumulate(micro_batches)
        except Exception as error:
            metrics.drop()
            if is_out_of_memory(error):
                raise OutOfMemory(state.step, str(error).splitlines()[0]) from error
            raise
        finite = metrics.all_finite()
        lr = self._learning_rate()
        norm = state.engine.step(state.step, lr, finite)
        self.pass_over()
        metrics.finish(state.step, {"grad_norm": norm, "lr": lr}, wanted)

    def pass_over(self) -> None:
        """Counts a step and its batch, without training on it."""
        self._state.step += 1
        self._state.position += self._experiment.batch.size

    def _accumulate(self, micro_batches: Sequence[MicroBatch]) -> None:
        slices = self._share.slices
        for number, piece in enumerate(slices):
            raw = micro_batches[piece.number]
            if piece.stop - piece.start < self._experiment.micro_size:
                raw = {name: values[piece.start : piece.stop] for name, values in raw.items()}
            batch = self._inputs.ready(raw, self._columns)
            weight = self._share.weight if piece.counts else 0.0
            components = self._state.engine.forward_backward(
                batch, self._noise(piece), number == len(slices) - 1, weight
            )
            if piece.counts:
                self._metrics.add(components, 1 / self._share.total_slices)

    def _noise(self, piece: Slice) -> KeyedNoise:
        """Draws for a pass. Without a micro-batch size of its own an experiment draws for the whole batch and every
        pass takes its slice, or the number of workers would decide the numbers."""
        batch, size = self._experiment.batch, self._experiment.micro_size
        unit = batch.micro or batch.size
        first = self._share.micro_indices[piece.number] * size + piece.start
        index, start = divmod(first, unit)
        return KeyedNoise(self._experiment.seed, "train", self._state.step, index, unit, self._rank.device, start)

    def _learning_rate(self) -> float:
        experiment, plan = self._experiment, self._plan
        return learning_rate(
            experiment.schedule, experiment.optimizer.lr, self._state.step, plan.total_steps, plan.epoch_steps
        )

"""Snapshots of a run's averages of power-function profile, as its step loop saves them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from torch import Tensor

from ditlab.averages.snapshot_steps import snapshot_steps
from ditlab.checkpoints.background import BackgroundSaver
from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.checkpoints.shard import TensorKey
from ditlab.checkpoints.snapshots import average_snapshots
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.errors import UserError
from ditlab.numerics import NUMERICS_VERSION
from ditlab.training.plan import TrainingRun
from ditlab.training.reporting import Reporter
from ditlab.training.state import TrainingState

ALL = sys.maxsize


class AverageSnapshots:
    """One worker's part in saving the snapshots of the averages; does nothing for a run that keeps none.

    Each holds the averages alone, and is written beside the step loop like a checkpoint. One that cannot be written
    costs no step: other lengths are then rebuilt from the rest.
    """

    def __init__(self, run: TrainingRun, rank: Rank, reporter: Reporter) -> None:
        self._experiment, self._spec = run.experiment, run.experiment.training.averages
        self._total_steps = run.plan.total_steps
        self._rank, self._reporter = rank, reporter
        self._due: set[int] = set()
        self._saver: BackgroundSaver | None = None
        if self._spec:
            self._store = average_snapshots(run.checkpoints)
            self._channel = ControlChannel(rank, private=True)
            self._saver = BackgroundSaver(
                self._store, rank.rank, rank.world_size, self._channel.gather, ALL,
                mode=run.experiment.checkpoint.write,
            )  # fmt: skip

    def begin(self, state: TrainingState) -> None:
        """Prepare to go on from a state that was built or loaded: later snapshots are deleted.

        So are all others where the averages begin with this state: none could be combined with what comes.
        """
        if not (self._spec and self._saver):
            return
        self._saver.wait()
        averages = state.engine.power_averages
        is_new = averages.updates == 0
        self._due = set(snapshot_steps(averages.start, self._total_steps, self._spec.snapshots))
        if self._rank.is_first:
            try:
                self._store.delete_after(0 if is_new else state.step)
            except UserError as error:
                self._reporter.warn(f"snapshots of averages were not deleted: {error}")
            if is_new and state.step and not self._experiment.start:
                self._reporter.warn(
                    f"training.averages: the checkpoint of step {state.step} has none of these lengths; they begin "
                    "after this step, and lengths are fractions of the steps from here on."
                )

    def reserve(self, state: TrainingState) -> None:
        """Allocate the host memory for copies of the averages."""
        if self._saver:
            self._saver.reserve(self._tensors(state))

    def is_due(self, step: int) -> bool:
        """Return True if a snapshot is saved after a step."""
        return step in self._due

    def save(self, state: TrainingState) -> None:
        """Begin to save the averages: copy them, and write the copy beside the step loop; waits for the one before."""
        assert self._saver
        manifest = CheckpointManifest(
            step=state.step,
            position=state.position,
            spec=self._experiment.to_dict(),
            spec_hash=self._experiment.content_hash(),
            scalars=state.engine.scalars(),
            shapes={name: shape for name, shape in state.shapes.items() if name not in state.buffers},
            buffers=[],
            numerics=NUMERICS_VERSION,
        )
        self._saver.save(manifest, self._tensors(state))

    def report_finished(self) -> None:
        """Warn of each snapshot that could not be saved since the last call."""
        for outcome in self._saver.poll() if self._saver else ():
            if not self._rank.is_first:
                continue
            if error := outcome.error:
                self._reporter.warn(
                    f"the snapshot of averages of step {outcome.step} was not saved ({error.reason}); {error.remedy}. "
                    "Training goes on, and other lengths are rebuilt from the rest."
                )
            elif outcome.note:
                self._reporter.warn(outcome.note)

    def settled(self, before: Callable[[], object] | None) -> Callable[[], object]:
        """Return what is to happen before a checkpoint exists: `before`, and the end of a snapshot under way."""

        def settle() -> None:
            if self._saver:
                self._saver.settle()
            if before:
                before()

        return settle

    def wait(self) -> None:
        """Wait for the snapshot that is under way."""
        if self._saver:
            self._saver.wait()
            self.report_finished()

    def release(self) -> None:
        """Destroy the saver's process group, after an orderly end."""
        if self._saver:
            self._channel.close()

    def close(self, timeout: float) -> None:
        """Stop the saver, after at most `timeout` seconds."""
        if self._saver:
            self._saver.close(timeout)
            with suppress(Exception):
                self.report_finished()

    def _tensors(self, state: TrainingState) -> Iterator[tuple[TensorKey, Tensor]]:
        """Iterate over this worker's share of the averages."""
        engine: Any = state.engine
        if engine.stage > 0 or self._rank.is_first:  # at stage 0 every worker has them all
            for field, part, values in engine.power_averages.slices():
                yield (field, part.name, part.start), values

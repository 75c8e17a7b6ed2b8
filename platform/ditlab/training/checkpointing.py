"""Checkpoints of a run, and snapshots of its power-function averages, as its step loop saves and
loads them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor

from ditlab.averages import snapshot_steps
from ditlab.checkpoints.kept_averages import average_snapshots
from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.checkpoints.saving import BackgroundSaver, SaveFailed, SaveOutcome
from ditlab.checkpoints.shard import TensorKey
from ditlab.checkpoints.start_point import StartPoint, kept_scalars, order_changes
from ditlab.engine.distributed import ControlChannel, PeerLost, Rank
from ditlab.errors import RunFailed, UserError
from ditlab.numerics import NUMERICS_VERSION, version_warning
from ditlab.spec.compiling import compile_decision, compiled_warning
from ditlab.spec.experiment import Experiment
from ditlab.training.hooks import Hooks
from ditlab.training.plan import TrainingRun
from ditlab.training.recovery import is_out_of_memory
from ditlab.training.reporting import Reporter
from ditlab.training.state import TrainingState

# seconds that a failing worker waits for a checkpoint that others may never finish
CLOSE_TIMEOUT = 10.0


class CheckpointManager:
    """One worker's part in saving and loading the run's checkpoints."""

    def __init__(
        self,
        run: TrainingRun,
        rank: Rank,
        channel: ControlChannel,
        reporter: Reporter,
        hooks: Hooks,
        needed: Callable[[], Collection[int]],
    ) -> None:
        """Prepare to save; checkpoints of the steps that are `needed` are not pruned."""
        self._experiment = run.experiment
        self._store = run.checkpoints
        self._rank = rank
        self._start = run.start
        self._channel = channel
        self._reporter = reporter
        self._hooks = hooks
        self._device_type = rank.device.type
        self._blocks = compile_decision(run.experiment, self._device_type).numbers
        self.snapshots: AverageSnapshots | None = None
        """Snapshots of averages that the run saves beside its checkpoints."""
        if run.experiment.training.averages:
            self.snapshots = AverageSnapshots(run, rank, reporter)
        saver_channel = ControlChannel(rank, private=True)
        policy = run.experiment.checkpoint
        self._saver = BackgroundSaver(
            run.checkpoints,
            rank.rank,
            rank.world_size,
            saver_channel.gather,
            policy.keep,
            self._make_durable if rank.is_first else None,
            policy.write,
            policy.keep_every,
            needed,
        )
        self._savers = [self._saver]
        self._channels = [saver_channel]
        if self.snapshots:
            self._savers.append(self.snapshots.saver)
            self._channels.append(self.snapshots.channel)
        self.last: str | None = None
        """Path or URI of the last complete checkpoint."""
        self.num_pending = 0
        """Saves that were begun and not reported yet."""
        self._failure: SaveFailed | None = None
        """Failure of the last save that was reported; None where it gave a checkpoint."""
        self.loaded_receipt: Mapping[str, str] = {}
        """Receipt of this run's checkpoint that was loaded last; {} where there was none."""

    def load_newest(self, state: TrainingState) -> Mapping[str, float]:
        """Load the newest complete checkpoint into `state`, if there is one; return the metrics
        that it holds.

        A fork that has none begins from its parent's.

        Raises UserError where there are checkpoints and none is complete, where it was saved under
        another order of samples, and where a fork's parent lacks the checkpoint.
        """
        found = None
        if self._rank.is_first:
            found = self._store.newest(self._reporter.warn)
        step = self._channel.gather(found.manifest.step if found else None)[0]
        if step is None:
            self.loaded_receipt = {}
            self._check_none_there()
            if self._start:
                self._load_start(self._start, state)
            return {}
        with found or self._store.open(int(str(step)), verify=False) as reader:
            self.load(reader, state)
            return reader.manifest.metrics

    def _check_none_there(self) -> None:
        """Raise UserError where there are checkpoints, of which none is whole."""
        if self._rank.is_first and (steps := self._store.steps()):
            raise UserError(
                f"none of the {len(steps)} checkpoints at {self._store.location} is whole, "
                "and starting over would overwrite them; restore one of them, or delete "
                "them all to start over."
            )

    def _load_start(self, start: StartPoint, state: TrainingState) -> None:
        """Load what a fork keeps of its parent's checkpoint."""
        checked = start.open() if self._rank.is_first else None
        self._channel.barrier()  # until its shards are hashed
        with checked or start.open(verify=False) as reader:
            if start.start.state == "all":
                goes_on = not order_changes(reader.manifest.spec, self._experiment)
                scalars = kept_scalars(reader.manifest, self._experiment)
                self._load(reader, state, scalars, goes_on)
            elif start.start.state == "averaged":
                state.load_weights(reader, "ema")
            else:
                state.load_weights(reader, "master")

    def load(self, reader: CheckpointReader, state: TrainingState) -> None:
        """Load a checkpoint into `state`. Raises UserError where it was saved under another order
        of samples.
        """
        manifest = reader.manifest
        check_same_order(manifest.spec, manifest.step, self._experiment.to_dict())
        self._load(reader, state, manifest.scalars)
        self.last = reader.location
        self.loaded_receipt = manifest.receipt

    def _load(
        self,
        reader: CheckpointReader,
        state: TrainingState,
        scalars: dict[str, float],
        goes_on: bool = True,
    ) -> None:
        """Load a checkpoint whose order of samples `goes_on`, or begins again.

        Warns where another version's numerics, or other blocks than this run's, wrote it.
        """
        manifest = reader.manifest
        position = manifest.position if goes_on else 0
        state.load(reader, scalars, manifest.step, position)
        state.draw_counts = {}
        if manifest.draws and goes_on:
            state.draw_counts[position] = manifest.draws
        numbers = version_warning(manifest.numerics, self._device_type)
        blocks = compiled_warning(manifest.blocks, self._blocks)
        for warning in (numbers, blocks):
            if warning and self._rank.is_first:
                self._reporter.warn(warning)

    def begin(self, state: TrainingState) -> None:
        """Prepare to save a state that was built or loaded: allocate the host memory for its
        copies.

        Raises RunFailed where the host has too little.
        """
        try:
            if self.snapshots:
                self.snapshots.begin(state)
            self._saver.reserve(state.tensors())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise RunFailed(
                "the host has no memory for a copy of the state; set "
                "checkpoint.write=blocking, which needs none.",
                kind="out_of_memory",
            ) from error

    def save(
        self, state: TrainingState, metrics: Mapping[str, float], receipt: Mapping[str, str]
    ) -> None:
        """Begin to save the state: copy it, and write the copy beside the step loop. `receipt`
        leads to it.

        Waits for an earlier save that is still being written.
        """
        manifest = _manifest(
            self._experiment,
            state,
            shapes=state.shapes,
            buffers=list(state.buffers),
            metrics=dict(metrics),
            draws=state.draw_counts.get(state.position, []),
            blocks=self._blocks,
            receipt=dict(receipt),
        )
        self.num_pending += 1
        self._saver.save(manifest, state.tensors())

    def report_finished(self) -> None:
        """Report every save that has ended since the last call.

        A checkpoint that could not be written costs no step: the one before remains. Raises
        RunFailed for a state that holds NaN or infinities.
        """
        if self.snapshots:
            self.snapshots.report_finished()
        for outcome in self._saver.poll():
            self.num_pending -= 1
            self._failure = outcome.error
            if outcome.error:
                self._report_failed(outcome.step, outcome.error)
            else:
                self._report_saved(outcome)

    def _report_saved(self, outcome: SaveOutcome) -> None:
        self.last = outcome.location
        if not self._rank.is_first:
            return
        for saved in self._hooks.saved:
            saved(outcome.step, outcome.location, outcome.metrics)
        if outcome.note:
            self._reporter.warn(outcome.note)

    def _report_failed(self, step: int, error: SaveFailed) -> None:
        if error.kind == "lost_worker":
            raise PeerLost(str(error)) from error
        if error.kind == "not_finite":
            raise RunFailed(str(error), kind="diverged") from error
        if error.kind == "not_shared":
            raise RunFailed(str(error), kind="storage") from error
        if self._rank.is_first:
            self._reporter.warn(
                f"{error} Training goes on; the last whole checkpoint is {self.last or 'none'}."
            )
            self._reporter.tags(
                {"ditlab.failure": "storage", "ditlab.checkpoint_error": str(error)[:1000]}
            )
            self._reporter.requests.saved(step, "", str(error))

    def wait(self) -> None:
        """Wait for the save that is under way and report it."""
        for saver in self._savers:
            saver.wait()
        self.report_finished()

    def finish(self) -> None:
        """Wait for the run's last checkpoint. Raises RunFailed where it could not be written."""
        self.wait()
        if self._failure:
            remedy = self._failure.remedy
            raise RunFailed(
                f"the last checkpoint could not be written ({self._failure.reason}); the last "
                f"whole one is {self.last or 'none'}. {remedy[0].upper()}{remedy[1:]}, then "
                "continue with --resume.",
                kind="storage",
            )

    def release(self) -> None:
        """Destroy the savers' process groups, after an orderly end."""
        for channel in self._channels:
            channel.close()

    def close(self) -> None:
        """Stop the savers and report what they still saved: a run that fails later can continue
        from there.
        """
        for saver in self._savers:
            saver.close(CLOSE_TIMEOUT)
        with suppress(RunFailed, PeerLost):
            self.report_finished()

    def _make_durable(self) -> None:
        """Make all that a checkpoint refers to durable, before it exists."""
        if self.snapshots:
            self.snapshots.saver.settle()
        self._reporter.before_checkpoint()


def _manifest(experiment: Experiment, state: TrainingState, **facts: Any) -> CheckpointManifest:
    """Describe a state that is saved; `facts` are the fields that its kind of checkpoint has
    besides.
    """
    return CheckpointManifest(
        step=state.step,
        position=state.position,
        spec=experiment.to_dict(),
        spec_hash=experiment.content_hash(),
        scalars=state.engine.scalars(),
        numerics=NUMERICS_VERSION,
        **facts,
    )


def check_same_order(saved: Mapping[str, Any], step: int, own: Mapping[str, Any]) -> None:
    """Raise UserError where a checkpoint's spec orders samples in another way, so that its position
    counts others.
    """
    before = dict(_orders(saved["data"], "data"))
    for field, order in _orders(own["data"], "data"):
        found = before.get(field, order)
        if found != order:
            raise UserError(
                f"{field}={order} is not the order in which the checkpoint of step {step} has "
                f"taken its samples ({found}); set {field} to that, or begin a new run from it "
                "with --from in place of --resume."
            )


def _orders(data: Mapping[str, Any], field: str) -> Iterator[tuple[str, str]]:
    """Yield the field and the order of data, of a mixture those of each part; `full` where they
    have no such field.
    """
    parts = data.get("parts")
    if parts:
        for name, part in parts.items():
            yield from _orders(part, f"{field}.parts.{name}")
        return
    order = data.get("order", {"kind": "full"})
    settings = ", ".join(f"{key}: {value}" for key, value in order.items())
    yield f"{field}.order", f"{{{settings}}}"


class AverageSnapshots:
    """One worker's part in saving the snapshots of the averages.

    Each holds the averages alone, and is written beside the step loop like a checkpoint. One that
    cannot be written costs no step: other lengths are then rebuilt from the rest.
    """

    def __init__(self, run: TrainingRun, rank: Rank, reporter: Reporter) -> None:
        self._experiment = run.experiment
        self._spec = run.experiment.training.averages
        self._total_steps = run.plan.total_steps
        self._rank = rank
        self._reporter = reporter
        self._due: set[int] = set()
        self._store = average_snapshots(run.checkpoints)
        self.channel = ControlChannel(rank, private=True)
        self.saver = BackgroundSaver(
            self._store,
            rank.rank,
            rank.world_size,
            self.channel.gather,
            sys.maxsize,
            mode=run.experiment.checkpoint.write,
        )

    def begin(self, state: TrainingState) -> None:
        """Prepare to go on from a state that was built or loaded: delete later snapshots.

        Where the averages begin with this state, delete all: none could be combined with what
        follows.
        """
        assert self._spec
        self.saver.wait()
        averages = state.engine.averages
        is_new = averages.updates == 0
        self._due = set(snapshot_steps(averages.start, self._total_steps, self._spec.snapshots))
        if self._rank.is_first:
            try:
                self._store.delete_after(0 if is_new else state.step)
            except UserError as error:
                self._reporter.warn(f"snapshots of averages were not deleted: {error}")
            if is_new and state.step and not self._experiment.start:
                self._reporter.warn(
                    f"training.averages: the checkpoint of step {state.step} has none of these "
                    "lengths; they begin after this step, and lengths are fractions of the "
                    "steps from here on."
                )
        self.saver.reserve(self.tensors(state))

    def is_due(self, step: int) -> bool:
        """Return True if a snapshot is saved after a step."""
        return step in self._due

    def save(self, state: TrainingState) -> None:
        """Begin to save the averages: copy them, and write the copy beside the step loop; waits for
        the one before.
        """
        shapes = {name: shape for name, shape in state.shapes.items() if name not in state.buffers}
        self.saver.save(
            _manifest(self._experiment, state, shapes=shapes, buffers=[]), self.tensors(state)
        )

    def report_finished(self) -> None:
        """Warn of each snapshot that could not be saved since the last call."""
        for outcome in self.saver.poll():
            if self._rank.is_first and (error := outcome.error):
                self._reporter.warn(
                    f"the snapshot of averages of step {outcome.step} was not saved "
                    f"({error.reason}); {error.remedy}. Training goes on, and other lengths "
                    "are rebuilt from the rest."
                )
            elif self._rank.is_first and outcome.note:
                self._reporter.warn(outcome.note)

    def tensors(self, state: TrainingState) -> Iterator[tuple[TensorKey, Tensor]]:
        """Iterate over this worker's share of the averages."""
        if state.engine.stage > 0 or self._rank.is_first:  # at stage 0 every worker has them all
            for field, part, values in state.engine.averages.slices():
                yield (field, part.name, part.start), values

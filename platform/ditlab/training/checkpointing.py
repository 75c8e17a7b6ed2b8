"""A run's checkpoints as its step loop sees them: begin one, hear of those that are done, take up the newest."""

from collections.abc import Mapping
from contextlib import suppress

from ditlab.checkpoints.background import SaveOutcome, BackgroundSaver
from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.checkpoints.store import CheckpointStore
from ditlab.engine.distributed import ControlChannel, PeerLost, Rank
from ditlab.errors import RunFailed, UserError
from ditlab.spec.experiment import Experiment
from ditlab.training.memory import is_out_of_memory
from ditlab.training.reporting import Reporter
from ditlab.training.state import TrainingState

PATIENCE = 10.0  # seconds that a failing worker waits for a checkpoint that others may never finish


class CheckpointManager:
    """One worker's part in writing and reading the run's checkpoints."""

    def __init__(
        self,
        experiment: Experiment,
        store: CheckpointStore,
        rank: Rank,
        channel: ControlChannel,
        reporter: Reporter,
    ) -> None:
        self._experiment, self._store, self._rank = experiment, store, rank
        self._channel, self._reporter = channel, reporter
        self._private = ControlChannel(rank, private=True)
        self._saver = BackgroundSaver(
            store,
            rank.rank,
            rank.world_size,
            self._private.gather,
            experiment.checkpoint.keep,
            reporter.before_checkpoint if rank.is_first else None,
            experiment.checkpoint.write,
        )
        self.last: str | None = None
        """Where the last checkpoint lies."""
        self._is_whole = True
        """Whether the last save that was heard of gave a checkpoint; `report` may have heard of it before `settle`."""

    def load_newest(self, state: TrainingState) -> Mapping[str, float]:
        """Takes up the newest whole checkpoint, if there is one; returns the metrics that it holds."""
        found = self._store.newest(self._reporter.warn) if self._rank.is_first else None
        step = self._channel.gather(found.manifest.step if found else None)[0]
        if step is None:
            self._refuse_to_begin_anew()
            return {}
        with found or self._store.open(int(str(step)), verify=False) as reader:
            manifest = reader.manifest
            state.load(reader, manifest.scalars, manifest.step, manifest.position)
            self.last = reader.location
            return manifest.metrics

    def _refuse_to_begin_anew(self) -> None:
        if self._rank.is_first and (steps := self._store.steps()):
            raise UserError(
                f"none of the {len(steps)} checkpoints at {self._store.location} is whole, and beginning anew would "
                "write over them; restore one of them, or delete them all to begin anew."
            )

    def reserve(self, state: TrainingState) -> None:
        """Takes the host memory for copies of the state before the first step, not in the middle of the run.

        Raises RunFailed where there is too little of it.
        """
        try:
            self._saver.reserve(state.tensors())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise RunFailed(
                "the host has no memory for a copy of the state; set checkpoint.write=blocking, which needs none.",
                kind="out_of_memory",
            ) from error

    def begin(self, state: TrainingState, metrics: Mapping[str, float]) -> None:
        """Copies the state; the writing goes on beside the step loop. Waits where an earlier one is not done."""
        manifest = CheckpointManifest(
            step=state.step,
            position=state.position,
            spec=self._experiment.to_dict(),
            spec_hash=self._experiment.content_hash(),
            scalars=state.engine.scalars(),
            shapes=state.shapes,
            buffers=list(state.buffers),
            metrics=dict(metrics),
        )
        self._saver.save(manifest, state.tensors())

    def report(self) -> None:
        """Passes on what was saved, or could not be, since the last call. A checkpoint that could not be written costs
        no step: the one before stands. Raises RunFailed for a state that is no number."""
        for saved in self._saver.poll():
            self._heard(saved)

    def settle(self) -> bool:
        """Waits for what is under way and passes it on. Returns whether the last one that was begun is whole."""
        self._saver.wait()
        self.report()
        return self._is_whole

    def finish(self) -> None:
        """Waits for the run's last checkpoint. Raises RunFailed where it could not be written."""
        if not self.settle():
            raise RunFailed(
                f"the last checkpoint could not be written; the last whole one is {self.last or 'none'}. Make room or "
                "mend checkpoint.storage, then go on with --resume.",
                kind="storage",
            )

    def release(self) -> None:
        """Gives the saver's channel back, after an orderly end."""
        self._private.close()

    def close(self) -> None:
        """Ends the saver, and passes on what it still saved: a run that fails later can go on from there."""
        self._saver.close(PATIENCE)
        with suppress(RunFailed, PeerLost):
            self.report()

    def _heard(self, saved: SaveOutcome) -> None:
        error, report = saved.error, self._rank.is_first
        self._is_whole = error is None
        if error is None:
            self.last = saved.location
            if report:
                self._reporter.checkpoint(saved.step, saved.location, saved.metrics)
                if saved.note:
                    self._reporter.warn(saved.note)
            return
        if error.kind == "lost_worker":
            raise PeerLost(str(error)) from error
        if error.kind != "write":
            kind = "diverged" if error.kind == "not_finite" else "storage"
            raise RunFailed(str(error), kind=kind) from error
        if report:
            self._reporter.warn(f"{error} Training goes on; the last whole checkpoint is {self.last or 'none'}.")
            self._reporter.tags({"ditlab.failure": "storage", "ditlab.checkpoint_error": str(error)[:1000]})

"""Checkpoints written beside the step loop, one at a time."""

import threading
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Literal

from torch import Tensor

from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.checkpoints.shard import TensorKey
from ditlab.checkpoints.staging import HostCopy, InPlace, Tensors
from ditlab.checkpoints.store import CheckpointStore
from ditlab.checkpoints.transaction import CommitResult, Receipt, SaveFailed, SaveFailureKind, SaveTransaction
from ditlab.errors import first_line


@dataclass(frozen=True)
class SaveOutcome:
    """How one save ended."""

    step: int
    location: str
    """Path or URI of the checkpoint."""
    metrics: dict[str, float]
    """Those that the manifest holds."""
    seconds: float
    """From the call to the end, in the background too."""
    held_up: float
    """Seconds for which `save` held up its caller."""
    error: SaveFailed | None = None
    """Why there is no checkpoint of this step; the same kind on every worker."""
    note: str | None = None
    """What went wrong after the checkpoint was there: older ones that could not be deleted."""

    @property
    def kind(self) -> SaveFailureKind | None:
        """The error's kind; None for a checkpoint that is there."""
        return self.error.kind if self.error else None


class BackgroundSaver:
    """One of these on every worker; all save the same steps in the same order.

    `background`: `save` copies this worker's share of the state into host memory, once more its size, kept from save to
    save, and a thread writes it. `blocking`: `save` returns when the checkpoint is there, and needs no such memory.

    `gather` gives all workers' things in the order of their ranks. It is called from the saver's thread, beside what
    the step loop does, so it needs a channel of its own. `before_commit` is called on the first worker, in the same
    thread, when all shards are on disk and the manifest is not. `keep` is how many checkpoints stay.
    """

    def __init__(
        self,
        store: CheckpointStore,
        rank: int,
        world_size: int,
        gather: Callable[[Any], list[Any]],
        keep: int,
        before_commit: Callable[[], None] | None = None,
        mode: Literal["background", "blocking"] = "background",
    ) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self._gather, self._keep, self._before_commit, self._mode = gather, keep, before_commit, mode
        self._state: HostCopy | InPlace = HostCopy() if mode == "background" else InPlace()
        self._thread: threading.Thread | None = None
        self._finished: SimpleQueue[SaveOutcome] = SimpleQueue()
        self._last: SaveOutcome | None = None
        self._lost: SaveFailed | None = None
        self._no_room: Exception | None = None

    def reserve(self, tensors: Iterable[tuple[TensorKey, Tensor]]) -> None:
        """Takes the host memory that `save` will copy into, or the first save would wait for it."""
        self._state.reserve(_ordered(tensors))

    def save(self, manifest: CheckpointManifest, tensors: Iterable[tuple[TensorKey, Tensor]]) -> None:
        """Takes the state as it is now: this worker's tensors by (field, name, start), and what the manifest says.

        The first worker's manifest counts; its pieces and shards are filled in here. Waits for the save before to end.
        A failure is told by `poll` and `wait`, never raised here.
        """
        began = time.perf_counter()
        self._join()
        self._no_room = None
        try:
            self._state.take(_ordered(tensors))
        except (RuntimeError, MemoryError) as error:  # torch's allocator raises the first
            self._no_room = error
        manifest = deepcopy(manifest)  # the step loop goes on changing its metrics
        held_up = time.perf_counter() - began
        # A daemon: a worker that waits for a dead one's word must not keep the process from ending.
        self._thread = threading.Thread(
            target=self._run, args=(manifest, began, held_up), name="checkpoint-saver", daemon=True
        )
        self._thread.start()
        if self._mode == "blocking":
            self._join()
            self._state.take(())  # or a state that is built anew would find the old one still in memory

    def poll(self) -> list[SaveOutcome]:
        """Saves that have ended since this was last asked, oldest first."""
        finished = []
        while True:
            try:
                finished.append(self._finished.get_nowait())
            except Empty:
                return finished

    def wait(self) -> SaveOutcome | None:
        """Waits until nothing is under way; returns how the latest save ended. `poll` tells it as well."""
        self._join()
        return self._last

    def close(self, patience: float | None = None) -> None:
        """Waits for what is under way (at most `patience` seconds) and gives the host memory back."""
        self._join(patience)
        if self._thread is None:
            self._state = HostCopy() if self._mode == "background" else InPlace()

    def _join(self, patience: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(patience)
            if not self._thread.is_alive():
                self._thread = None

    def _run(self, manifest: CheckpointManifest, began: float, held_up: float) -> None:
        verdict = self._verdict(SaveTransaction(self.store, self.rank, self.world_size, self._keep, manifest))
        seconds = time.perf_counter() - began
        if self._mode == "blocking":
            held_up = seconds
        self._last = SaveOutcome(
            manifest.step, self.store.location_of(manifest.step), manifest.metrics, seconds, held_up,
            verdict.error, verdict.note,
        )  # fmt: skip
        self._finished.put(self._last)

    def _verdict(self, save: SaveTransaction) -> CommitResult:
        if self._lost:
            return CommitResult(self._lost)
        mine = save.refused(self._no_room) if self._no_room else save.write(self._state)
        try:
            receipts: list[Receipt] = self._gather(mine)
            refused = save.refusal(receipts)
            if refused:
                verdict = CommitResult(refused, keep_shards=False)
            else:
                verdict = save.commit(receipts, self._before_commit) if self.rank == 0 else CommitResult()
                verdict = self._gather(verdict)[0]
        except Exception as error:
            # Whether the others committed is not known, so nothing is removed: pruning takes what counts for nothing.
            self._lost = SaveFailed(
                "lost_worker",
                save.manifest.step,
                f"another worker fell silent while a checkpoint was written ({first_line(error)})",
            )
            return CommitResult(self._lost)
        if not verdict.keep_shards:
            save.discard()
        return verdict


def _ordered(tensors: Iterable[tuple[TensorKey, Tensor]]) -> Tensors:
    """Wider numbers first, so that each lies at a multiple of its size."""
    return sorted(tensors, key=lambda item: -item[1].element_size())

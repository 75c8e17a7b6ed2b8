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
from ditlab.checkpoints.staging import HostCopy, InPlace, KeyedTensors
from ditlab.checkpoints.store import CheckpointStore
from ditlab.checkpoints.transaction import CommitResult, SaveFailed, SaveFailureKind, SaveTransaction, ShardReceipt
from ditlab.errors import first_line


@dataclass(frozen=True)
class SaveOutcome:
    """Result of one save."""

    step: int
    location: str
    """Path or URI of the checkpoint."""
    metrics: dict[str, float]
    """Metrics in the manifest."""
    seconds: float
    """Time from the call to the end, in the background too."""
    held_up: float
    """Seconds for which `save` blocked its caller."""
    error: SaveFailed | None = None
    """Reason why there is no checkpoint of this step; of the same kind on every worker."""
    note: str | None = None
    """A problem after the checkpoint was complete: older ones that could not be deleted."""

    @property
    def kind(self) -> SaveFailureKind | None:
        """The error's kind; None for a checkpoint that was saved."""
        return self.error.kind if self.error else None


class BackgroundSaver:
    """Saver of one worker's part of each checkpoint; all workers save the same steps in the same order.

    Mode `background`: `save` copies this worker's part of the state into host memory, as large as that part and kept
    from save to save, and a thread writes it. Mode `blocking`: `save` returns when the checkpoint is complete, and
    needs no such memory.

    `gather` returns all workers' objects in the order of their ranks. It is called in the saver's thread, at the same
    time as the step loop's own communication, so it needs a channel of its own. `before_commit` is called on the first
    worker, in the same thread, when all shards are on disk and the manifest is not. `keep` is the number of checkpoints
    to keep, beside the first one of each stretch of `keep_every` steps.
    """

    def __init__(
        self,
        store: CheckpointStore,
        rank: int,
        world_size: int,
        gather: Callable[[Any], list[Any]],
        keep: int,
        before_commit: Callable[[], object] | None = None,
        mode: Literal["background", "blocking"] = "background",
        keep_every: int | None = None,
    ) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self._gather, self._keep, self._before_commit, self._mode = gather, keep, before_commit, mode
        self._keep_every = keep_every
        self._state: HostCopy | InPlace = HostCopy() if mode == "background" else InPlace()
        self._thread: threading.Thread | None = None
        self._finished: SimpleQueue[SaveOutcome] = SimpleQueue()
        self._last: SaveOutcome | None = None
        self._lost_worker: SaveFailed | None = None
        self._copy_error: Exception | None = None

    def reserve(self, tensors: Iterable[tuple[TensorKey, Tensor]]) -> None:
        """Allocate the host memory for the copies, which the first `save` would otherwise wait for."""
        self._state.reserve(_widest_first(tensors))

    def save(self, manifest: CheckpointManifest, tensors: Iterable[tuple[TensorKey, Tensor]]) -> None:
        """Save the state as it is now: this worker's tensors by (field, name, start), and the manifest.

        The first worker's manifest counts; its pieces and shards are filled in here. Waits for the save before to end.
        `poll` and `wait` return a failure, which is never raised here.
        """
        began = time.perf_counter()
        self._join()
        self._copy_error = None
        try:
            self._state.take(_widest_first(tensors))
        except (RuntimeError, MemoryError) as error:  # torch's allocator raises the first
            self._copy_error = error
        manifest = deepcopy(manifest)  # the step loop goes on changing its metrics
        held_up = time.perf_counter() - began
        # A daemon: a worker that waits for a dead one must not keep the process from ending.
        thread = threading.Thread(
            target=self._run, args=(manifest, began, held_up), name="checkpoint-saver", daemon=True
        )
        thread.start()
        self._thread = thread  # once it can be joined: `settle` may be called in another thread meanwhile
        if self._mode == "blocking":
            self._join()
            self._state.take(())  # or a state that is built anew would find the old one still in memory

    def poll(self) -> list[SaveOutcome]:
        """Saves that have ended since the last call, oldest first."""
        finished = []
        while True:
            try:
                finished.append(self._finished.get_nowait())
            except Empty:
                return finished

    def wait(self) -> SaveOutcome | None:
        """Wait for the save under way, if any; returns the latest outcome, which `poll` returns as well."""
        self._join()
        return self._last

    def settle(self) -> None:
        """Wait, in a thread beside the caller of `save`, for the save under way when this is called.

        One that begins meanwhile may be waited for or not.
        """
        if thread := self._thread:
            thread.join()

    def close(self, timeout: float | None = None) -> None:
        """Wait for the save under way, at most `timeout` seconds, and free the host memory."""
        self._join(timeout)
        if self._thread is None:
            self._state = HostCopy() if self._mode == "background" else InPlace()

    def _join(self, timeout: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout)
            if not self._thread.is_alive():
                self._thread = None

    def _run(self, manifest: CheckpointManifest, began: float, held_up: float) -> None:
        result = self._save(
            SaveTransaction(self.store, self.rank, self.world_size, self._keep, manifest, self._keep_every)
        )
        seconds = time.perf_counter() - began
        if self._mode == "blocking":
            held_up = seconds
        self._last = SaveOutcome(
            manifest.step, self.store.location_of(manifest.step), manifest.metrics, seconds, held_up,
            result.error, result.note,
        )  # fmt: skip
        self._finished.put(self._last)

    def _save(self, transaction: SaveTransaction) -> CommitResult:
        if self._lost_worker:
            return CommitResult(self._lost_worker)
        error = self._copy_error
        own = transaction.failed_copy(error) if error else transaction.write(self._state)
        try:
            receipts: list[ShardReceipt] = self._gather(own)
            if failed := transaction.failure_of(receipts):
                result = CommitResult(failed, keep_shards=False)
            else:
                result = transaction.commit(receipts, self._before_commit) if self.rank == 0 else CommitResult()
                result = self._gather(result)[0]
        except Exception as error:
            # The others may have committed or not, so nothing is removed: pruning takes what counts for nothing.
            self._lost_worker = SaveFailed(
                "lost_worker",
                transaction.manifest.step,
                f"another worker fell silent while a checkpoint was written ({first_line(error)})",
            )
            return CommitResult(self._lost_worker)
        if not result.keep_shards:
            transaction.discard()
        return result


def _widest_first(tensors: Iterable[tuple[TensorKey, Tensor]]) -> KeyedTensors:
    """Tensors of wider numbers first, so that each lies at a multiple of its number's size."""
    return sorted(tensors, key=lambda item: -item[1].element_size())

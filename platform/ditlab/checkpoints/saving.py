"""Saving of checkpoints beside the step loop, one at a time: workers write shards, agree, and the
first one commits.

A worker's state is staged on the host as it was at a step, while the next steps change it. Only the
failure of another worker raises.
"""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import torch
from blake3 import blake3
from torch import Tensor

from ditlab.checkpoints.manifest import (
    MANIFEST,
    CheckpointManifest,
    ShardDigest,
    ShardPiece,
    folder_of,
    shard_name,
)
from ditlab.checkpoints.shard import CHUNK, TensorKey, encode_header, is_finite, raw_bytes
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import disk_remedy, first_line

KeyedTensors = Sequence[tuple[TensorKey, Tensor]]

VISIBILITY_TIMEOUT = 15.0
"""Seconds until another worker's file counts as missing: NFS may remember for a while that a file
was not there.
"""
SaveFailureKind = Literal["not_finite", "write", "not_shared", "lost_worker"]
_REMEDIES: dict[SaveFailureKind, str] = {
    "not_finite": "training diverged; lower optimizer.lr or training.clip.max_norm",
    "not_shared": "name a folder on shared storage, or a URI such as s3://bucket/prefix",
    "lost_worker": "resume the run from the one before",
}


class StagedState:
    """A worker's tensors as they were at a step: in host memory as large as its part of the state,
    kept for the next.

    Without `copies`, the tensors themselves, for a step loop that waits: one GPU tensor at a time
    is in host memory.
    """

    def __init__(self, copies: bool) -> None:
        self.tensors: KeyedTensors = ()
        """Flattened copies of the tensors, or the tensors themselves."""
        self._copies = copies
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def reserve(self, tensors: Iterable[tuple[TensorKey, Tensor]]) -> None:
        """Allocate and touch the memory for tensors of these sizes."""
        if not self._copies:
            return
        tensors = list(tensors)
        needed = sum(tensor.nbytes for _, tensor in tensors)
        if needed > self._buffer.numel():
            self.tensors = ()
            # the old one goes before the new comes
            self._buffer = torch.empty(0, dtype=torch.uint8)
            pinned = any(tensor.is_cuda for _, tensor in tensors)
            self._buffer = torch.empty(needed, dtype=torch.uint8, pin_memory=pinned).zero_()

    def take(self, tensors: Iterable[tuple[TensorKey, Tensor]]) -> None:
        """Take tensors, which may change when this returns if they are copied."""
        # those of wider numbers first, so that each lies at a multiple of its number's size
        tensors = sorted(tensors, key=lambda item: -item[1].element_size())
        if not self._copies:
            self.tensors = tensors
            return
        self.reserve(tensors)
        sizes = [tensor.nbytes for _, tensor in tensors]
        parts = self._buffer[: sum(sizes)].split(sizes)
        copies = []
        for part, (key, tensor) in zip(parts, tensors, strict=True):
            view = part.view(tensor.dtype)
            view.copy_(tensor.detach().reshape(-1), non_blocking=True)
            copies.append((key, view))
        if any(tensor.is_cuda for _, tensor in tensors):
            torch.cuda.current_stream().synchronize()
        self.tensors = copies


@dataclass(eq=False)
class SaveFailed(Exception):
    """A checkpoint was saved on no worker; its message gives the reason and the remedy. Earlier
    ones are untouched.
    """

    kind: SaveFailureKind
    step: int
    reason: str

    @property
    def remedy(self) -> str:
        """Sentence part on how to go on."""
        if self.kind == "write":
            return disk_remedy(self.reason, "repair checkpoint.storage")
        return _REMEDIES[self.kind]

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step} was not saved ({self.reason}); {self.remedy}."


@dataclass(frozen=True)
class ShardReceipt:
    """One worker's report on its shard: name, digest and pieces, or the reason why there is
    none.
    """

    name: str
    digest: ShardDigest | None = None
    pieces: tuple[ShardPiece, ...] = ()
    failure: tuple[SaveFailureKind, str] | None = None


@dataclass(frozen=True)
class CommitResult:
    """Result of a save, the same on every worker."""

    error: SaveFailed | None = None
    note: str | None = None
    """A problem after the checkpoint was complete."""
    keep_shards: bool = True
    """True if a manifest that names this save's shards exists, or may exist."""


@dataclass(frozen=True)
class SaveOutcome:
    """Result of one save."""

    step: int
    location: str
    """Path or URI of the checkpoint."""
    metrics: dict[str, float]
    """Metrics in the manifest."""
    error: SaveFailed | None
    """Reason why there is no checkpoint of this step; of the same kind on every worker."""
    note: str | None
    """A problem after the checkpoint was complete: older ones that could not be deleted."""


@dataclass
class BackgroundSaver:
    """Saver of one worker's part of each checkpoint; all workers save the same steps in the same
    order.

    Mode `background`: `save` copies this worker's part of the state into host memory, as large as
    that part and kept from save to save, and a thread writes it. Mode `blocking`: `save` returns
    when the checkpoint is complete, and needs no such memory.

    `gather` returns all workers' objects in the order of their ranks. It is called in the saver's
    thread, at the same time as the step loop's own communication, so it needs a channel of its own.
    `before_commit` is called on the first worker, in the same thread, when all shards are on disk
    and the manifest is not. `keep` is the number of checkpoints to keep, beside the first one of
    each stretch of `keep_every` steps and those of the steps that are `needed`.
    """

    store: CheckpointStore
    rank: int
    world_size: int
    gather: Callable[[Any], list[Any]]
    keep: int
    before_commit: Callable[[], object] | None = None
    mode: Literal["background", "blocking"] = "background"
    keep_every: int | None = None
    needed: Callable[[], Collection[int]] = tuple

    def __post_init__(self) -> None:
        self._state = StagedState(self.mode == "background")
        self._thread: threading.Thread | None = None
        self._finished: deque[SaveOutcome] = deque()
        self._last: SaveOutcome | None = None
        self._lost_worker: SaveFailed | None = None
        self._copy_failure: tuple[SaveFailureKind, str] | None = None
        """Failure of the copy that the save under way needs, such as for lack of memory."""

    def reserve(self, tensors: Iterable[tuple[TensorKey, Tensor]]) -> None:
        """Allocate the host memory for the copies, which the first `save` would otherwise wait
        for.
        """
        self._state.reserve(tensors)

    def save(
        self, manifest: CheckpointManifest, tensors: Iterable[tuple[TensorKey, Tensor]]
    ) -> None:
        """Save the state as it is now: this worker's tensors by (field, name, start), and the
        manifest.

        The first worker's manifest counts; its pieces and shards are filled in here. Waits for the
        save before to end. `poll` and `wait` return a failure, which is never raised here.
        """
        self._join()
        self._copy_failure = None
        try:
            self._state.take(tensors)
        except (RuntimeError, MemoryError) as error:  # torch's allocator raises the first
            reason = f"no host memory for a copy of the state, {first_line(error)}"
            self._copy_failure = ("write", f"{reason}; checkpoint.write=blocking needs none")
        manifest = deepcopy(manifest)  # the step loop goes on changing its metrics
        # A daemon: a worker that waits for a dead one must not keep the process from ending.
        thread = threading.Thread(
            target=self._run, args=(manifest,), name="checkpoint-saver", daemon=True
        )
        thread.start()
        # once it can be joined: `settle` may be called in another thread meanwhile
        self._thread = thread
        if self.mode == "blocking":
            self._join()
            # or a state that is built again would find the old one still in memory
            self._state.take(())

    def poll(self) -> list[SaveOutcome]:
        """Saves that have ended since the last call, oldest first."""
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def wait(self) -> SaveOutcome | None:
        """Wait for the save under way, if any; returns the latest outcome, which `poll` returns as
        well.
        """
        self._join()
        return self._last

    def settle(self) -> None:
        """Wait, in a thread beside the caller of `save`, for the save under way when this is
        called.
        """
        thread = self._thread
        if thread:
            thread.join()

    def close(self, timeout: float | None = None) -> None:
        """Wait for the save under way, at most `timeout` seconds, and free the host memory."""
        self._join(timeout)
        if self._thread is None:
            self._state = StagedState(self.mode == "background")

    def _join(self, timeout: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout)
            if not self._thread.is_alive():
                self._thread = None

    def _run(self, manifest: CheckpointManifest) -> None:
        if self._lost_worker:
            result = CommitResult(self._lost_worker)
        else:
            result = self._save(manifest)
        location = self.store.location_of(manifest.step)
        self._last = SaveOutcome(
            manifest.step, location, manifest.metrics, result.error, result.note
        )
        self._finished.append(self._last)

    def _save(self, manifest: CheckpointManifest) -> CommitResult:
        """Write this worker's shard, and let the first worker commit once all have."""
        step = manifest.step
        folder = folder_of(manifest.step)
        shard = shard_name(self.rank, self.world_size, secrets.token_hex(4))
        if self._copy_failure:
            own = ShardReceipt(shard, failure=self._copy_failure)
        else:
            own = self._write(step, shard)
        result: CommitResult | None = None
        try:
            receipts: list[ShardReceipt] = self.gather(own)
            failed = _first_failure(step, receipts)
            if failed:
                result = CommitResult(failed, keep_shards=False)
            else:
                if self.rank == 0:
                    result = self._commit(manifest, receipts)
                result = self.gather(result)[0]
        except Exception as error:
            # The others may have committed or not, so nothing is removed: pruning takes what counts
            # for nothing.
            reason = (
                f"another worker fell silent while a checkpoint was written ({first_line(error)})"
            )
            self._lost_worker = SaveFailed("lost_worker", step, reason)
            return CommitResult(self._lost_worker)
        assert result is not None
        if not result.keep_shards:
            with suppress(Exception):  # no manifest names it, and pruning takes it with its folder
                self.store.files.delete(folder, shard)
                self.store.files.delete_folder_if_empty(folder)
        return result

    def _write(self, step: int, shard: str) -> ShardReceipt:
        """Check the state for NaN and infinities, and write it as this worker's shard, on disk when
        this returns.
        """
        # BLAKE3 has 7 GB/s, and SHA-256, for which the processor has instructions, 2 GB/s.
        tensors = self._state.tensors
        size = 0
        digest = blake3()

        def chunks() -> Iterator[memoryview]:
            nonlocal size
            for region in chain(
                [memoryview(encode_header(tensors))],
                (raw_bytes(tensor.cpu()) for _, tensor in tensors),
            ):
                for start in range(0, len(region), CHUNK):
                    chunk = region[start : start + CHUNK]
                    digest.update(chunk)
                    size += len(chunk)
                    yield chunk

        try:
            for (field, name, _), tensor in tensors:
                # A buffer may be a mask of infinities; the rest of the state is of finite numbers.
                if field != "buffer" and not is_finite(tensor):
                    return ShardReceipt(
                        shard, failure=("not_finite", f"{field} of {name} holds NaN or an infinity")
                    )
            self.store.files.write(folder_of(step), shard, chunks())
        except Exception as error:  # of any class: the other workers wait for this receipt
            return ShardReceipt(shard, failure=("write", _reason(error)))
        pieces = tuple(
            (shard, field, name, start, start + each.numel())
            for (field, name, start), each in tensors
        )
        return ShardReceipt(shard, ShardDigest(size, f"blake3:{digest.hexdigest()}"), pieces)

    def _commit(self, manifest: CheckpointManifest, receipts: list[ShardReceipt]) -> CommitResult:
        """Commit on the first worker, after all have written: the checkpoint exists once its
        manifest does.
        """
        content = b""
        files = self.store.files
        folder = folder_of(manifest.step)
        try:
            if self.before_commit:
                self.before_commit()
            unseen = self._unseen(folder, receipts)
            if unseen:
                reason = (
                    f"checkpoint.storage={self.store.location} is not shared by all nodes: "
                    f"{unseen} and worker {self.rank} does not see it"
                )
                return CommitResult(
                    SaveFailed("not_shared", manifest.step, reason), keep_shards=False
                )
            shards = {receipt.name: receipt.digest for receipt in receipts if receipt.digest}
            pieces = [piece for receipt in receipts for piece in receipt.pieces]
            content = replace(manifest, pieces=pieces, shards=shards).to_bytes()
            files.replace(folder, MANIFEST, content)
        except Exception as error:  # of any class: the other workers wait for this result
            failed = SaveFailed("write", manifest.step, f"worker {self.rank}: {_reason(error)}")
            try:  # the manifest may be there, as when only the folder's fsync failed
                is_there = files.read(folder, MANIFEST) == content
            except Exception as unread:
                is_there = not isinstance(unread, FileNotFoundError)
            return CommitResult(failed, keep_shards=is_there)
        try:
            self._delete_old(manifest.step, shards)
        except Exception as error:
            where = self.store.location
            return CommitResult(
                note=f"older checkpoints in {where} could not be deleted ({_reason(error)})."
            )
        return CommitResult()

    def _unseen(self, folder: str, receipts: Sequence[ShardReceipt]) -> str:
        """Wait for what the workers wrote; return what this one does not see in time, empty where
        it sees all.
        """
        deadline = time.monotonic() + VISIBILITY_TIMEOUT
        while True:
            sizes = self.store.files.sizes(folder)
            unseen = [
                f"worker {rank} wrote {receipt.name}"
                for rank, receipt in enumerate(receipts)
                if receipt.digest and sizes.get(receipt.name) != receipt.digest.size
            ]
            if not unseen:
                return ""
            if time.monotonic() > deadline:
                return unseen[0]
            time.sleep(0.2)

    def _delete_old(self, step: int, shards: Collection[str]) -> None:
        """Delete the files of earlier attempts at this step, and the oldest checkpoints."""
        files = self.store.files
        folder = folder_of(step)
        for name in files.sizes(folder):
            is_ours = name.startswith(("shard-", MANIFEST, f".{MANIFEST}"))
            if is_ours and name not in shards and name != MANIFEST:
                files.delete(folder, name)
        self.store.prune(self.keep, step, self.keep_every, self.needed())


def _first_failure(step: int, receipts: Sequence[ShardReceipt]) -> SaveFailed | None:
    """Return the failure of a save by its workers' receipts; what is not finite comes first."""
    reasons = []
    for rank, receipt in enumerate(receipts):
        if receipt.failure:
            kind, reason = receipt.failure
            if kind == "not_finite":
                return SaveFailed(kind, step, f"{reason} on worker {rank}")
            reasons.append(f"worker {rank}: {reason}")
    if reasons:
        return SaveFailed("write", step, "; ".join(reasons[:3]))
    return None


def _reason(error: Exception) -> str:
    reason = first_line(error)
    if isinstance(error, OSError) and error.filename:
        reason += f" ({error.filename})"
    return reason

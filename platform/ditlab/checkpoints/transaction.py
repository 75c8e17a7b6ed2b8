"""Transaction that saves one checkpoint: write, agree, commit. Only the failure of another worker raises."""

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ditlab.checkpoints.manifest import MANIFEST, CheckpointManifest, ShardDigest, ShardPiece, folder_of, shard_name
from ditlab.checkpoints.shard import HashedChunks, encode_header, is_finite
from ditlab.checkpoints.staging import HostCopy, InPlace
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import first_line

VISIBILITY_TIMEOUT = 15.0
"""Seconds until another worker's file counts as missing: NFS may remember for a while that a file was not there."""

SaveFailureKind = Literal["not_finite", "write", "not_shared", "lost_worker"]

_REMEDY: dict[SaveFailureKind, str] = {
    "not_finite": "training diverged; lower optimizer.lr or training.clip.max_norm",
    "write": "make room or mend checkpoint.storage",
    "not_shared": "name a folder on shared storage, or a URI such as s3://bucket/prefix",
    "lost_worker": "resume the run from the one before",
}


class SaveFailed(Exception):
    """A checkpoint was saved on no worker; its message gives the reason and the remedy. Earlier ones are untouched."""

    def __init__(self, kind: SaveFailureKind, step: int, reason: str) -> None:
        super().__init__(kind, step, reason)
        self.kind, self.step, self.reason = kind, step, reason

    @property
    def remedy(self) -> str:
        """End of a sentence on what to do."""
        return _REMEDY[self.kind]

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step} was not saved ({self.reason}); {self.remedy}."


@dataclass(frozen=True)
class ShardReceipt:
    """One worker's report on its shard: name, digest and pieces, or the reason why there is none."""

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


class SaveTransaction:
    """One worker's part in saving one checkpoint, run in the saver's thread."""

    def __init__(
        self,
        store: CheckpointStore,
        rank: int,
        world_size: int,
        keep: int,
        manifest: CheckpointManifest,
        keep_every: int | None = None,
    ) -> None:
        self.store, self.rank, self.world_size, self.keep, self.manifest = store, rank, world_size, keep, manifest
        self._keep_every = keep_every
        self.folder = folder_of(manifest.step)
        self.shard = shard_name(rank, world_size, secrets.token_hex(4))

    def write(self, state: HostCopy | InPlace) -> ShardReceipt:
        """Check the state for NaN and infinities, and write it as this worker's shard, on disk when this returns."""
        try:
            for (field, name, _), tensor in state.tensors:
                # A buffer may be a mask of infinities; the rest of the state is of finite numbers.
                if field != "buffer" and not is_finite(tensor):
                    reason = f"{field} of {name} holds NaN or an infinity"
                    return ShardReceipt(self.shard, failure=("not_finite", reason))
            chunks = HashedChunks(_regions(state))
            self.store.files.write(self.folder, self.shard, chunks)
            pieces = tuple(
                (self.shard, field, name, start, start + tensor.numel())
                for (field, name, start), tensor in state.tensors
            )
            return ShardReceipt(self.shard, chunks.digest, pieces)
        except Exception as error:  # of any class: the other workers wait for this receipt
            return ShardReceipt(self.shard, failure=("write", _reason(error)))

    def failed_copy(self, error: Exception) -> ShardReceipt:
        """The receipt of a worker that could not even copy its state."""
        reason = f"no host memory for a copy of the state, {first_line(error)}; checkpoint.write=blocking needs none"
        return ShardReceipt(self.shard, failure=("write", reason))

    def failure_of(self, receipts: list[ShardReceipt]) -> SaveFailed | None:
        """The failures of workers without a shard, in one sentence; None if every worker has one."""
        failures = [(rank, *receipt.failure) for rank, receipt in enumerate(receipts) if receipt.failure]
        if not failures:
            return None
        for rank, kind, reason in failures:
            if kind == "not_finite":
                return SaveFailed(kind, self.manifest.step, f"{reason} on worker {rank}")
        return SaveFailed(
            "write", self.manifest.step, "; ".join(f"worker {rank}: {reason}" for rank, _, reason in failures[:3])
        )

    def commit(self, receipts: list[ShardReceipt], before_commit: Callable[[], object] | None) -> CommitResult:
        """Commit on the first worker, after all have written: the checkpoint exists once its manifest does."""
        content = b""
        try:
            if before_commit:
                before_commit()
            if missing := self._missing_shard(receipts):
                return CommitResult(SaveFailed("not_shared", self.manifest.step, missing), keep_shards=False)
            content = replace(
                self.manifest,
                pieces=[piece for receipt in receipts for piece in receipt.pieces],
                shards={receipt.name: receipt.digest for receipt in receipts if receipt.digest},
            ).to_bytes()
            self.store.files.replace(self.folder, MANIFEST, content)
        except Exception as error:  # of any class: the other workers wait for this result
            failed = SaveFailed("write", self.manifest.step, f"worker {self.rank}: {_reason(error)}")
            return CommitResult(failed, keep_shards=self._may_be_committed(content))
        return CommitResult(note=self._delete_old({receipt.name for receipt in receipts}))

    def discard(self) -> None:
        """Delete this worker's shard of a save that failed."""
        try:
            self.store.files.delete(self.folder, self.shard)
            self.store.files.delete_folder_if_empty(self.folder)
        except Exception:
            # No manifest names it, and pruning takes it with its folder.
            return

    def _missing_shard(self, receipts: list[ShardReceipt]) -> str | None:
        """Wait until this worker sees every shard; the reason if one stays missing for `VISIBILITY_TIMEOUT` seconds."""
        deadline = time.monotonic() + VISIBILITY_TIMEOUT
        while True:
            sizes = self.store.files.sizes(self.folder)
            wrong = [r for r, receipt in enumerate(receipts) if sizes.get(receipt.name) != _size(receipt)]
            if not wrong:
                return None
            if time.monotonic() > deadline:
                return (
                    f"checkpoint.storage={self.store.location} is not shared by all nodes: worker {wrong[0]} wrote "
                    f"{receipts[wrong[0]].name} and worker {self.rank} does not see it"
                )
            time.sleep(0.2)

    def _may_be_committed(self, content: bytes) -> bool:
        """Return True if a failed commit may have left its manifest, as when only the folder's fsync failed."""
        try:
            return self.store.files.read(self.folder, MANIFEST) == content
        except FileNotFoundError:
            return False
        except Exception:
            return True

    def _delete_old(self, names: set[str]) -> str | None:
        """Delete the files of earlier attempts at this step, and the oldest checkpoints; returns a note on failure."""
        try:
            for name in self.store.files.sizes(self.folder):
                if name not in names and name != MANIFEST and name.startswith(("shard-", MANIFEST)):
                    self.store.files.delete(self.folder, name)
            self.store.prune(self.keep, self.manifest.step, self._keep_every)
        except Exception as error:
            return f"older checkpoints in {self.store.location} could not be deleted ({_reason(error)})."
        return None


def _regions(state: HostCopy | InPlace) -> Iterator[bytes | memoryview]:
    yield encode_header(state.tensors)
    yield from state.regions()


def _size(receipt: ShardReceipt) -> int:
    assert receipt.digest
    return receipt.digest.size


def _reason(error: Exception) -> str:
    where = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
    return f"{first_line(error)}{where}"

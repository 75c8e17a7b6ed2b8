"""One save of one worker: write, agree, commit. Nothing here raises but what the other workers' silence does."""

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ditlab.checkpoints.manifest import MANIFEST, CheckpointManifest, ShardDigest, ShardPiece, folder_of, shard_name
from ditlab.checkpoints.shard import HashingChunks, header, is_finite
from ditlab.checkpoints.staging import HostCopy, InPlace
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import first_line

SaveFailureKind = Literal["not_finite", "write", "not_shared", "lost_worker"]
PATIENCE = 15.0
"""Seconds until a worker's file counts as unseen: NFS may remember for a while that a file was not there."""


_REMEDY: dict[SaveFailureKind, str] = {
    "not_finite": "training diverged; lower optimizer.lr or training.clip.max_norm",
    "write": "make room or mend checkpoint.storage",
    "not_shared": "name a folder on shared storage, or a URI such as s3://bucket/prefix",
    "lost_worker": "resume the run from the one before",
}


class SaveFailed(Exception):
    """Why a checkpoint was not saved, on no worker, in one sentence; earlier ones are as they were."""

    def __init__(self, kind: SaveFailureKind, step: int, why: str) -> None:
        super().__init__(kind, step, why)
        self.kind, self.step, self.why = kind, step, why

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step} was not saved ({self.why}); {_REMEDY[self.kind]}."


@dataclass(frozen=True)
class Receipt:
    """What a worker says of its shard: its name, hash and pieces, or why there is none."""

    name: str
    shard: ShardDigest | None = None
    pieces: tuple[ShardPiece, ...] = ()
    failure: tuple[SaveFailureKind, str] | None = None


@dataclass(frozen=True)
class CommitResult:
    """How a save ended, the same on every worker."""

    error: SaveFailed | None = None
    note: str | None = None
    """What went wrong after the checkpoint was there."""
    keep_shards: bool = True
    """Whether a manifest is there that names this save's shards, or may be."""


class SaveTransaction:
    """One save of one worker, in the saver's thread."""

    def __init__(self, store: CheckpointStore, rank: int, world_size: int, keep: int, manifest: CheckpointManifest) -> None:
        self.store, self.rank, self.world_size, self.keep, self.manifest = store, rank, world_size, keep, manifest
        self.folder = folder_of(manifest.step)
        self.shard = shard_name(rank, world_size, secrets.token_hex(4))

    def write(self, state: HostCopy | InPlace) -> Receipt:
        """Checks the state, writes this worker's shard and syncs it."""
        try:
            for (field, name, _), tensor in state.tensors:
                # A buffer may be a mask of infinities; the rest of the state is of finite numbers.
                if field != "buffer" and not is_finite(tensor):
                    return Receipt(self.shard, failure=("not_finite", f"{field} of {name} holds NaN or an infinity"))
            hashed = HashingChunks(_parts(state))
            self.store.files.write(self.folder, self.shard, hashed)
            pieces = tuple(
                (self.shard, field, name, start, start + tensor.numel())
                for (field, name, start), tensor in state.tensors
            )
            return Receipt(self.shard, hashed.shard, pieces)
        except Exception as error:  # whatever it is, the other workers wait to hear of it
            return Receipt(self.shard, failure=("write", _reason(error)))

    def refused(self, error: Exception) -> Receipt:
        """What a worker says that could not even copy its state."""
        why = f"no host memory for a copy of the state, {first_line(error)}; checkpoint.write=blocking needs none"
        return Receipt(self.shard, failure=("write", why))

    def refusal(self, receipts: list[Receipt]) -> SaveFailed | None:
        """What the workers that have no shard say, in one sentence."""
        failures = [(rank, *receipt.failure) for rank, receipt in enumerate(receipts) if receipt.failure]
        if not failures:
            return None
        for rank, kind, reason in failures:
            if kind == "not_finite":
                return SaveFailed(kind, self.manifest.step, f"{reason} on worker {rank}")
        return SaveFailed(
            "write", self.manifest.step, "; ".join(f"worker {rank}: {reason}" for rank, _, reason in failures[:3])
        )

    def commit(self, receipts: list[Receipt], before_commit: Callable[[], None] | None) -> CommitResult:
        """On the first worker, after all have written: the checkpoint exists once the manifest is placed."""
        content = b""
        try:
            if before_commit:
                before_commit()
            if unseen := self._unseen(receipts):
                return CommitResult(SaveFailed("not_shared", self.manifest.step, unseen), keep_shards=False)
            content = replace(
                self.manifest,
                pieces=[piece for receipt in receipts for piece in receipt.pieces],
                shards={receipt.name: receipt.shard for receipt in receipts if receipt.shard},
            ).to_bytes()
            self.store.files.place(self.folder, MANIFEST, content)
        except Exception as error:  # whatever it is, the other workers wait to hear of it
            failed = SaveFailed("write", self.manifest.step, f"worker {self.rank}: {_reason(error)}")
            return CommitResult(failed, keep_shards=self._may_be_placed(content))
        return CommitResult(note=self._tidy({receipt.name for receipt in receipts}))

    def discard(self) -> None:
        """Removes this worker's shard of a save that failed."""
        try:
            self.store.files.delete(self.folder, self.shard)
            self.store.files.delete_folder_if_empty(self.folder)
        except Exception:
            # No manifest names it, and pruning takes it with its folder.
            return

    def _unseen(self, receipts: list[Receipt]) -> str | None:
        deadline = time.monotonic() + PATIENCE
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

    def _may_be_placed(self, content: bytes) -> bool:
        """Whether a commit that failed may have left its manifest, as when only the folder's fsync did."""
        try:
            return self.store.files.read(self.folder, MANIFEST) == content
        except FileNotFoundError:
            return False
        except Exception:
            return True

    def _tidy(self, names: set[str]) -> str | None:
        """Deletes what earlier attempts at this step left, and the oldest checkpoints."""
        try:
            for name in self.store.files.sizes(self.folder):
                if name not in names and name != MANIFEST and name.startswith(("shard-", MANIFEST)):
                    self.store.files.delete(self.folder, name)
            self.store.prune(self.keep, self.manifest.step)
        except Exception as error:
            return f"older checkpoints in {self.store.location} could not be deleted ({_reason(error)})."
        return None


def _parts(state: HostCopy | InPlace) -> Iterator[bytes | memoryview]:
    yield header(state.tensors)
    yield from state.regions()


def _size(receipt: Receipt) -> int:
    assert receipt.shard
    return receipt.shard.size


def _reason(error: Exception) -> str:
    where = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
    return f"{first_line(error)}{where}"

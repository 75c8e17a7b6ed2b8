"""Reading one checkpoint, and checking that it is what was written."""

import hashlib
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ditlab.checkpoints.manifest import (
    MANIFEST,
    CheckpointManifest,
    DamagedCheckpoint,
    ShardDigest,
    folder_of,
)
from ditlab.errors import Unreachable, first_line
from ditlab.storage.local import LocalFiles
from ditlab.storage.remote import RemoteFiles
from ditlab_models.layers.lora import merge

LABEL_TABLE = "label.vectors.weight"
"""End of the names of tables of class vectors
(`ditlab_models.layers.embeddings.LabelEmbedding`).
"""
MOMENTS = ("exp_avg", "moment")
"""Beginnings of the names of an optimiser's fields."""


class CheckpointReader:
    """Reader of one committed checkpoint. Raises DamagedCheckpoint where files differ from what was
    written.

    A remote shard is copied into a temporary folder (TMPDIR) when it is first needed, and deleted
    by `close`.
    """

    def __init__(self, files: LocalFiles | RemoteFiles, folder: str, verify: bool) -> None:
        self._files = files
        self._folder = folder
        self._copies: tempfile.TemporaryDirectory[str] | None = None
        self._local: dict[str, Path] = {}
        self._open: dict[str, Any] = {}
        self._grown: dict[str, int] = {}
        self.location = files.location_of(folder)
        place = f"{self.location}/{MANIFEST}"
        try:
            with self._reaching(MANIFEST):
                raw = files.read(folder, MANIFEST)
        except FileNotFoundError:
            raise DamagedCheckpoint(
                f"{self.location}: no {MANIFEST}, so no finished checkpoint; name another one."
            ) from None
        except OSError as error:
            raise DamagedCheckpoint(
                f"{place} cannot be read ({first_line(error)}); use an earlier checkpoint."
            ) from None
        self.manifest = manifest = CheckpointManifest.from_bytes(raw, place)
        if folder_of(manifest.step) != folder:
            raise DamagedCheckpoint(
                f"{place} is that of step {manifest.step}; name the folder "
                f"{folder_of(manifest.step)}."
            )
        try:
            if verify:
                for name in self.manifest.shards:
                    self._verified(name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "CheckpointReader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the shards copied to this machine; tensors that were read stay valid."""
        self._open.clear()
        self._local.clear()
        if self._copies:
            self._copies.cleanup()
            self._copies = None

    @contextmanager
    def _reaching(self, name: str) -> Iterator[None]:
        """Raise Unreachable for errors of a remote store, which prove no damage of a checkpoint."""
        if isinstance(self._files, LocalFiles):
            yield
            return
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # each of fsspec's libraries has exceptions of its own
            raise Unreachable(
                f"{self.location}/{name} cannot be fetched ({first_line(error)}); check the "
                "network, the credentials and the room in TMPDIR."
            ) from error

    def _verified(self, name: str) -> Path:
        """The path on this machine of a shard, after hashing it. Raises DamagedCheckpoint for
        another hash or size.
        """
        expected = self.manifest.shards[name]
        try:
            if isinstance(self._files, LocalFiles):
                path = self._files.file(self._folder, name)
                digest = ""
                size = path.stat().st_size
                if size == expected.size:
                    with path.open("rb") as file:
                        digest = hashlib.file_digest(file, blake3).hexdigest()  # type: ignore[arg-type]
            else:
                with self._reaching(name):
                    path, size, digest = self._copied(self._files, name, expected.size)
        except OSError as error:
            reason = first_line(error)
            if isinstance(error, FileNotFoundError):
                reason = "missing"
            raise DamagedCheckpoint(
                f"{self.location}/{name} cannot be read ({reason}); use an earlier checkpoint."
            ) from None
        if expected != ShardDigest(size, f"blake3:{digest}"):
            raise DamagedCheckpoint(
                f"{self.location}/{name} was altered (its hash differs; {size} bytes, "
                f"{expected.size} were written); use an earlier checkpoint."
            )
        self._local[name] = path
        return path

    def _copied(self, files: RemoteFiles, name: str, expected: int) -> tuple[Path, int, str]:
        """Copy a remote shard, no further than a chunk beyond its `expected` bytes; return the
        copy's path, size and hash.
        """
        if self._copies is None:
            self._copies = tempfile.TemporaryDirectory(prefix="ditlab-checkpoint-")
        path = Path(self._copies.name, name)
        size = 0
        hashed = blake3()
        with path.open("wb") as sink:
            for chunk in files.chunks(self._folder, name):
                sink.write(chunk)
                hashed.update(chunk)
                size += len(chunk)
                if size > expected:
                    break
        return path, size, hashed.hexdigest()

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Shape of each tensor as it is read, by name."""
        shapes = {name: list(shape) for name, shape in self.manifest.shapes.items()}
        for name, more in self._grown.items():
            shapes[name][0] += more
        return shapes

    @cached_property
    def _index(self) -> dict[tuple[str, str], list[tuple[int, int, str]]]:
        index: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
        for shard, kind, name, start, stop in self.manifest.pieces:
            index.setdefault((kind, name), []).append((start, stop, shard))
        return {key: sorted(pieces) for key, pieces in index.items()}

    def has(self, kind: str) -> bool:
        """Return True if the checkpoint holds any piece of a field (`ema`)."""
        return any(key[0] == kind for key in self._index)

    def grow(self, classes: int, before: int) -> list[str]:
        """Read tables of `before` classes as those of `classes`; returns their names.

        A new class begins as the null class, the last row, whose moments are zero: to the network
        it is at first what no class is.
        """
        for name, shape in self.manifest.shapes.items():
            if name.endswith(LABEL_TABLE) and shape[0] == before + 1:
                self._grown[name] = classes - before
        return [*self._grown]

    def read(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        """Values `start` to `stop` of a flattened tensor, joined from its pieces.

        They are float32, but of a frozen parameter as the network computes with it. A table that
        grows has its new rows.
        """
        more = self._grown.get(name)
        if not more:
            return self._joined(kind, name, start, stop)
        shape = self.manifest.shapes[name]
        rows = self._joined(kind, name, 0, math.prod(shape)).reshape(shape)
        null = rows[-1:]
        new = torch.zeros_like(null) if kind.startswith(MOMENTS) else null
        return torch.cat([rows[:-1], new.expand(more, -1), null]).reshape(-1)[start:stop]

    def _joined(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        if start == stop:
            return torch.empty(0)
        parts = []
        position = start
        for low, high, shard in self._index.get((kind, name), ()):
            if low <= position < min(high, stop):
                end = min(high, stop)
                parts.append(self._values(shard, f"{kind}/{name}/{low}", position - low, end - low))
                position = end
        if position != stop:
            raise DamagedCheckpoint(
                f"{self.location}: {kind} of {name} is not whole ({position} of {stop} values "
                "found)."
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _values(self, shard: str, key: str, start: int, stop: int) -> Tensor:
        try:
            if shard not in self._open:
                if isinstance(self._files, LocalFiles):  # another worker hashes it
                    path = self._files.file(self._folder, shard)
                else:
                    path = self._local.get(shard) or self._verified(shard)
                self._open[shard] = safe_open(path, framework="pt")
            values: Tensor = self._open[shard].get_slice(key)[start:stop]
        except (
            SafetensorError,
            OSError,
            ValueError,
            TypeError,
            RuntimeError,
            IndexError,
            OverflowError,
        ) as error:
            raise DamagedCheckpoint(
                f"{self.location}/{shard} cannot be read ({key}: {first_line(error)}); use an "
                "earlier checkpoint."
            ) from None
        if values.shape != (stop - start,):
            raise DamagedCheckpoint(
                f"{self.location}/{shard}: {key} has other values than the manifest says."
            )
        return values

    def field_of(self, name: str, kind: str) -> str:
        """Return the field that holds a tensor among the weights of a kind (`master`, `ema`);
        buffers and frozen parameters, which are in no average, have a field of their own.
        """
        if name in self.manifest.buffers:
            return "buffer"
        if ("frozen", name) in self._index:
            return "frozen"
        return kind

    def frozen(self) -> set[str]:
        """Return the names of the parameters that were not trained."""
        return {name for kind, name in self._index if kind == "frozen"}

    def weights(
        self, averaged: bool = True, prefix: str = "network.", merged: bool = True
    ) -> dict[str, Tensor]:
        """Whole float32 tensors of the network by name, averaged ones if `averaged` and the
        checkpoint has them; if `merged`, adapters are added to their bases.
        """
        kind = "ema" if averaged and self.has("ema") else "master"
        return self.whole(
            lambda name, numel: self.read(self.field_of(name, kind), name, 0, numel), prefix, merged
        )

    def whole(
        self, read: Callable[[str, int], Tensor], prefix: str, merged: bool
    ) -> dict[str, Tensor]:
        """Return the tensors of a prefix as float32 by name; `read` returns the values of one by
        its name and size.
        """
        tensors = {}
        for name, shape in self.manifest.shapes.items():
            if name.startswith(prefix):
                values = read(name, math.prod(shape)).float()
                tensors[name.removeprefix(prefix)] = values.reshape(shape)
        return self.merge(tensors) if merged else tensors

    def merge(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights with the run's adapters added to their bases; the same without any."""
        lora = self.manifest.spec.get("training", {}).get("lora")
        if lora:
            return merge(weights, lora["alpha"] / lora["rank"])
        return weights

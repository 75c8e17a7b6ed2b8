"""The checkpoint format: safetensors shards of named float32 pieces, and a manifest without which nothing counts.

    step-00000200/
        shard-00000-of-00002.safetensors    one a worker: its pieces of master weights, moments, average
        manifest.json                       written last: step, position, spec, place of each piece, hash of each shard

A piece is `parameter[start:stop]` of the flattened parameter, so a checkpoint depends neither on the number of workers
nor on the ZeRO stage that wrote it. Nothing in it is ever unpickled.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ditlab.errors import UserError

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    step: int
    """Optimiser steps done."""
    position: int
    """Samples taken from the training order so far."""
    spec: dict[str, Any]
    """The experiment, resolved."""
    spec_hash: str
    scalars: dict[str, float]
    """Engine state that is no tensor: Adam's step count, the loss scale."""
    shapes: dict[str, list[int]]
    """Shape of each parameter and buffer, by name (`network....`, `objective....`)."""
    buffers: list[str]
    """Which of them are persistent buffers."""
    pieces: list[list[Any]]
    """[shard, field, name, start, stop]; the tensor in the shard is called `field/name/start`."""
    hashes: dict[str, str]
    """SHA-256 of each shard file. The file itself ends with `digest`, that of all the rest."""
    metrics: dict[str, float] = field(default_factory=dict)
    format: int = FORMAT


class CheckpointWriter:
    """Writes one checkpoint: `write_shard` on every worker, then `commit` on one, after all have written."""

    def __init__(self, folder: Path, step: int) -> None:
        self.path = folder / f"step-{step:08d}"

    def write_shard(
        self, rank: int, world_size: int, tensors: dict[tuple[str, str, int], Tensor]
    ) -> tuple[list[list[Any]], dict[str, str]]:
        """Writes and fsyncs this worker's tensors, keyed by (field, name, start); returns its pieces and hash."""
        self.path.mkdir(parents=True, exist_ok=True)
        name = f"shard-{rank:05d}-of-{world_size:05d}.safetensors"
        file = self.path / name
        flat = {
            "/".join(map(str, key)): value.detach().to("cpu").contiguous().clone() for key, value in tensors.items()
        }
        save_file(flat, file)
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
        pieces = [[name, kind, owner, start, start + value.numel()] for (kind, owner, start), value in tensors.items()]
        return pieces, {name: file_hash(file)}

    def commit(self, manifest: Manifest) -> Path:
        """Makes the checkpoint exist."""
        partial = self.path / f"{MANIFEST}.partial"
        content = asdict(manifest)
        with partial.open("w", encoding="utf-8") as handle:
            json.dump({**content, "digest": _digest(content)}, handle)
            handle.flush()
            os.fsync(handle.fileno())
        partial.rename(self.path / MANIFEST)
        for folder in (self.path, self.path.parent):
            descriptor = os.open(folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        for shard in self.path.glob("shard-*.safetensors"):
            if shard.name not in manifest.hashes:  # of a checkpoint of this step that other workers wrote
                shard.unlink()
        return self.path


class CheckpointReader:
    """Reads a committed checkpoint. Raises UserError where manifest or shards are not what they should be."""

    def __init__(self, path: Path, verify: bool = True) -> None:
        self.path = path
        try:
            content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            if content.get("format") != FORMAT:
                raise UserError(
                    f"{path}: checkpoint format {content.get('format')} is not {FORMAT}, the one known here."
                )
            if content.pop("digest", None) != _digest(content):
                raise UserError(f"{path}/{MANIFEST} was altered (SHA-256 differs); use an earlier checkpoint.")
            self.manifest = Manifest(**content)
        except FileNotFoundError:
            raise UserError(f"{path}: no {MANIFEST}, so no finished checkpoint; name another one.") from None
        except (ValueError, TypeError, AttributeError, OSError) as error:
            raise UserError(f"{path}/{MANIFEST} cannot be read ({error}); use an earlier checkpoint.") from None
        if verify:
            self._verify()

    def _verify(self) -> None:
        for name, expected in self.manifest.hashes.items():
            file = self.path / name
            if Path(name).name != name or not file.is_file() or file_hash(file) != expected:
                raise UserError(f"{file} is missing or was altered (SHA-256 differs); use an earlier checkpoint.")

    @cached_property
    def _index(self) -> dict[tuple[str, str], list[tuple[int, int, str]]]:
        index: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
        for shard, kind, name, start, stop in self.manifest.pieces:
            assert shard in self.manifest.hashes, f"{shard} holds pieces but the manifest has no hash of it"
            index.setdefault((kind, name), []).append((start, stop, shard))
        return {key: sorted(pieces) for key, pieces in index.items()}

    @cached_property
    def _open_shards(self) -> dict[str, Any]:
        return {name: safe_open(self.path / name, framework="pt") for name in self.manifest.hashes}

    def has(self, kind: str) -> bool:
        """Whether any piece of a field (`ema`) is there."""
        return any(key[0] == kind for key in self._index)

    def read(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        """Values `start` to `stop` of a flattened tensor, from however many pieces they lie in."""
        parts, position = [], start
        for low, high, shard in self._index.get((kind, name), ()):
            if low <= position < min(high, stop):
                piece = self._open_shards[shard].get_slice(f"{kind}/{name}/{low}")
                end = min(high, stop)
                parts.append(piece[position - low : end - low])
                position = end
        if position != stop:
            raise UserError(f"{self.path}: {kind} of {name} is not whole ({position} of {stop} values found).")
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def weights(self, averaged: bool = True, prefix: str = "network.") -> dict[str, Tensor]:
        """Whole float32 tensors of the network by name, from the average where asked for and there is one."""
        kind = "ema" if averaged and self.has("ema") else "master"
        tensors = {}
        for name, shape in self.manifest.shapes.items():
            if name.startswith(prefix):
                numel = int(torch.Size(shape).numel())
                field_of = "buffer" if name in self.manifest.buffers else kind
                tensors[name.removeprefix(prefix)] = self.read(field_of, name, 0, numel).reshape(shape)
        return tensors


def checkpoints_in(folder: Path) -> list[Path]:
    """Committed checkpoints in a run's checkpoint folder, oldest first."""
    return [path for path in _step_folders(folder) if (path / MANIFEST).exists()]


def _step_folders(folder: Path) -> list[Path]:
    """`step-` and digits only, oldest first: a copy that somebody put beside them (`step-00000200.bak`) is theirs."""
    return sorted(path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal())


def newest_checkpoint(folder: Path, warn: Any = None) -> CheckpointReader | None:
    """The newest whole checkpoint; a damaged one is passed over and reported through `warn`."""
    for path in reversed(checkpoints_in(folder)):
        try:
            return CheckpointReader(path)
        except UserError as error:
            if warn:
                warn(f"{error} Falling back to the one before.")
    return None


def prune(folder: Path, keep: int, newest: Path) -> Iterator[Path]:
    """Deletes all but the `keep` committed checkpoints up to `newest`, and folders without a manifest before those.

    Later ones than `newest`, which has just been written, are those that a resume passed over as damaged: they count
    for nothing, or they would drive out whole ones.
    """
    kept = [path for path in checkpoints_in(folder) if path <= newest][-keep:]
    for path in _step_folders(folder):
        if kept and path < kept[0]:
            # The manifest goes first: a deletion cut short leaves no checkpoint that looks whole.
            (path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path)
            yield path


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _digest(content: dict[str, Any]) -> str:
    """SHA-256 of a manifest without its digest, whatever its layout."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

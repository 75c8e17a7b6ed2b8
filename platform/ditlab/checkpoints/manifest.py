"""The manifest of a checkpoint, and its bytes, which are a function of its fields.

Every byte counts: a manifest ends with the SHA-256 of everything before, so that not even a changed
space passes.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ditlab.errors import UserError

FORMAT = 4
MANIFEST = "manifest.json"

Natural = Annotated[int, Field(ge=0)]
ShardPiece = tuple[str, str, str, Natural, Natural]
HOLD = "fork-"
_SHARD = re.compile(r"shard-\d{5,}-of-\d{5,}-[0-9a-f]{8}\.safetensors")


class DamagedCheckpoint(UserError):
    """A checkpoint differs from what was written; an earlier one may be whole."""


@dataclass(frozen=True)
class ShardDigest:
    """Size and hash of a shard's file."""

    size: Natural
    """Bytes."""
    hash: Annotated[str, Field(pattern=r"^blake3:[0-9a-f]{64}$")]
    """Name of the hash, and that of the file's bytes in hexadecimal."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class CheckpointManifest:
    """Description of a checkpoint. The step loop fills in all fields but `pieces` and `shards`."""

    step: Natural
    """Optimiser steps done."""
    position: Natural
    """Samples taken from the training order so far."""
    spec: dict[str, Any]
    """The experiment, resolved."""
    spec_hash: str
    scalars: dict[str, float]
    """Numbers of the engine's state: Adam's step count, the loss scale."""
    shapes: dict[str, list[Natural]]
    """Shape of each parameter and buffer, by name (`network....`, `objective....`)."""
    buffers: list[str]
    """Names of the persistent buffers among them."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Latest value of each metric, by its MLflow name."""
    pieces: list[ShardPiece] = field(default_factory=list)
    """(shard, field, name, start, stop); the shard holds the tensor under the key
    `field/name/start`.
    """
    shards: dict[str, ShardDigest] = field(default_factory=dict)
    """Digest of every shard, by its file's name."""
    numerics: Natural = 1
    """Version of the numbers that wrote it (`ditlab.numerics`)."""
    draws: list[Natural] = field(default_factory=list)
    """How often each stream of each part of a mixture was drawn before `position`; [] for other
    data.
    """
    blocks: str = "eager"
    """Origin of the blocks' numbers (`ditlab.spec.compiling`)."""
    receipt: dict[str, str] = field(default_factory=dict)
    """Head of the chain of receipts that lead here (`chain`), the step that it counts from
    (`since`), and hashes of code, data, spec and versions; {} where there are none.
    """
    format: int = FORMAT

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def to_bytes(self) -> bytes:
        """JSON without spaces, its last field the SHA-256 of the same without that field."""
        return _sealed(json.dumps(asdict(self), separators=(",", ":")).encode())

    def state_digest(self) -> str:
        """Return a hash over the state alone: equal for two saves of the same numbers by as many
        workers.
        """
        shards = sorted(digest.hash for digest in self.shards.values())
        state = [
            self.step,
            self.position,
            self.scalars,
            self.shapes,
            self.buffers,
            self.draws,
            shards,
        ]
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_bytes(cls, raw: bytes, place: str) -> "CheckpointManifest":
        """Parse the bytes that `to_bytes` wrote. Raises UserError for another format, and
        DamagedCheckpoint, naming `place`, for anything else.
        """
        body = raw[:-_SEAL_LENGTH] + b"}"
        if _sealed(body) != raw:
            raise DamagedCheckpoint(
                f"{place} was altered (its SHA-256 differs); use an earlier checkpoint."
            )
        content = json.loads(body)
        written = content.get("format")
        if written != FORMAT:
            raise UserError(
                f"{place} has checkpoint format {str(written)[:20]}, and this version reads "
                f"format {FORMAT}; use the version of DiTLab that wrote it, or start a new run."
            )
        try:
            manifest = _adapter.validate_python(content)
        except ValidationError as error:
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise DamagedCheckpoint(
                f"{place} cannot be read ({reason}); use an earlier checkpoint."
            ) from None
        for name in {*manifest.shards, *(piece[0] for piece in manifest.pieces)}:
            # such a name leads to no other folder
            if not _SHARD.fullmatch(name) or name not in manifest.shards:
                raise DamagedCheckpoint(
                    f"{place} names {name!r}, which is no shard of it; use an earlier checkpoint."
                )
        return manifest


_adapter = TypeAdapter(CheckpointManifest)


def _sealed(body: bytes) -> bytes:
    """Return a JSON object's text, which ends with `}`, with its SHA-256 as the last field."""
    return b'%b,"digest":"%b"}\n' % (body[:-1], hashlib.sha256(body).hexdigest().encode())


_SEAL_LENGTH = len(_sealed(b"{}")) - len(b"{")


def shard_name(rank: int, world_size: int, attempt: str) -> str:
    """The name of a shard's file; `attempt` (eight hexadecimal digits) is new for each save: no
    name is used twice.
    """
    return f"shard-{rank:05d}-of-{world_size:05d}-{attempt}.safetensors"


def folder_of(step: int) -> str:
    """The name of a checkpoint's folder."""
    return f"step-{step:08d}"


def is_step(folder: str) -> bool:
    """Return True if a folder's name is one that `folder_of` gives, unlike a user's copy
    (`step-00000200.bak`).
    """
    return re.fullmatch(r"step-[0-9]+", folder) is not None and folder_of(step_of(folder)) == folder


def step_of(folder: str) -> int:
    """The step in the name of a checkpoint's folder."""
    return int(folder.removeprefix("step-"))


def committed(listing: Mapping[str, Mapping[str, int]]) -> list[int]:
    """Steps of the folders with a manifest, oldest first; `listing` has the files' sizes by folder
    and name.
    """
    return sorted(
        step_of(folder)
        for folder, files in listing.items()
        if is_step(folder) and MANIFEST in files
    )


def is_hold(name: str) -> bool:
    """Return True if a file of a checkpoint's folder marks that a fork needs it: `HOLD`, and the
    fork's run id.
    """
    return name.startswith(HOLD) and not name.endswith(".partial")


def is_held(files: Collection[str]) -> bool:
    """Return True if forks hold a checkpoint, by the files of its folder; False where it has no
    manifest.
    """
    return MANIFEST in files and any(map(is_hold, files))

"""Plan of an import: its input as numbered, fixed blocks, a function of the source and the options alone."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ditlab.data.block_imports.listing import SourceFile
from ditlab.data.stores.bucket_writer import PARTIAL

VERSION = 1
"""Version of the plans: another one begins imports anew."""
LEAST_BYTES, MOST_BYTES = 16 * 2**20, 2**30
"""Bounds of a block's input in bytes: about a second of decoding, and as much as is done again after a kill."""
BLOCKS = 256
"""Blocks of an import between these bounds: enough for the cores of a few nodes to end at about the same time."""
MOST_FILES = 16_384
"""Most files of a block."""


@dataclass(frozen=True)
class InputBlock:
    """Part of an import's input, which is read by one task."""

    number: int
    files: tuple[SourceFile, ...]
    """Files that are read, in this order."""
    kind: str = ""
    """Kind of the files, where an importer reads several."""
    start: int = 0
    """First byte, row group or row of its only file; 0 for whole files."""
    stop: int | None = None
    """End of that range; None: the file's."""
    first_row: int = 0
    """Number of its first row in that file, for people."""
    beside: tuple[SourceFile, ...] = ()
    """Files that belong to those that are read, such as captions."""
    detail: Any = None
    """Values for this block alone, which can be written as JSON."""

    @property
    def prefix(self) -> str:
        """Prefix of the names of its shards: `block-0000012`."""
        return f"block-{self.number:07d}"

    @property
    def bytes(self) -> int:
        """Bytes of its input, as far as its files' sizes say."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class ImportPlan:
    """Blocks of an import, and the fingerprint of all that its result depends on."""

    blocks: Sequence[InputBlock]
    fingerprint: str
    """SHA-256 (hex) of the source's listing (names, sizes, times of change), the blocks' cuts and the options."""
    records: int | None = None
    """Records of all blocks, for the time left; None where they are not known beforehand."""

    @classmethod
    def of(
        cls, kind: str, blocks: Sequence[InputBlock], options: Mapping[str, Any], records: int | None = None
    ) -> "ImportPlan":
        """Make a plan. `options`: all that changes the result, as values of JSON; neither name nor processes."""
        digest = hashlib.sha256(json.dumps([kind, VERSION, dict(options)], sort_keys=True, default=str).encode())
        for block in blocks:
            digest.update(json.dumps(list(_described(block)), default=str).encode())
        return cls(tuple(blocks), digest.hexdigest(), records)


def _described(block: InputBlock) -> Iterator[Any]:
    yield from (block.number, block.kind, block.start, block.stop, block.first_row, block.detail)
    for files in (block.files, block.beside):
        yield [(file.root, file.name, file.size, file.stamp) for file in files]


def partial_folder(path: Path, plan: ImportPlan) -> Path:
    """Return the folder of a plan's unfinished import below its store's."""
    return path / f"{PARTIAL}{plan.fingerprint[:32]}"


def block_bytes(total: int) -> int:
    """Return the bytes of a block of a source of `total` bytes, a function of these alone."""
    return min(MOST_BYTES, max(LEAST_BYTES, total // BLOCKS))


def group_files(
    files: Iterable[SourceFile], most_bytes: int, most_files: int = MOST_FILES
) -> Iterator[tuple[SourceFile, ...]]:
    """Group files in their order, each group up to some bytes; a larger file is a group of its own."""
    group: list[SourceFile] = []
    size = 0
    for file in files:
        if group and (size + file.size > most_bytes or len(group) == most_files):
            yield tuple(group)
            group, size = [], 0
        group.append(file)
        size += file.size
    if group:
        yield tuple(group)


@dataclass
class BlockNumbers:
    """Maker of blocks that are numbered in the order of their making."""

    blocks: list[InputBlock] = field(default_factory=list)

    def add(self, files: Sequence[SourceFile], kind: str = "", **fields: Any) -> InputBlock:
        """Append a block."""
        block = InputBlock(len(self.blocks), tuple(files), kind, **fields)
        self.blocks.append(block)
        return block

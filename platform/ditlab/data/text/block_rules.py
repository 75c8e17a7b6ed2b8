"""Rules by which a block of documents becomes shards of rows of tokens."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.block_imports.receipt import MOST_LISTED, BlockReceipt, LeftOut, total_counts
from ditlab.data.block_imports.runner import RefusedSource
from ditlab.data.source_files import BadRecord, visible_name
from ditlab.data.stores.manifest import Column
from ditlab.data.text.block_documents import block_pieces
from ditlab.data.text.pieces import TextPiece
from ditlab.data.text.tokenizer import TOKENIZER_NAME, Tokenizer
from ditlab.data.text.tokenizer_files import open_tokenizer
from ditlab.data.text.tokenizing import Packer, encode

UNREADABLE = "unreadable"
"""Reason for which documents are left out."""
DOCUMENTS, BYTES, TOKENS = "documents", "bytes", "tokens"
"""Names of the sums of blocks."""
REST, FIRST = "rest", "first problem"
"""Keys of a receipt's detail: tokens that filled no row, in base64; the message on the first unreadable document."""


def token_columns(tokenizer: Tokenizer, length: int) -> dict[str, Column]:
    """Return the columns of a store of tokens."""
    tokens = Column(
        dtype=tokenizer.dtype,
        shape=(length,),
        num_classes=tokenizer.vocabulary,
        unit="token",
        description=f"documents joined by token {tokenizer.end}",
    )
    return {"tokens": tokens}


@dataclass(frozen=True)
class TextRules:
    """Rules of an import of text, without state; the tokeniser lies in the import's folder."""

    tokenizer: str
    """SHA-256 of the tokeniser's file."""
    column: str
    length: int
    """Tokens of a row."""
    refuses: bool
    """True where no document may be left out."""

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Tokenise a block's documents, in their order, and write their rows.

        The tokens behind the last whole row go into the receipt: rows are made of those of all blocks in the end.
        Raises RefusedSource for a document that may not be left out, and UserError as `block_pieces` does.
        """
        from ditlab.data.stores.shards import write_shards

        tokenizer = _open(folder / TOKENIZER_NAME, self.tokenizer)
        left_out, packer = _LeftOutRecords(block, self.refuses), Packer(self.length)
        counter = PieceCounter(block_pieces(block, self.column, left_out.add))
        rows = ({"tokens": part} for part in packer.rows(encode(counter, tokenizer)))
        shards = write_shards(folder, block.prefix, token_columns(tokenizer, self.length), rows)
        rest = packer.rest(tokenizer.dtype)
        return BlockReceipt(
            block=block.number,
            rows=sum(each.shard.rows for each in shards),
            parts={".": tuple(shards)},
            left_out={UNREADABLE: left_out.num} if left_out.num else {},
            listed=tuple(left_out.listed),
            counts={DOCUMENTS: counter.documents, BYTES: counter.bytes, TOKENS: packer.tokens},
            detail={REST: b64encode(rest.tobytes()).decode(), FIRST: left_out.first},
        )


@lru_cache(maxsize=1)
def _open(file: Path, sha256: str) -> Tokenizer:
    tokenizer = open_tokenizer(file)
    assert tokenizer.fingerprint == sha256, f"{file} is the tokeniser of another import"
    return tokenizer


@dataclass
class PieceCounter:
    """Iterator over pieces that counts documents and bytes."""

    pieces: Iterable[TextPiece]
    documents: int = 0
    bytes: int = 0

    def __iter__(self) -> Iterator[TextPiece]:
        for piece in self.pieces:
            self.documents += piece.last
            self.bytes += piece.num_bytes
            yield piece


@dataclass
class _LeftOutRecords:
    """Documents of a block that cannot be read."""

    block: InputBlock
    refuses: bool
    num: int = 0
    listed: list[LeftOut] = field(default_factory=list)
    first: str = ""

    def add(self, record: BadRecord) -> None:
        """Count a document. Raises RefusedSource where none may be left out."""
        if self.refuses:
            raise RefusedSource(str(record))
        self.num += 1
        self.first = self.first or str(record)
        if len(self.listed) < MOST_LISTED:
            root = f"{visible_name(self.block.files[0].root).rstrip('/')}/"
            self.listed.append(LeftOut(place=record.place.removeprefix(root), reason=UNREADABLE, detail=record.reason))


def joined_rests(receipts: Sequence[BlockReceipt], dtype: str, length: int) -> np.ndarray:
    """Return rows (rows, length) of the tokens that filled none in their blocks, block after block."""
    parts = [np.frombuffer(b64decode(receipt.detail[REST]), dtype) for receipt in receipts]
    joined = np.concatenate([np.empty(0, dtype), *parts])
    return joined[: len(joined) // length * length].reshape(-1, length)


def sums_of(receipts: Sequence[BlockReceipt]) -> dict[str, int]:
    """Return the sums of all blocks by name."""
    return total_counts(receipt.counts for receipt in receipts)

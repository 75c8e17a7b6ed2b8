"""Documents of a block of a source, cut into pieces that are tokenised one by one, whatever their
size.

A document whose text repeats an earlier one's, byte for byte, is found by a reading of its own,
then dropped: a row of tokens holds parts of several documents, so that rows of one text cannot be
kept on one side of a split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from ditlab.data.import_blocks import BlockReceipt, InputBlock, packed, unpacked
from ditlab.data.source_files import UNREADABLE, BadRecord, SourceFile
from ditlab.data.sources.lines import text_between
from ditlab.data.sources.records import SourceRecord, read_records, text_problem
from ditlab.data.stores.duplicates import DIGEST_BYTES, duplicate_rows
from ditlab.errors import first_line

PIECE_LENGTH = 2**18
"""Most characters of a document that are tokenised at once."""

Drop = Callable[[SourceRecord], None]
"""Function that counts a record by its problem, or raises that where none may be dropped; without
one it has no text."""
DUPLICATE = "repeating an earlier one"
"""Reason of documents whose text is an earlier one's."""
DIGESTS = "digests"
"""Key of a receipt's detail: the digests of its documents."""
IN_MEMORY = 2**26
"""Most bytes of a text file that is kept while it is checked; a larger one is read twice."""


@dataclass(frozen=True)
class TextPiece:
    """Part of a document."""

    text: str
    last: bool
    """True for the last piece of its document: an end token follows."""
    place: str = ""
    """Place of its document, for people."""

    @property
    def num_bytes(self) -> int:
        """Bytes of its text in UTF-8."""
        if self.text.isascii():
            return len(self.text)
        return len(self.text.encode())


def pieces(document: Iterable[str], place: str = "") -> Iterator[TextPiece]:
    """Cut a document of any size into pieces of up to PIECE_LENGTH characters; none for a document
    without text. `place`: the document's, for people.

    A piece ends at a line's end between two characters that are no space, where the usual
    pre-tokenisers cut as well, so that the pieces give the tokens of the whole; else before a lone
    space; else anywhere.
    """
    rest = ""
    for block in document:
        for start in range(0, len(block), PIECE_LENGTH):
            rest += block[start : start + PIECE_LENGTH]
            while len(rest) > PIECE_LENGTH:
                stop = _cut(rest)
                yield TextPiece(rest[:stop], last=False, place=place)
                rest = rest[stop:]
    if rest:
        yield TextPiece(rest, last=True, place=place)


def _cut(text: str) -> int:
    for mark, behind in (("\n", 1), (" ", 0)):
        at = text.rfind(mark, 1, PIECE_LENGTH)
        while at > 0:
            if not (text[at - 1].isspace() or text[at + 1].isspace()):
                return at + behind
            at = text.rfind(mark, 1, at)
    return PIECE_LENGTH


def beginning(pieces: Iterable[TextPiece], num_bytes: int | None) -> Iterator[TextPiece]:
    """Iterate over pieces of about `num_bytes` (None: all); a document that is cut ends there."""
    found = 0
    for piece in pieces:
        found += piece.num_bytes
        if num_bytes is not None and found >= num_bytes:
            yield replace(piece, last=True)
            return
        yield piece


def block_pieces(block: InputBlock, column: str, drop: Drop) -> Iterator[TextPiece]:
    """Iterate over the pieces of a block's documents.

    Text files: a file is a document, which counts as a whole or not at all; a large one has several
    blocks. Other kinds: one a record, in a column. UTF-8. Raises UserError for a column that is not
    there.
    """
    if block.kind == "txt":
        for file in block.files:
            yield from _file_pieces(file, block, drop)
        return
    for record in read_records(block, {"--column": column}):
        text: Any = record.values[0] if record.values else None
        problem = record.problem or text_problem("--column", column, text)
        if text and not problem:
            yield from pieces([text], record.place)
        else:
            drop(replace(record, problem=problem))


def _file_pieces(file: SourceFile, block: InputBlock, drop: Drop) -> Iterator[TextPiece]:
    """Iterate over the pieces of a block's part of a text file, which is read to its end first: it
    may be no UTF-8.
    """

    def read() -> Iterator[str]:
        return text_between(file, block.start, block.stop)

    record = SourceRecord(file, "")
    try:
        is_kept = file.size <= IN_MEMORY and not file.compression
        kept = deque(read(), maxlen=None if is_kept else 0)
    except BadRecord as problem:
        drop(replace(record, problem=problem))
        return
    except UNREADABLE as error:
        finding = f"cannot be read ({first_line(error)})"
        drop(replace(record, problem=BadRecord(finding, "check the file")))
        return
    last = block.stop is None or block.stop >= file.size
    empty = True
    for piece in pieces(kept or read(), record.place):
        empty = False
        if not last:
            piece = replace(piece, last=False)
        yield piece
    if empty and last and block.start:
        yield TextPiece(
            "", last=True, place=record.place
        )  # the document's text ended in the block before
    elif empty and last:
        drop(record)


@dataclass(frozen=True)
class DocumentRules:
    """Rules that take the digest of each document of a block. They write no shards."""

    column: str
    limit: int | None = None
    """Bytes of text of a block that are read; None: all."""

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Read a block's documents. Raises UserError as `block_pieces` does."""
        digests: list[bytes] = []
        document = blake3()
        is_whole = True
        for piece in beginning(block_pieces(block, self.column, lambda record: None), self.limit):
            document.update(piece.text.encode())
            is_whole = piece.last
            if is_whole:
                digests.append(document.digest(length=DIGEST_BYTES))
                document = blake3()
        if not is_whole:  # it goes on in the next block
            digests.append(document.digest(length=DIGEST_BYTES))
        found = np.frombuffer(b"".join(digests), np.uint64)
        return BlockReceipt(
            block=block.number, rows=len(found), parts={}, detail={DIGESTS: packed(found)}
        )


def mark_repeats(
    blocks: Sequence[InputBlock], receipts: Sequence[BlockReceipt]
) -> list[InputBlock]:
    """Return blocks whose `detail` lists the documents, by number in the block, that repeat an
    earlier one. `receipts`: those of `DocumentRules`, in order.

    A text file that is cut into several blocks is compared as a whole.
    """
    digests = {receipt.block: unpacked(receipt.detail[DIGESTS], np.uint64) for receipt in receipts}
    read = [block for block in blocks if block.number in digests]
    units: list[np.ndarray] = []
    places: list[tuple[list[InputBlock], int]] = []
    """Blocks of each unit: one, or those of a file that is cut."""
    for _, group in groupby(read, _cut_file):
        parts = list(group)
        found = [digests[part.number] for part in parts]
        if len(parts) > 1:
            whole = blake3(np.concatenate(found).tobytes()).digest(length=DIGEST_BYTES)
            found = [np.frombuffer(whole, np.uint64)]
        units += found
        places.append((parts, len(found[0])))
    if not units:
        return list(blocks)
    ends = np.cumsum([num for _, num in places])
    repeated: dict[int, list[int]] = {}
    for document in duplicate_rows(np.concatenate(units)).rows.tolist():
        number = int(np.searchsorted(ends, document, side="right"))
        parts, num = places[number]
        for part in parts:
            repeated.setdefault(part.number, []).append(document - (int(ends[number]) - num))
    return [
        replace(block, detail=repeated[block.number]) if block.number in repeated else block
        for block in blocks
    ]


def _cut_file(block: InputBlock) -> object:
    """Return a key that blocks of one text file share, and no others."""
    if block.kind == "txt" and block.stop is not None:
        return block.files
    return block.number


def without_repeats(
    pieces: Iterable[TextPiece], repeats: Collection[int], drop: Callable[[str], None]
) -> Iterator[TextPiece]:
    """Iterate over the pieces of a block's documents but some, by number. `drop` gets the place of
    each of these.
    """
    number = 0
    for piece in pieces:
        if number not in repeats:
            yield piece
        elif piece.last:
            drop(piece.place)
        number += piece.last

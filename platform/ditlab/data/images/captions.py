"""Captions as a column: UTF-8 bytes of one length, 0 behind the end."""

from collections.abc import Sequence

import numpy as np

from ditlab.data.stores.manifest import Column

LABEL = "label"
"""Name of the column of classes."""


def caption_column(length: int) -> Column:
    """Return the column of captions of at most `length` bytes."""
    return Column(
        dtype="uint8",
        shape=(length,),
        num_classes=256,
        unit="byte",
        description="caption in UTF-8, 0 behind its end",
    )


def cut(caption: bytes, length: int) -> bytes:
    """Cut a caption to at most `length` bytes, without a character that the cut would split."""
    if len(caption) <= length:
        return caption
    while length and caption[length] & 0b1100_0000 == 0b1000_0000:
        length -= 1
    return caption[:length]


def encode_captions(captions: Sequence[bytes], length: int) -> np.ndarray:
    """Encode UTF-8 texts of at most `length` bytes each as rows of a caption column, uint8
    (len(captions), length).
    """
    rows = np.zeros((len(captions), length), np.uint8)
    for row, caption in zip(rows, captions, strict=True):
        row[: len(caption)] = np.frombuffer(caption, np.uint8)
    return rows


def decode_captions(rows: np.ndarray) -> list[str]:
    """Decode rows of a caption column, (num, length), to texts; bytes that are no UTF-8 become
    U+FFFD.
    """
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]

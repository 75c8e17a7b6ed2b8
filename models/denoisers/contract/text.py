"""Tokens as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TextCodec:
    """Conversion between text and the tokens of a data set."""

    encode: Callable[[str], list[int]]
    """Text to tokens, without an end token."""
    decode: Callable[[Sequence[int]], str]
    """Tokens to text; an end token shows."""
    vocabulary: int
    end: int
    """Token at the end of every document."""
    bytes_per_token: float | None = None
    """Bytes of UTF-8 per token of the data, on average; None where the data are not at hand."""
    packing: Literal["joined", "masked"] = "joined"
    """Attention among the documents of a row. `joined`: a token attends to all of its row; `masked`: to those of its
    document."""

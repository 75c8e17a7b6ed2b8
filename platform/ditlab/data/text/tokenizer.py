"""Tokeniser between text and token ids, kept as `tokenizer.json` by stores, runs and exports."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.errors import UserError

TOKENIZER_NAME = "tokenizer.json"
END_TEXT = "<|endoftext|>"
"""Text of an end token."""
FORMAT = "ditlab-tokenizer"
"""Value of `format` in the file of a byte tokeniser."""


class Tokenizer(ABC):
    """Tokeniser with ids in [0, vocabulary); `end` follows every document, and no text encodes to it."""

    def __init__(self, kind: str, vocabulary: int, end: int, content: bytes):
        self.kind = kind
        """`bytes`, else the model type of a Hugging Face tokeniser: `bpe`, `unigram`, `wordpiece`."""
        self.vocabulary = vocabulary
        self.end = end
        self.content = content
        """Content of its file: our own JSON for bytes, Hugging Face's for any other."""

    @abstractmethod
    def ids(self, text: str) -> np.ndarray:
        """Return the text's tokens, (tokens,) in `dtype`, without an end token."""

    @abstractmethod
    def _text(self, ids: list[int]) -> str: ...

    def encode(self, text: str) -> list[int]:
        """Return the text's tokens, without an end token."""
        encoded: list[int] = self.ids(text).tolist()
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """Return the tokens' text: an end token is <|endoftext|>, an incomplete character U+FFFD.

        Raises UserError for a token beyond the vocabulary.
        """
        ids = [int(token) for token in ids]
        beyond = next((token for token in ids if not 0 <= token < self.vocabulary), None)
        if beyond is not None:
            raise UserError(
                f"token {beyond} is beyond the tokeniser's vocabulary of {self.vocabulary}; use the "
                f"{TOKENIZER_NAME} that the tokens were made with."
            )
        return self._text(ids)

    @property
    def dtype(self) -> str:
        """Smallest of a store's types that holds every token: uint8, uint16 or int32."""
        return "uint8" if self.vocabulary <= 2**8 else "uint16" if self.vocabulary <= 2**16 else "int32"

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of its file, as under `attachments` in a store's manifest."""
        return hashlib.sha256(self.content).hexdigest()

    def save(self, folder: Path) -> Path:
        """Write `tokenizer.json` into a folder, which is created; `open_tokenizer` reads it."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / TOKENIZER_NAME
        file.write_bytes(self.content)
        return file


class ByteTokenizer(Tokenizer):
    """Tokeniser whose tokens are the bytes of UTF-8, with all 256 of them as vocabulary.

    The end token is byte 255, which UTF-8 never uses (RFC 3629, section 3), so it needs no 257th value, no text encodes
    to it, and a token fits a byte of the store.
    """

    def __init__(self) -> None:
        facts: dict[str, Any] = {"kind": "bytes", "vocabulary": 256, "end": 255}
        content = json.dumps({"format": FORMAT, "version": 1, **facts}, indent=1) + "\n"
        super().__init__(**facts, content=content.encode())

    def ids(self, text: str) -> np.ndarray:
        """Return the bytes of the text, uint8 (bytes,)."""
        return np.frombuffer(text.encode(), np.uint8)

    def _text(self, ids: list[int]) -> str:
        documents = bytes(ids).split(bytes([self.end]))
        return END_TEXT.join(document.decode(errors="replace") for document in documents)

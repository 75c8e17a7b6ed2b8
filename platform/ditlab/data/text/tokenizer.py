"""Between text and token ids: the tokeniser that a store, a run and an export carry as `tokenizer.json`."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from denoisers.contract import TextCodec
from ditlab.errors import UserError

if TYPE_CHECKING:  # torch, which the processes that tokenise can do without
    from ditlab.data.stores.bucketed_store import AnyStore

TOKENIZER_NAME = "tokenizer.json"
END_TEXT = "<|endoftext|>"
"""How an end token reads."""
FORMAT = "ditlab-tokenizer"


class Tokenizer(ABC):
    """Token ids lie in [0, vocabulary); `end` follows every document, and no text gives it."""

    def __init__(self, kind: str, vocabulary: int, end: int, content: bytes):
        self.kind = kind
        """`bytes`, else what a Hugging Face tokeniser calls its model: `bpe`, `unigram`, `wordpiece`."""
        self.vocabulary = vocabulary
        self.end = end
        self.content = content
        """Of its file: our own JSON for bytes, Hugging Face's for any other."""

    @abstractmethod
    def ids(self, text: str) -> np.ndarray:
        """The text's tokens, (tokens,) in `dtype`, without an end token."""

    @abstractmethod
    def _text(self, ids: list[int]) -> str: ...

    def encode(self, text: str) -> list[int]:
        """The text's tokens, without an end token."""
        encoded: list[int] = self.ids(text).tolist()
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """The tokens' text; an end token reads <|endoftext|>, a character that is cut off U+FFFD.

        Raises UserError for a token that the vocabulary does not hold.
        """
        ids = [int(token) for token in ids]
        beyond = next((token for token in ids if not 0 <= token < self.vocabulary), None)
        if beyond is not None:
            raise UserError(
                f"token {beyond} is beyond the tokeniser's vocabulary of {self.vocabulary}; take the "
                f"{TOKENIZER_NAME} that the tokens were made with."
            )
        return self._text(ids)

    @property
    def dtype(self) -> str:
        """The smallest of a store's types that holds every token: uint8, uint16 or int32."""
        return "uint8" if self.vocabulary <= 2**8 else "uint16" if self.vocabulary <= 2**16 else "int32"

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of its file: a store's manifest has it under `attachments`."""
        return hashlib.sha256(self.content).hexdigest()

    def save(self, folder: Path) -> Path:
        """Write `tokenizer.json` into a folder, which is made; `open_tokenizer` reads it."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / TOKENIZER_NAME
        file.write_bytes(self.content)
        return file


class ByteTokenizer(Tokenizer):
    """A token is a byte of UTF-8, and the vocabulary all 256 of them.

    The end token is byte 255, which UTF-8 never uses (RFC 3629, section 3), so it needs no 257th value, no text gives
    it, and a token fits a byte of the store.
    """

    def __init__(self) -> None:
        facts: dict[str, Any] = {"kind": "bytes", "vocabulary": 256, "end": 255}
        content = json.dumps({"format": FORMAT, "version": 1, **facts}, indent=1) + "\n"
        super().__init__(**facts, content=content.encode())

    def ids(self, text: str) -> np.ndarray:
        """The bytes of the text, uint8 (bytes,)."""
        return np.frombuffer(text.encode(), np.uint8)

    def _text(self, ids: list[int]) -> str:
        documents = bytes(ids).split(bytes([self.end]))
        return END_TEXT.join(document.decode(errors="replace") for document in documents)


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokeniser of a file, or of the `tokenizer.json` in a folder: a store's, a run's, an export's.

    Raises UserError where there is none, it cannot be read, or its library is not installed.
    """
    file = path / TOKENIZER_NAME if path.is_dir() else path
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({error.strerror}); name a {TOKENIZER_NAME}, or a folder that holds one."
        ) from error
    return load_tokenizer(content, str(file))


def load_tokenizer(content: bytes, origin: str) -> Tokenizer:
    """The tokeniser whose file has this content; `origin` names it in messages. Raises what `open_tokenizer` does."""
    try:
        facts = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{origin} is no tokeniser: it is not JSON ({error}); name another file.") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        from ditlab.data.text.huggingface_tokenizer import HuggingFaceTokenizer

        return HuggingFaceTokenizer(content, origin)
    plain = ByteTokenizer()
    if facts != json.loads(plain.content):
        raise UserError(f"{origin} holds a tokeniser that this ditlab does not know; it knows {plain.kind}, version 1.")
    return plain


def store_tokenizer(store: "AnyStore") -> Tokenizer | None:
    """The tokeniser of a store of tokens, None of any other. Raises what `open_tokenizer` does."""
    return open_tokenizer(store.path) if TOKENIZER_NAME in store.manifest.attachments else None


def codec(tokenizer: Tokenizer, bytes_per_token: float | None = None) -> TextCodec:
    """The tokeniser as families take it."""
    return TextCodec(tokenizer.encode, tokenizer.decode, tokenizer.vocabulary, tokenizer.end, bytes_per_token)


def store_codec(store: "AnyStore") -> TextCodec | None:
    """How a store's tokens read; None of a store without a tokeniser. Raises what `open_tokenizer` does."""
    tokenizer, text = store_tokenizer(store), store.manifest.text
    return None if tokenizer is None else codec(tokenizer, text.bytes_per_token if text else None)


def attach(store: "AnyStore", folder: Path) -> Path | None:
    """Copy a store's tokeniser into the folder of a run or of an export; None where the store has none.

    Needs no library, whatever the tokeniser. Raises OSError where the folder cannot be written.
    """
    if TOKENIZER_NAME not in store.manifest.attachments:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / TOKENIZER_NAME
    file.write_bytes((store.path / TOKENIZER_NAME).read_bytes())
    return file

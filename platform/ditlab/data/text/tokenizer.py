"""Tokenisers between text and ids: bytes, or those of the library `tokenizers`; kept as
`tokenizer.json`.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from ditlab.errors import UserError, first_line
from ditlab.spec.data import Packing
from ditlab.storage.plain_files import MIB, read_plain
from ditlab_models.contract import TextCodec

if TYPE_CHECKING:
    from ditlab.data.stores.bucketed_store import AnyStore


TOKENIZER_NAME = "tokenizer.json"
END_TEXT = "<|endoftext|>"
"""Text of an end token."""
FORMAT = "ditlab-tokenizer"
"""Value of `format` in the file of a byte tokeniser."""
END_TOKENS = (
    END_TEXT,
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "[EOS]",
    "<|im_end|>",
    "[SEP]",
)
"""Names of the token that ends a document; the first that a tokeniser has is taken, as its file
names none.
"""
TOKENIZER_BYTES = 256 * MIB
"""Most bytes of a tokeniser's file: the largest published ones have about 40 MB."""


class Tokenizer(ABC):
    """Tokeniser with ids in [0, vocabulary); `end` follows every document, and no text encodes to
    it.
    """

    def __init__(self, vocabulary: int, end: int, content: bytes):
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
                f"token {beyond} is beyond the tokeniser's vocabulary of {self.vocabulary}; "
                f"use the {TOKENIZER_NAME} that the tokens were made with."
            )
        return self._text(ids)

    @property
    def dtype(self) -> str:
        """Smallest of a store's types that holds every token: uint8, uint16 or int32."""
        if self.vocabulary <= 2**8:
            return "uint8"
        if self.vocabulary <= 2**16:
            return "uint16"
        return "int32"

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of its file, as under `attachments` in a store's manifest."""
        return hashlib.sha256(self.content).hexdigest()


class ByteTokenizer(Tokenizer):
    """Tokeniser whose tokens are the bytes of UTF-8; the end token is byte 255, which UTF-8 never
    uses (RFC 3629).
    """

    def __init__(self) -> None:
        facts = {"format": FORMAT, "version": 1, "kind": "bytes", "vocabulary": 256, "end": 255}
        super().__init__(256, 255, f"{json.dumps(facts, indent=1)}\n".encode())

    def ids(self, text: str) -> np.ndarray:
        """Return the bytes of the text, uint8 (bytes,)."""
        return np.frombuffer(text.encode(), np.uint8)

    def _text(self, ids: list[int]) -> str:
        documents = bytes(ids).split(bytes([self.end]))
        return END_TEXT.join(document.decode(errors="replace") for document in documents)


class HuggingFaceTokenizer(Tokenizer):
    """Tokeniser of a `tokenizer.json` for text alone: no template, cut or padding, and names of
    tokens are letters.
    """

    def __init__(self, content: bytes, origin: str):
        """Make one; `origin` names it in messages. Raises UserError where it cannot be read, or has
        no end token.
        """
        library = _library()
        try:
            self._tokenizer = tokenizer = library.Tokenizer.from_str(content.decode())
        except Exception as error:  # the library raises no narrower class
            problem = (
                f"{origin} is no tokeniser that the library tokenizers {library.__version__} "
                f"reads ({error})"
            )
            raise UserError(
                f"{problem}; name a tokenizer.json, or a newer version of the library."
            ) from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        known = tokenizer.get_vocab(with_added_tokens=True)
        end = next((known[name] for name in END_TOKENS if name in known), None)
        if end is None:
            raise UserError(
                f"{origin} has no token that ends a document (looked for "
                f"{', '.join(END_TOKENS)}); add one of them to its added_tokens."
            )
        super().__init__(max(known.values()) + 1, end, content)

    def ids(self, text: str) -> np.ndarray:
        """Return the text's tokens, (tokens,) in `dtype`."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, self.dtype)

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def learn_bpe(texts: Iterable[str], vocabulary: int) -> HuggingFaceTokenizer:
    """Learn a byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) of `vocabulary` tokens
    from texts.

    The end token is 0 and the 256 bytes follow. A small corpus may give fewer tokens. The same
    texts give the same one.
    """
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_TEXT],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    return HuggingFaceTokenizer(tokenizer.to_str().encode(), "the BPE")


def fetch_tokenizer(name: str) -> HuggingFaceTokenizer:
    """Fetch a tokeniser by its name on the Hugging Face hub, or from its cache. Raises UserError
    where it cannot be.
    """
    library = _library()
    try:
        content = library.Tokenizer.from_pretrained(name).to_str().encode()
    # of the library, of the hub's client and of the network: they share no narrower class
    except Exception as error:
        raise UserError(
            f"--tokenizer={name} is no file or folder here, and the Hugging Face hub does not "
            f"give it ({first_line(error)}); check the name, or fetch its tokenizer.json on a "
            "machine that reaches the hub and name that file."
        ) from error
    return HuggingFaceTokenizer(content, name)


def _library() -> ModuleType:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise UserError(
            "any tokeniser but bytes needs the library tokenizers, which is not installed; "
            "`pip install 'ditlab[text]'` brings it."
        ) from error
    return tokenizers


def open_tokenizer(path: Path) -> Tokenizer:
    """Read the tokeniser in a file, or in a folder's `tokenizer.json`. Raises UserError where it
    cannot be read.
    """
    file = path / TOKENIZER_NAME if path.is_dir() else path
    try:
        content = read_plain(file, TOKENIZER_BYTES, follow=True)  # in the hub's cache it is a link
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({first_line(error)}); name a {TOKENIZER_NAME}, or a "
            "folder that holds one."
        ) from error
    return load_tokenizer(content, str(file))


def load_tokenizer(content: bytes, origin: str) -> Tokenizer:
    """Make the tokeniser of a file's content; `origin` names it in messages. Raises as
    `open_tokenizer` does.
    """
    try:
        facts = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{origin} is no tokeniser: it is not JSON ({error}); name another file."
        ) from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        return HuggingFaceTokenizer(content, origin)
    plain = ByteTokenizer()
    if facts != json.loads(plain.content):
        raise UserError(
            f"{origin} holds a tokeniser of another ditlab; this one reads bytes, version 1."
        )
    return plain


def store_tokenizer(store: AnyStore) -> Tokenizer | None:
    """Read a store's tokeniser; None where it has none. Raises UserError as `open_tokenizer`
    does.
    """
    if TOKENIZER_NAME in store.manifest.attachments:
        return open_tokenizer(store.path)
    return None


def text_codec(tokenizer: Tokenizer, bytes_per_token: float | None = None) -> TextCodec:
    """Wrap a tokeniser for model families."""
    return TextCodec(
        tokenizer.encode, tokenizer.decode, tokenizer.vocabulary, tokenizer.end, bytes_per_token
    )


def store_codec(store: AnyStore) -> TextCodec | None:
    """Return the codec of a store's tokens; None without a tokeniser. Raises UserError as
    `open_tokenizer` does.
    """
    tokenizer = store_tokenizer(store)
    text = store.manifest.text
    if tokenizer is None:
        return None
    return text_codec(tokenizer, text.bytes_per_token if text else None)


def text_line(store: AnyStore) -> str:
    """Return documents, bytes and tokens of a text store in one line; empty for other stores."""
    text = store.manifest.text
    if text is None:
        return ""
    vocabulary = store.columns["tokens"].num_classes or 0
    dropped = ""
    if text.dropped:
        dropped = f"; the last {text.dropped:,} fill no row and are dropped"
    return (
        f"{text.documents:,} document{'s' if text.documents > 1 else ''}, {text.bytes:,} "
        f"bytes, {text.tokens:,} tokens of tokeniser {text.tokenizer} (vocabulary "
        f"{vocabulary:,}; {text.bytes_per_token:.4g} bytes a token){dropped}"
    )


def packed(text: TextCodec | None, packing: Packing, origin: str) -> TextCodec | None:
    """Return the codec under a packing. Raises UserError for `masked` without one, as it names the
    end token.
    """
    if text is None and packing == "masked":
        raise UserError(
            "data.packing=masked needs the token that ends a document, and the store of "
            f"{origin} carries no tokeniser ({TOKENIZER_NAME}) that names it; import the text "
            "with `ditlab data import text`, or set data.packing to joined."
        )
    if text is None:
        return None
    return replace(text, packing=packing)


def copy_tokenizer(store: AnyStore, folder: Path) -> Path | None:
    """Copy a store's tokeniser into a folder; None where it has none. Raises OSError as the disk
    does.
    """
    if TOKENIZER_NAME not in store.manifest.attachments:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / TOKENIZER_NAME
    file.write_bytes((store.path / TOKENIZER_NAME).read_bytes())
    return file

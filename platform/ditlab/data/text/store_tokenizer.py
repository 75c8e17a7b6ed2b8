"""Tokeniser that a store of tokens carries."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from denoisers.contract import TextCodec
from ditlab.data.text.tokenizer import TOKENIZER_NAME, Tokenizer
from ditlab.data.text.tokenizer_files import TOKENIZER_BYTES, open_tokenizer
from ditlab.errors import UserError
from ditlab.spec.data import Packing
from ditlab.storage.plain_files import read_plain

if TYPE_CHECKING:  # torch and pyarrow, which the processes that tokenise can do without
    from ditlab.data.stores.bucketed_store import AnyStore


def store_tokenizer(store: "AnyStore") -> Tokenizer | None:
    """Read a store's tokeniser; None where it has none. Raises UserError as `open_tokenizer` does."""
    return open_tokenizer(store.path) if TOKENIZER_NAME in store.manifest.attachments else None


def text_codec(tokenizer: Tokenizer, bytes_per_token: float | None = None) -> TextCodec:
    """Wrap a tokeniser for model families."""
    return TextCodec(tokenizer.encode, tokenizer.decode, tokenizer.vocabulary, tokenizer.end, bytes_per_token)


def store_codec(store: "AnyStore") -> TextCodec | None:
    """Return the codec of a store's tokens; None without a tokeniser. Raises UserError as `open_tokenizer` does."""
    tokenizer, text = store_tokenizer(store), store.manifest.text
    return None if tokenizer is None else text_codec(tokenizer, text.bytes_per_token if text else None)


def packed(text: TextCodec | None, packing: Packing, origin: str) -> TextCodec | None:
    """Return the codec under a packing. Raises UserError for `masked` without one, as it names the end token."""
    if text is None and packing == "masked":
        raise UserError(
            f"data.packing=masked needs the token that ends a document, and the store of {origin} carries no tokeniser "
            f"({TOKENIZER_NAME}) that names it; import the text with `ditlab data import text`, or set data.packing to "
            "joined."
        )
    return None if text is None else replace(text, packing=packing)


def copy_tokenizer(store: "AnyStore", folder: Path) -> Path | None:
    """Copy a store's tokeniser into the folder of a run or of an export; return None where the store has none.

    No library is needed, whatever the tokeniser. Raises OSError where the folder cannot be written.
    """
    if TOKENIZER_NAME not in store.manifest.attachments:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / TOKENIZER_NAME
    file.write_bytes(read_plain(store.path / TOKENIZER_NAME, TOKENIZER_BYTES))
    return file

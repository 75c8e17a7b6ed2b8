"""Reading of tokenisers from files."""

import json
from pathlib import Path

from ditlab.data.text.huggingface_tokenizer import HuggingFaceTokenizer
from ditlab.data.text.tokenizer import FORMAT, TOKENIZER_NAME, ByteTokenizer, Tokenizer
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import MIB, read_plain

TOKENIZER_BYTES = 256 * MIB
"""Most bytes of a tokeniser's file: the largest published ones have about 40 MB."""


def open_tokenizer(path: Path) -> Tokenizer:
    """Read the tokeniser in a file, or in the `tokenizer.json` of a folder: a store's, a run's, an export's.

    Raises UserError where there is none, it cannot be read, or its library is not installed.
    """
    file = path / TOKENIZER_NAME if path.is_dir() else path
    try:
        content = read_plain(file, TOKENIZER_BYTES, follow=True)  # in the hub's cache it is a link
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({first_line(error)}); name a {TOKENIZER_NAME}, or a folder that holds one."
        ) from error
    return load_tokenizer(content, str(file))


def load_tokenizer(content: bytes, origin: str) -> Tokenizer:
    """Make the tokeniser of a file's content; `origin` names it in messages. Raises as `open_tokenizer` does."""
    try:
        facts = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{origin} is no tokeniser: it is not JSON ({error}); name another file.") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        return HuggingFaceTokenizer(content, origin)
    plain = ByteTokenizer()
    if facts != json.loads(plain.content):
        raise UserError(f"{origin} holds a tokeniser of another ditlab; this one reads {plain.kind}, version 1.")
    return plain

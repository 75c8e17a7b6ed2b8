"""Reading of tokenisers from files."""

import json
from pathlib import Path

from ditlab.data.text.huggingface_tokenizer import HuggingFaceTokenizer
from ditlab.data.text.tokenizer import FORMAT, TOKENIZER_NAME, ByteTokenizer, Tokenizer
from ditlab.errors import UserError


def open_tokenizer(path: Path) -> Tokenizer:
    """Read the tokeniser in a file, or in the `tokenizer.json` of a folder: a store's, a run's, an export's.

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

"""Values inside sentences, as YAML writes them and no longer than a person reads; sizes (`200GiB`),
times (`2h`); the value at a path."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

from pydantic import AfterValidator, ByteSize, Field, TypeAdapter, ValidationError

Nonempty = Annotated[str, Field(min_length=1)]
LONGEST = 60  # characters of a value, and items of a collection, that a sentence can carry
_BYTES = TypeAdapter(ByteSize)
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def format_value(value: Any) -> str:
    """A value as YAML writes it, cut to what a sentence can carry."""
    return shorten(_flow(value))


def shorten(text: str) -> str:
    """The text, or its beginning and its length, as `printable` writes it."""
    return printable(
        text if len(text) <= LONGEST else f"{text[: LONGEST - 20]}... ({len(text)} characters)"
    )


def printable(text: str) -> str:
    """The text with escapes for what is not printed: a terminal would obey control characters in
    it.
    """
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def escaped(name: str) -> str:
    """Return a name of a file as text: bytes that are not UTF-8, which Python keeps as half
    surrogates, as escapes. As a validator it leaves to others what is no text.
    """
    if not isinstance(name, str):
        return name
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def printable_sentence(text: object) -> str:
    """A message as `printable` writes it, words of over 200 characters cut: a check may repeat the
    value that it refuses."""
    return printable(
        re.sub(
            r"\S{201,}", lambda word: f"{word[0][:150]}... ({len(word[0])} characters)", str(text)
        )
    )


def _flow(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return repr(value)
        case Mapping():
            return (
                "{"
                + ", ".join(
                    f"{key}: {_flow(below)}" for key, below in islice(value.items(), LONGEST)
                )
                + "}"
            )
        case list() | tuple():
            return "[" + ", ".join(_flow(below) for below in islice(value, LONGEST)) + "]"
    return str(value)


def format_bytes(num: int) -> str:
    """Bytes as people read them: `512 B`, `4.1 MiB`, `22.5 GiB`."""
    return ByteSize(num).human_readable(separator=" ")


def num_bytes(size: str) -> int:
    """Return the bytes of a size: `200GiB`, `1.5 TB`. Raises ValueError for another text, and for
    less than 1 byte.
    """
    try:
        found = int(_BYTES.validate_python(size))
    except ValidationError:
        found = 0
    if found < 1:
        raise ValueError("is no size; write a number with its unit, such as 200GiB or 1.5TB.")
    return found


SizeText = Annotated[str, AfterValidator(lambda size: num_bytes(size) and size)]
"""A size in bytes with its unit, kept as it was written."""


def parse_duration(text: str) -> float | None:
    """Return the seconds of a length of time such as `90min`, `2h`, `1d`, `0.5h`; None for another
    text.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?([a-z]+)", text)
    if match and match[2] in _SECONDS:
        return float(match[1]) * _SECONDS[match[2]]
    return None


def value_at(mapping: Any, keys: Sequence[str]) -> Any:
    """Return the value at a path, None where there is none."""
    for key in keys:
        mapping = mapping.get(key) if isinstance(mapping, Mapping) else None
    return mapping

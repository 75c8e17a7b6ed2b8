"""Sizes in bytes, as people write them: `200GiB`."""

from typing import Annotated

from pydantic import AfterValidator, ByteSize, TypeAdapter, ValidationError

_BYTES = TypeAdapter(ByteSize)


def num_bytes(size: str) -> int:
    """Return the bytes of a size: `200GiB`, `1.5 TB`. Raises ValueError for another text, and for less than 1 byte."""
    try:
        found = int(_BYTES.validate_python(size))
    except ValidationError:
        found = 0
    if found < 1:
        raise ValueError("is no size; write a number with its unit, such as 200GiB or 1.5TB.")
    return found


def _check(size: str) -> str:
    num_bytes(size)
    return size


SizeText = Annotated[str, AfterValidator(_check)]
"""A size in bytes with its unit, kept as it was written."""

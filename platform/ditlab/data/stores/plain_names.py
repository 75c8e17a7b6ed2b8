"""Names out of a manifest, which become paths below its store's folder and lead nowhere else."""

import re
from typing import Annotated

from pydantic import AfterValidator

LONGEST = 200
"""Bytes. File systems take 255; a copy in the making has a longer name."""


def plain_name(name: str) -> str:
    """The name itself, of one file or folder. Raises ValueError for `..`, `a/b`, `/a`, an empty one and the like."""
    if not name.strip(".") or re.search(r"[/\\\x00-\x1f\x7f]", name) or len(name.encode()) > LONGEST:
        raise ValueError(f"{name[:60]!r} is no plain name of a file or folder in the store")
    return name


PlainName = Annotated[str, AfterValidator(plain_name)]

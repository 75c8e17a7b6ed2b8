"""Names in a manifest that become paths below its store's folder, checked so that they lead nowhere else."""

import re
from typing import Annotated

from pydantic import AfterValidator

MAX_BYTES = 200
"""Most bytes of a name. File systems take 255; a copy in the making has a longer name."""


def plain_name(name: str) -> str:
    """Return the name of one file or folder unchanged. Raises ValueError for `..`, `a/b`, `/a`, an empty one etc."""
    if not name.strip(".") or re.search(r"[/\\\x00-\x1f\x7f]", name) or len(name.encode()) > MAX_BYTES:
        raise ValueError(f"{name[:60]!r} is no plain name of a file or folder in the store")
    return name


def folder_name(text: str) -> str:
    """Return a text as part of a folder's name, in which each run of unsuitable characters becomes `_`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)


PlainName = Annotated[str, AfterValidator(plain_name)]

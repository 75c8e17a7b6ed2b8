"""User errors for what a disk refuses to take and for specs that cannot be built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ditlab.errors import UserError, cannot_write
from ditlab.storage.local import writable_folder


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Raise UserError, which names `--out`, for errors of writing files."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise cannot_write(f"--out {out}", error, "name another place") from error


@contextmanager
def building() -> Iterator[None]:
    """Raise UserError for a ValueError of building a network, an objective or a sampler."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


def output_folder(path: Path) -> Path:
    """Make a folder and return it. Raises UserError where it cannot be written."""
    return writable_folder(path, f"--out {path}", "name another folder")

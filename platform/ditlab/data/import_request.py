"""Request to an importer: target folder, download cache, options, progress callback."""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from denoisers.contract import Spec

Options = TypeVar("Options", bound=Spec, covariant=True)


class ImportProgress(Protocol):
    """Progress callback of an import."""

    def __call__(self, what: str, done: int, total: int | None, unit: str = "bytes") -> None:
        """Report that `done` of `total` (None: unknown) units are done; `unit` in the plural: `peaks`."""
        ...


def ignore_progress(what: str, done: int, total: int | None, unit: str = "bytes") -> None:
    """Ignore a progress report."""


@dataclass(frozen=True)
class ImportRequest(Generic[Options]):
    """Arguments of an importer."""

    out: Path
    """Folder that the stores go under, a folder each."""
    cache: Path
    """Folder for downloads."""
    options: Options
    """Instance of the importer's `OPTIONS`."""
    progress: ImportProgress = ignore_progress

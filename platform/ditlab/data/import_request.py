"""Request to an importer: target folder, download cache, options, progress callback."""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from denoisers.contract import Spec
from ditlab.progress import Progress, ignore_progress

Options = TypeVar("Options", bound=Spec, covariant=True)


@dataclass(frozen=True)
class ImportRequest(Generic[Options]):
    """Arguments of an importer."""

    out: Path
    """Folder that the stores go under, a folder each."""
    cache: Path
    """Folder for downloads."""
    options: Options
    """Instance of the importer's `OPTIONS`."""
    progress: Progress = ignore_progress

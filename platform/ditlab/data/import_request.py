"""Request to an importer: target folder, download cache, options, progress callback, executor."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from denoisers.contract import Spec
from ditlab.progress import Progress, ignore_progress

if TYPE_CHECKING:  # pyarrow, which an importer's --help can do without
    from ditlab.data.block_imports.runner import BlockExecutor

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
    executor: "BlockExecutor | None" = None
    """Executor of an import by blocks (`data.block_imports`); None: processes of this machine."""

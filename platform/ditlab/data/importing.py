"""Importers by name: their options, and running one.

An importer is a function of a request, which gives the store or stores that it wrote. Its options'
fields become the flags of `ditlab data import NAME`. One that works by blocks
(`data.import_blocks`) has the flag --address as well, and its request an executor. Modules of
importers are imported when one is run: `--help` needs no pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from ditlab.data.stores.writing import WrittenStore
from ditlab.errors import UserError, nearest
from ditlab.parts import Importer, absent_part, importers, load_part
from ditlab.progress import Progress, ignore_progress
from ditlab_models.contract import Spec

if TYPE_CHECKING:
    from ditlab.data.import_blocks import BlockExecutor

Options = TypeVar("Options", bound=Spec, covariant=True)


@dataclass(frozen=True)
class ImportRequest(Generic[Options]):
    """Arguments of an importer."""

    out: Path
    """Folder that the stores go under, a folder each."""
    cache: Path
    """Folder for downloads."""
    options: Options
    """Instance of the importer's options."""
    progress: Progress = ignore_progress
    executor: BlockExecutor | None = None
    """Executor of an import by blocks (`data.import_blocks`); None: processes of this machine."""
    limit: int | None = None
    """Records, or rows of text, of each block with which a dry run ends (`import_beginning`); None:
    all.
    """


def find_importer(name: str) -> Importer:
    """Return an importer. Raises UserError for an unknown one, and for one of an add-on that is not
    here.
    """
    known = importers()
    if name not in known:
        reason = absent_part("importer", name)
        raise UserError(reason or f"there is no importer '{name}'; {nearest(name, list(known))}")
    return known[name]


def run_import(name: str, request: ImportRequest[Spec]) -> list[WrittenStore]:
    """Run an importer. Raises UserError for an unknown one, for one whose library is missing, and
    as it does.
    """
    importer = find_importer(name)
    if importer.library and find_spec(importer.library) is None:
        raise UserError(
            f"`ditlab data import {name}` needs {importer.library}, which is not installed; "
            f"`pip install 'ditlab[{name}]'` brings it."
        )
    run: Callable[[ImportRequest[Spec]], WrittenStore | list[WrittenStore]] = load_part(
        "importer", name, importer.target
    )
    written = run(request)
    if isinstance(written, WrittenStore):
        return [written]
    return written

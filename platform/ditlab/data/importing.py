"""Importers by name: their options, and running one.

An importer is a function of a request, which gives the store or stores that it wrote. Its options' fields become the
flags of `ditlab data import NAME`. One that works by blocks (`data.import_blocks`) has the flag --address as well, and
its request an executor. Modules of importers are imported when one is run: `--help` needs no pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ditlab.data.stores.writing import WrittenStore
from ditlab.errors import UserError, nearest
from ditlab.progress import Progress, ignore_progress
from ditlab.spec.importing import DigitsOptions, GetOptions, ImagesOptions, MnistOptions, TextOptions
from ditlab_models.contract import Spec

if TYPE_CHECKING:
    from ditlab.data.import_blocks import BlockExecutor
    from ditlab.data.stores.bucketed_store import BucketedStore

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
    grown: BucketedStore | None = None
    """Store to which images are added; None for a new one."""
    first: int | None = None
    """Records of a block that a dry run looks at (`data.dry_run`); None: all."""


class Importer(NamedTuple):
    """Importer of a kind of data."""

    options: type[Spec]
    """Options, the flags of its command."""
    module: str
    """Module of its function, below `ditlab.data`."""
    function: str
    by_blocks: bool = False
    """True where a cluster can share the work."""
    is_fixed: bool = False
    """True for data that never change, whose store's folder has its plain name."""
    has_dry_run: bool = False
    """True where the beginning of a source tells what its import would give (`data.dry_run`)."""
    library: str = ""
    """Library that it needs beyond those of DiTLab, which the extra of its name brings; empty for none."""


IMPORTERS = {
    "digits": Importer(DigitsOptions, "builtin", "import_digits", is_fixed=True),
    "get": Importer(GetOptions, "genome.get_import", "import_get", by_blocks=True, library="zarr"),
    "images": Importer(ImagesOptions, "images.image_import", "import_images", by_blocks=True, has_dry_run=True),
    "mnist": Importer(MnistOptions, "mnist", "import_mnist"),
    "text": Importer(TextOptions, "text.text_import", "import_text", by_blocks=True, has_dry_run=True),
}


def find_importer(name: str) -> Importer:
    """Return an importer. Raises UserError for an unknown one."""
    if name not in IMPORTERS:
        raise UserError(f"there is no importer '{name}'; {nearest(name, list(IMPORTERS))}")
    return IMPORTERS[name]


def run_import(name: str, request: ImportRequest[Spec]) -> list[WrittenStore]:
    """Run an importer. Raises UserError for an unknown one, for one whose library is missing, and as it does."""
    importer = find_importer(name)
    if importer.library and find_spec(importer.library) is None:
        raise UserError(
            f"`ditlab data import {name}` needs {importer.library}, which is not installed; "
            f"`pip install 'ditlab[{name}]'` brings it."
        )
    module = import_module(f"ditlab.data.{importer.module}")
    run: Callable[[ImportRequest[Spec]], WrittenStore | list[WrittenStore]] = getattr(module, importer.function)
    written = run(request)
    return [written] if isinstance(written, WrittenStore) else written

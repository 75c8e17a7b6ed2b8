"""Imports of data, on this machine or a cluster."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ditlab.cluster.session import cluster_address
from ditlab.data.import_blocks import BeginningExecutor
from ditlab.data.importing import ImportRequest, find_importer, run_import
from ditlab.data.stores.writing import WrittenStore
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.progress import Progress, ignore, ignore_progress
from ditlab.spec.uris import is_uri
from ditlab.storage.files import folder_size
from ditlab.tracking.records import scan_runs
from ditlab_models.contract import Spec

FIRST = 1000
"""Records of the beginning of a source that a dry run imports."""
STAGING = ".importing"
"""Folder below that of the stores in which an import is written, and goes on after a kill."""


def import_data(
    kind: str,
    options: Spec,
    out: Path | None = None,
    address: str | None = None,
    progress: Progress = ignore_progress,
    warn: Callable[[str], None] = ignore,
    replace: bool = False,
) -> list[WrittenStore]:
    """Run an importer into `out` (None: DITLAB_HOME/stores), and return the stores that it wrote.

    `address`: Ray cluster whose cores share the work; None: RAY_ADDRESS, else this machine.
    `replace` lets a name mean the new store although runs were trained on another of that name,
    which stays. Raises UserError for an unknown importer, as the importer does, and as
    `named_stores.publish`.
    """
    importer = find_importer(kind)
    address = cluster_address(address) if importer.by_blocks else None
    source = str(getattr(options, "source", None) or "")
    with import_request(out, address, source or None, options, progress, warn) as request:
        if importer.is_fixed:
            return run_import(kind, dataclasses.replace(request, out=request.out.parent))
        written = run_import(kind, request)
        if source and not is_uri(source):
            source = str(Path(source).expanduser().absolute())
        return published(written, request, replace, warn, source)


def import_beginning(
    kind: str, options: Spec, folder: Path, progress: Progress
) -> list[WrittenStore]:
    """Import about the first 1,000 records of a source into a folder, by an importer that
    `has_dry_run`.

    Raises UserError as the importer does for this beginning.
    """
    return run_import(
        kind, ImportRequest(folder, folder, options, progress, BeginningExecutor(FIRST), FIRST)
    )


def published(
    written: Sequence[WrittenStore],
    request: ImportRequest[Spec],
    replace: bool,
    warn: Callable[[str], None],
    source: str = "",
) -> list[WrittenStore]:
    """Move stores from the staging folder to their own. Raises UserError as `named_stores.publish`
    does.
    """
    from ditlab.data.named_stores import publish

    home = Home.from_environment()
    found = [
        publish(
            each.store,
            request.out.parent,
            lambda folder: users_of_store(home, folder),
            replace,
            warn,
            source,
        )
        for each in written
    ]
    with suppress(OSError):  # another import writes there
        request.out.rmdir()
    return found


def users_of_store(home: Home, folder: Path) -> list[str]:
    """Return the runs of a home whose specs name a store's folder, for people: `3f2a1b9c
    (pets-dit)`.
    """
    names = [re.escape(str(folder))]
    if folder.parent == home.stores:
        names.append(re.escape(folder.name))
    named = re.compile(rf"(?<![\w@/.-])(?:{'|'.join(names)})(?![\w@/-])")
    users = []
    for record in scan_runs(home).records:
        for file in ("spec.yaml", "sweep.yaml"):
            with suppress(OSError):
                content = (home.run(record.run_id).path / file).read_bytes()
                if named.search(content.decode(errors="replace")):
                    users.append(f"{record.run_id} ({record.name})")
    return users


@dataclass(frozen=True)
class ListedStore:
    """A store of DITLAB_HOME."""

    path: Path
    name: str
    """Name that means it; empty where none does."""
    rows: int
    classes: int
    """Number of classes; 0 without."""
    bytes: int
    runs: list[str]
    """Runs that were trained on it, for people."""
    problem: str = ""
    """Reason why it cannot be opened."""

    @property
    def folder(self) -> str:
        """Name of its folder: `pets@1a2b3c4d5e6f`."""
        return self.path.name

    def to_dict(self) -> dict[str, Any]:
        """The store in JSON's types, for `--json`."""
        return {"store": self.folder} | {
            key: value for key, value in asdict(self).items() if key != "path"
        }


def list_stores() -> list[ListedStore]:
    """Stores of DITLAB_HOME, in the order of their names."""
    from ditlab.data.named_stores import pointed_folder
    from ditlab.data.stores.bucketed_store import holds_store, open_store

    home = Home.from_environment()
    found = []
    entries = sorted(home.stores.iterdir()) if home.stores.is_dir() else []
    names = {}
    for entry in entries:
        if entry.is_file() and not entry.name.startswith("."):
            with suppress(UserError):
                names[pointed_folder(entry)] = entry.name
    for folder in filter(holds_store, entries):
        rows = classes = 0
        problem = ""
        try:
            store = open_store(folder, verify=False)
            rows = len(store)
            columns = [column for column in store.columns.values() if not column.shape]
            classes = max((column.num_classes or 0 for column in columns), default=0)
            store.close()
        except UserError as error:
            problem = str(error)
        name = names.get(folder, "" if "@" in folder.name else folder.name)
        size = folder_size(folder)
        found.append(
            ListedStore(folder, name, rows, classes, size, users_of_store(home, folder), problem)
        )
    return found


@contextmanager
def import_request(
    out: Path | None,
    address: str | None,
    source: str | None,
    options: Spec,
    progress: Progress,
    warn: Callable[[str], None],
) -> Iterator[ImportRequest]:
    """Connect to a cluster, if there is an address, for the length of the block. Raises UserError
    as it does.
    """
    home = Home.from_environment().ensure()
    folder = (out or home.stores) / STAGING
    if address is None:
        yield ImportRequest(folder, home.caches, options, progress, None)
        return
    # a second of imports, that others need not wait for
    from ditlab.cluster.imports import ray_executor

    folder = folder.absolute()  # as processes of other nodes find it
    with ray_executor(address, folder, source, warn) as executor:
        yield ImportRequest(folder, home.caches, options, progress, executor)

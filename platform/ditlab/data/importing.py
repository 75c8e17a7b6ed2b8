"""What every importer shares: what it is asked, what it answers, and writing a store only when it is news."""

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

import numpy as np

import ditlab.data.importers as importers
from ditlab.data.manifest import MANIFEST_NAME, Column, Source
from ditlab.data.store import Store
from ditlab.data.writer import StoreWriter
from ditlab.errors import UserError, nearest

Outcome = Literal["written", "replaced", "unchanged"]

Progress = Callable[[str, int, int | None], None]
"""Called with (what, done, total or None), in bytes, as often as the importer likes."""


def silent(what: str, done: int, total: int | None) -> None:
    """The progress of an import that nobody watches."""


@dataclass(frozen=True)
class ImportRequest:
    out: Path
    """Folder that the stores go under, a folder each."""
    cache: Path
    """Folder that downloads are kept in."""
    source: Path | None = None
    """Folder that holds the original files; None downloads them, where the importer can."""
    checksum: bool = True
    """Refuse files whose MD5 is not the published one."""
    progress: Progress = silent


@dataclass(frozen=True)
class Imported:
    """One store, as it lies on disk now."""

    store: Store
    outcome: Outcome


def kinds() -> list[str]:
    """Importers by name: the modules of `ditlab.data.importers`."""
    return sorted(m.name for m in pkgutil.iter_modules(importers.__path__) if not m.name.startswith("_"))


def run_import(kind: str, request: ImportRequest) -> list[Imported]:
    """Run the importer of a kind. Raises UserError for an unknown kind, and what the importer finds wrong."""
    if kind not in kinds():
        raise UserError(f"there is no importer '{kind}'; {nearest(kind, kinds())}")
    answer: list[Imported] = import_module(f"ditlab.data.importers.{kind}").run(request)
    return answer


def write_store(
    path: Path,
    columns: Mapping[str, Column],
    batches: Iterable[Mapping[str, np.ndarray]],
    *,
    name: str,
    description: str,
    source: Source,
) -> Imported:
    """Write a store, and tell whether it is new, differs from the one that lay there, or equals it.

    A store of the same content is written again too: that repairs altered shards and costs less than a question.
    """
    existed = (path / MANIFEST_NAME).exists()
    try:
        before = Store.open(path).fingerprint
    except UserError:
        before = None
    with StoreWriter(path, columns, name=name, description=description, source=source) as writer:
        for batch in batches:
            writer.append(batch)
    store = Store.open(path, verify=False)
    outcome: Outcome = "unchanged" if store.fingerprint == before else "replaced" if existed else "written"
    return Imported(store, outcome)

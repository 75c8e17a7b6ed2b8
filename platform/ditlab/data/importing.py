"""What every importer shares: what it is asked, what it answers, and writing a store only when it is news."""

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

import numpy as np

import ditlab.data.importers as importers
from denoisers.contract import Spec
from ditlab.data.stores.bucket_manifest import BUCKETS_NAME
from ditlab.data.stores.manifest import MANIFEST_NAME, Column, Source, TextFacts
from ditlab.errors import UserError, nearest

if TYPE_CHECKING:  # torch and pyarrow, which an importer's --help can do without
    from ditlab.data.stores.bucketed_store import AnyStore

Outcome = Literal["written", "replaced", "unchanged"]
Options = TypeVar("Options", bound=Spec, covariant=True)


class Progress(Protocol):
    """Called as often as an importer likes."""

    def __call__(self, what: str, done: int, total: int | None, unit: str = "bytes") -> None:
        """So many of `total` (None: unknown) are done; `unit` in the plural: `peaks`."""
        ...


def silent(what: str, done: int, total: int | None, unit: str = "bytes") -> None:
    """The progress of an import that nobody watches."""


@dataclass(frozen=True)
class ImportRequest(Generic[Options]):
    out: Path
    """Folder that the stores go under, a folder each."""
    cache: Path
    """Folder that downloads are kept in."""
    options: Options
    """What the kind's own `OPTIONS` allow to ask."""
    progress: Progress = silent


@dataclass(frozen=True)
class Imported:
    """One store, as it lies on disk now."""

    store: "AnyStore"
    outcome: Outcome


def kinds() -> list[str]:
    """Importers by name: the modules of `ditlab.data.importers`."""
    return sorted(m.name for m in pkgutil.iter_modules(importers.__path__) if not m.name.startswith("_"))


def options_class(kind: str) -> type[Spec]:
    """What can be asked of a kind's importer. Raises UserError for an unknown kind."""
    declared: type[Spec] = _importer(kind).OPTIONS
    return declared


def run_import(kind: str, request: ImportRequest[Spec]) -> list[Imported]:
    """Run the importer of a kind. Raises UserError for an unknown kind, and what the importer finds wrong."""
    answer: list[Imported] = _importer(kind).run(request)
    return answer


def _importer(kind: str) -> ModuleType:
    if kind not in kinds():
        raise UserError(f"there is no importer '{kind}'; {nearest(kind, kinds())}")
    return import_module(f"ditlab.data.importers.{kind}")


def write_store(
    path: Path,
    columns: Mapping[str, Column],
    batches: Iterable[Mapping[str, np.ndarray]],
    *,
    name: str,
    description: str,
    source: Source,
    text: Callable[[], TextFacts] | None = None,
    attachments: Mapping[str, bytes] | None = None,
) -> Imported:
    """Write a store, and tell whether it is new, differs from the one that lay there, or equals it.

    A store of the same content is written again too: that repairs altered shards and costs less than a question.
    `text` is asked once all batches are written. Raises UserError for a bucketed store in the folder, and what
    `StoreWriter` refuses.
    """
    from ditlab.data.stores.store import Store
    from ditlab.data.stores.writer import StoreWriter

    if (path / BUCKETS_NAME).exists():
        raise UserError(f"{path} holds a store with buckets; choose another name, or remove that folder.")
    existed = (path / MANIFEST_NAME).exists()
    try:
        before = Store.open(path).fingerprint
    except UserError:
        before = None
    with StoreWriter(
        path, columns, name=name, description=description, source=source, attachments=attachments
    ) as writer:
        for batch in batches:
            writer.append(batch)
        writer.text = text() if text else None
    store = Store.open(path, verify=False)
    outcome: Outcome = "unchanged" if store.fingerprint == before else "replaced" if existed else "written"
    return Imported(store, outcome)

"""Writing a store in place of an older one, and the difference that it makes. Imports neither torch nor pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ditlab.data.stores.manifest import BUCKETS_NAME, MANIFEST_NAME, Column, Source, TextFacts
from ditlab.errors import UserError

if TYPE_CHECKING:
    from ditlab.data.stores.bucketed_store import AnyStore

WriteOutcome = Literal["written", "replaced", "unchanged"]


@dataclass(frozen=True)
class LeftOutRecords:
    """Records of a source that were left out for one reason."""

    reason: str
    """Reason: `peaks of zero atpm`."""
    number: int
    total: int
    """Records of that kind in the source."""
    example: str = ""
    """One of them, for people."""


@dataclass(frozen=True)
class WrittenStore:
    """Store on disk after a write."""

    store: AnyStore
    outcome: WriteOutcome
    """`written`: no store was there before; `replaced`: another one was; `unchanged`: one of the same content."""
    left_out: tuple[LeftOutRecords, ...] = ()
    """Records of the source that are not in the store, where its manifest has no facts of them."""


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
) -> WrittenStore:
    """Write a plain store in place of an older one, if any.

    A store of the same content is written again too: that repairs altered shards and costs less than a comparison.
    `text` is called once all batches are written. Raises UserError for a bucketed store in the folder, and as
    `StoreWriter` does.
    """
    from ditlab.data.stores.store import Store
    from ditlab.data.stores.writer import StoreWriter

    if (path / BUCKETS_NAME).exists():
        raise UserError(f"{path} holds a store with buckets; choose another name, or remove that folder.")
    existed = (path / MANIFEST_NAME).exists()
    try:
        there = Store.open(path, verify=False)
        there.verify()
        before = there.fingerprint
    except UserError:
        before = None
    with StoreWriter(
        path, columns, name=name, description=description, source=source, attachments=attachments
    ) as writer:
        for batch in batches:
            writer.append(batch)
        writer.text = text() if text else None
    store = Store.open(path, verify=False)
    outcome: WriteOutcome = "unchanged" if store.fingerprint == before else "replaced" if existed else "written"
    return WrittenStore(store, outcome)

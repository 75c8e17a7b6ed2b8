"""Stores that a test writes batch by batch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ditlab.data.stores.manifest import Column, StoreManifest, TextFacts
from ditlab.data.stores.writer import write_batches


class StoreWriter:
    """Store of the batches that the body of a `with` appends, as `write_batches` writes it when the body ends."""

    def __init__(self, path: Path, columns: Mapping[str, Column], **options: Any) -> None:
        self._path, self._columns, self._options = path, columns, options
        self._batches: list[Mapping[str, Any]] = []
        self.text: TextFacts | None = None
        self.manifest: StoreManifest | None = None

    def append(self, batch: Mapping[str, Any]) -> None:
        self._batches.append(batch)

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.manifest = write_batches(self._path, self._columns, self._batches, text=self.text, **self._options)

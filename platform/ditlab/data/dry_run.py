"""Dry runs of imports: an import of the beginning of a source into a folder that goes, and what it says of all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ditlab.data.import_blocks import ProcessExecutor
from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.stores.bucketed_store import BucketedStore
from ditlab.data.stores.receipt import SourceReceipt
from ditlab.data.stores.writing import WrittenStore
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.spec.importing import ImagesOptions
from ditlab.spec.values import format_bytes
from ditlab.storage.files import folder_size
from ditlab_models.contract import Spec

FIRST = 1000
"""Images, members or rows of the beginning."""


@dataclass(frozen=True)
class ImportPreview:
    """Preview of an import, by the beginning of its source."""

    name: str
    """Name of the store."""
    looked_at: int
    """Images, members, rows or documents of the beginning."""
    total: int | None
    """About how many the source has; exact for image files. None where its size does not tell."""
    rows: int
    """Rows that the store would have of the beginning."""
    all_rows: int | None
    """About how many rows of the whole source."""
    all_bytes: int | None
    """About how many bytes the store would have."""
    sizes: dict[str, int]
    """Rows of the beginning by image size (height x width); empty without."""
    classes: tuple[str, ...]
    """Names of all classes; empty without."""
    receipt: SourceReceipt
    """Receipt of the beginning; its first level, the files, is of the whole source."""

    @classmethod
    def of(cls, written: WrittenStore) -> ImportPreview:
        """Describe a store of the beginning."""
        store = written.store
        receipt = store.manifest.receipt
        assert receipt is not None, "imports by blocks have one"
        looked_at = receipt.levels[1].found
        numbers: list[int | None] = [None, None, None]
        if written.share:
            numbers = [round(number / written.share) for number in (looked_at, len(store), folder_size(store.path))]
        sizes = {part.name: len(part) for part in store.parts} if isinstance(store, BucketedStore) else {}
        names = store.columns["label"].names if "label" in store.columns else ()
        total, all_rows, all_bytes = numbers
        return cls(store.name, looked_at, total, len(store), all_rows, all_bytes, sizes, names, receipt)

    def lines(self) -> list[str]:
        """Return it for a terminal; warnings stand apart."""
        unit = self.receipt.levels[1].unit
        total = "an unknown number of"
        estimate = "unknown, as the first file does not tell"
        if self.total is not None and self.all_rows is not None and self.all_bytes is not None:
            about = "" if unit == "images" or self.looked_at == self.total else "about "
            total = f"{about}{self.total:,}"
            estimate = f"about {self.all_rows:,} rows and {format_bytes(self.all_bytes)}"
        lines = [
            f"{self.name}: looked at the first {self.looked_at:,} of {total} {unit}: {self.rows:,} rows",
            f"  the whole store: {estimate}",
        ]
        if self.sizes:
            lines.append(f"  sizes: {', '.join(f'{size} ({num:,})' for size, num in self.sizes.items())}")
        if self.classes:
            shown = ", ".join(self.classes[:10]) + ", ..." * (len(self.classes) > 10)
            lines.append(f"  {len(self.classes):,} classes: {shown}")
        return [*lines, *(f"  {line}" for line in self.receipt.lines())]

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types, for `--json`."""
        return {**vars(self), "classes": list(self.classes), "receipt": self.receipt.model_dump(mode="json")}


def preview_import(kind: str, options: Spec, progress: Progress = ignore_progress) -> list[ImportPreview]:
    """Import the beginning of a source into a temporary folder, which goes.

    Of `--into` it is the images that come to the store. Raises UserError as the importer does, for what the options
    refuse in the beginning.
    """
    if isinstance(options, ImagesOptions) and options.into:
        from ditlab.data.images.growing import continued_options, store_to_grow

        options = continued_options(options, store_to_grow(options, Home.from_environment()))
    with TemporaryDirectory(prefix="ditlab-") as folder:
        request = ImportRequest(Path(folder), Path(folder), options, progress, ProcessExecutor(1), limit=FIRST)
        return [ImportPreview.of(written) for written in run_import(kind, request)]

"""Dry runs of imports: what would come of a source, by its beginning; nothing is left of it on the disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ditlab.data.import_blocks import BlockReceipt, BlockTask, InputBlock, sums_of
from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.sources.lines import lines_between
from ditlab.data.sources.tables import parquet_rows
from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.receipt import SourceReceipt
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.spec.importing import ImagesOptions
from ditlab.spec.values import format_bytes
from ditlab.storage.files import folder_size
from ditlab_models.contract import Spec

FIRST = 1000
"""Images, members, rows or documents that a dry run looks at."""
FIRST_BYTES = 32 * 2**20
"""Most bytes of text that it looks at."""


@dataclass
class FirstBlocks:
    """Execution of the first blocks of an import in this process, up to FIRST records."""

    blocks: Sequence[InputBlock] = ()
    """All blocks."""
    receipts: list[BlockReceipt] = field(default_factory=list)
    """Receipts of the first."""

    def run(self, work: BlockTask, blocks: Sequence[InputBlock]) -> Iterator[BlockReceipt]:
        """Yield the receipts of the first blocks. Raises whatever `work` raises."""
        self.blocks = blocks
        self.receipts = []
        for block in blocks:
            if self.looked_at >= FIRST or (self._sums["documents"] and self._sums["bytes"] >= FIRST_BYTES):
                return
            self.receipts.append(work(block))
            yield self.receipts[-1]

    @property
    def _sums(self) -> Counter[str]:
        return sums_of(self.receipts)

    @property
    def looked_at(self) -> int:
        """Number of records that were looked at: images, members, rows, documents."""
        left_out = sum(group.number for receipt in self.receipts for group in receipt.left_out)
        return left_out + (self._sums["documents"] or sum(receipt.rows for receipt in self.receipts))

    def share(self) -> float | None:
        """Return the share of all records that was looked at, by the files' sizes; None for compressed text."""
        first = self.blocks[0].files[0]
        kind = self.blocks[0].kind
        files = list(dict.fromkeys(file for block in self.blocks for file in block.files))
        size = sum(file.size for file in files)
        num_bytes = self._sums["bytes"]
        if len(self.receipts) == len(self.blocks) and self.looked_at < FIRST:
            return 1.0
        if first.compression:
            return None
        if kind == "images":
            return self.looked_at / len(files)
        if kind == "mds":
            return self.looked_at / sum(shard["samples"] for block in self.blocks for shard in block.detail)
        if kind == "parquet":  # one file tells how many rows a byte has, without a request for each
            return min(1.0, self.looked_at * first.size / (sum(parquet_rows(first)) * size))
        if kind in ("csv", "jsonl", "tsv"):  # of whose lines the text is a part
            lines = chain.from_iterable(map(lines_between, files))
            num_bytes = sum(len(line) for _, line in islice(lines, self.looked_at))
        return min(1.0, num_bytes / size)


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
    def of(cls, store: AnyStore, beginning: FirstBlocks) -> ImportPreview:
        """Describe a store of the beginning."""
        share = beginning.share()
        rows = len(store)
        receipt = store.manifest.receipt
        assert receipt is not None, "imports by blocks have one"
        looked_at = receipt.levels[1].found
        total, all_rows, all_bytes = (
            None if share is None else round(number / share) for number in (looked_at, rows, folder_size(store.path))
        )
        sizes = {part.name: len(part) for part in store.parts} if isinstance(store, BucketedStore) else {}
        names = store.columns["label"].names if "label" in store.columns else ()
        return cls(store.name, looked_at, total, rows, all_rows, all_bytes, sizes, tuple(names or ()), receipt)

    def lines(self) -> list[str]:
        """Return it for a terminal; warnings stand apart."""
        total = "an unknown number of"
        unit = self.receipt.levels[1].unit
        estimate = "unknown, as the source is compressed"
        if self.total is not None and self.all_rows is not None and self.all_bytes is not None:
            total = f"{self.total:,}" if self.looked_at == self.total or unit == "images" else f"about {self.total:,}"
            estimate = f"about {self.all_rows:,} rows and {format_bytes(self.all_bytes)}"
        shown = ", ".join(self.classes[:10]) + (", ..." if len(self.classes) > 10 else "")
        return [
            f"{self.name}: looked at the first {self.looked_at:,} of {total} {unit}: {self.rows:,} rows",
            f"  the whole store: {estimate}",
            *([f"  sizes: {', '.join(f'{size} ({num:,})' for size, num in self.sizes.items())}"] if self.sizes else []),
            *([f"  {len(self.classes):,} classes: {shown}"] if shown else []),
            *(f"  {line}" for line in self.receipt.lines()),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types, for `--json`."""
        return {**vars(self), "classes": list(self.classes), "receipt": self.receipt.model_dump(mode="json")}


def preview_import(kind: str, options: Spec, progress: Progress = ignore_progress) -> list[ImportPreview]:
    """Import the first FIRST records of a source into a temporary folder, which goes.

    Of `--into` it is the images that come to the store. Raises UserError as the importer does, for what the options
    refuse in the beginning.
    """
    beginning = FirstBlocks()
    if isinstance(options, ImagesOptions) and options.into:
        from ditlab.data.images.growing import continued_options, store_to_grow

        options = continued_options(options, store_to_grow(options, Home.from_environment()))
    with TemporaryDirectory(prefix="ditlab-") as folder:
        request = ImportRequest(Path(folder), Path(folder), options, progress, beginning, first=FIRST)
        return [ImportPreview.of(written.store, beginning) for written in run_import(kind, request)]

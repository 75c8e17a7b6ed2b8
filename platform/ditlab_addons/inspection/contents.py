"""Contents of a store: tables for a terminal, facts as JSON, a few samples as a figure or as
text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from ditlab.data.images.captions import decode_captions
from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.manifest import ImportedFile, StoredColumn
from ditlab.data.stores.row_changes import CAPTION
from ditlab.data.text.tokenizer import store_tokenizer, text_line
from ditlab.reports.formatting import facts_table, terminal_table
from ditlab.spec.values import format_bytes
from ditlab_models.contract import ANY
from ditlab_models.figures import Figure, ImageGrid

TEXT_SHOWN = 600
"""Characters of a row of text in a table."""
CLASSES_SHOWN = 30
"""Classes of a table: as many as fit a tall terminal."""
LONGEST_SIDE = 160
"""Pixels of a shown image's longer side: larger images are shrunk to less than twice as many."""
BUCKETS_BELOW = 8
"""Sizes shown below each other; more sizes take another column."""


def store_tables(store: AnyStore, place: str) -> Iterator[Table]:
    """Tables of a store: its facts, image sizes, columns, class counts and source files."""
    yield facts_table(_facts(store, place), store.name)
    columns = store.columns
    if isinstance(store, BucketedStore):
        yield _bucket_table(store)
    yield _texts("columns", [_column_row(name, column) for name, column in columns.items()])
    statistics = ("min", "max", "mean", "std")
    values = (
        (name, *(f"{getattr(column.statistics, key):.5g}" for key in statistics))
        for name, column in columns.items()
    )
    yield terminal_table({"column": "text"} | dict.fromkeys(statistics, "number"), values, "values")
    for name, column in columns.items():
        counts = column.statistics.class_counts
        if counts is not None and not column.shape:
            yield _class_table(name, column.names, counts)
    if store.manifest.source.files:
        yield _texts("read from", [*map(_file_row, store.manifest.source.files)])


def _file_row(file: ImportedFile) -> dict[str, str]:
    place = (file.url or "").removesuffix(file.name) or "this machine"
    return {"file": file.name, "MD5": file.md5, "check": file.check, "from": place}


def _bucket_table(store: BucketedStore) -> Table:
    total = len(store)
    rows = (
        (each.size, f"{each.width / each.height:.3g}", f"{each.rows:,}", f"{each.rows / total:.1%}")
        for each in store.manifest.buckets
    )
    heads = ("height x width", "width / height", "rows", "share")
    return terminal_table(dict.fromkeys(heads, "number"), rows, "image sizes")


def _column_row(name: str, column: StoredColumn) -> dict[str, str]:
    limits = ""
    if column.value_range is not None:
        limits = "{:g} to {:g}".format(*column.value_range)
    shape = str(column.shape).replace(str(ANY), "any")
    return {
        "column": name,
        "shape": shape,
        "type": column.dtype,
        "range": limits,
        "unit": column.unit,
    }


def _class_table(name: str, names: Sequence[str], counts: Sequence[int]) -> Table:
    """A table of the rows of the first classes, with the classes' names, if any."""
    heads = {"class": "number", "name": "text", "rows": "number"}
    columns: list[Iterable[str]] = [
        map(str, range(CLASSES_SHOWN)),
        names,
        [f"{count:,}" for count in counts],
    ]
    if not names:
        del heads["name"], columns[1]
    caption = None
    if len(counts) > CLASSES_SHOWN:
        caption = f"the first {CLASSES_SHOWN} of {len(counts):,} classes; --json gives all"
    return terminal_table(heads, zip(*columns, strict=False), f"{name}: rows by class", caption)


def store_facts(store: AnyStore, place: str, picture: Path | None) -> dict[str, Any]:
    """Facts of a store at `place` in JSON's types, for `--json`; `picture` is a contact sheet of
    it, if any.
    """
    shown = {"name", "description", "source", "buckets", "receipt"}
    facts = store.manifest.model_dump(mode="json", include=shown)
    facts |= {
        "rows": len(store),
        "columns": {name: column.model_dump(mode="json") for name, column in store.columns.items()},
        "text": store.manifest.text and store.manifest.text.model_dump(mode="json"),
        "attachments": dict(store.manifest.attachments),
        "fingerprint": store.fingerprint,
        "shards": sum(len(part.manifest.shards) for part in store.parts),
    }
    return {"path": place, **facts, "picture": None if picture is None else str(picture)}


def _facts(store: AnyStore, place: str) -> dict[str, str]:
    manifest = store.manifest
    shards = [shard for part in store.parts for shard in part.manifest.shards]
    num = sum(part.layout.num_blocks for part in store.parts)
    blocks = f" of {num:,} block{'s' * (num > 1)}"
    imported = ""
    warnings = ""
    if manifest.receipt:
        imported = "\n".join(manifest.receipt.lines())
        warnings = "\n".join(manifest.receipt.warnings)
    return {
        "path": place,
        "holds": manifest.description,
        "rows": f"{manifest.rows:,}",
        "shards": f"{len(shards):,} ({format_bytes(sum(shard.bytes for shard in shards))}){blocks}",
        "fingerprint": manifest.fingerprint,
        "source": manifest.source.citation or manifest.source.kind,
        "license": manifest.source.license,
        "note": manifest.source.note,
        "text": text_line(store),
        "imported": imported,
        "look at": warnings,
    }


def _texts(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """Make a table of texts by heading."""
    return terminal_table(
        dict.fromkeys(rows[0], "text"), (list(row.values()) for row in rows), title
    )


def text_table(samples: Mapping[int, str]) -> Table:
    """Beginnings of a store's rows as text, by row number."""
    rows = (
        (f"{row:,}", Text(text if len(text) <= TEXT_SHOWN else text[:TEXT_SHOWN] + " ..."))
        for row, text in samples.items()
    )
    return terminal_table(
        {"row": "number", "text": "text"}, rows, "rows as text", "--json gives all"
    )


def sample_grid(store: AnyStore, num: int) -> Figure | None:
    """Make a figure of about `num` samples with captions or classes; None where no column holds
    images.

    Images are columns of shape (1 or 3, height, width) with a value range; each size has a grid of
    its own.
    """
    images = (
        name
        for name, each in store.columns.items()
        if each.value_range and each.shape[:-2] in ((1,), (3,))
    )
    image = next(images, None)
    if image is None:
        return None
    parts = store.parts
    grids = []
    for part in parts:
        rows = _spread(part, max(1, num // len(parts)))
        pictures = _pictures(part.gather(image, rows).numpy(), part.columns[image])
        caption = f"{part.name}: {len(rows)} of {len(part):,}"
        captions: Sequence[str] = ()
        label = next(
            (
                name
                for name, column in part.columns.items()
                if column.num_classes and not column.shape
            ),
            None,
        )
        if CAPTION in part.columns:
            captions = decode_captions(part.gather(CAPTION, rows).numpy())
        elif label is not None:
            numbers = part.gather(label, rows).tolist()
            names = part.columns[label].names
            captions = [names[number] for number in numbers] if names else [*map(str, numbers)]
        grids.append(ImageGrid(pictures, captions=captions, title=caption))
    title = ""
    if parts != (store,):
        title = f"{store.name}: {len(store):,} images by height x width"
    return Figure(panels=grids, columns=-(-len(parts) // BUCKETS_BELOW), title=title)


def _pictures(images: np.ndarray, column: StoredColumn) -> np.ndarray:
    """Return images in [0, 1], (num, height, width) if grey, else with 3 channels; large ones
    averaged over squares.
    """
    low, high = column.value_range or (0.0, 1.0)
    factor = max(1, max(images.shape[2:]) // LONGEST_SIDE)
    height, width = (side // factor for side in images.shape[2:])
    whole = images[:, :, : height * factor, : width * factor].astype(np.float64)
    small = whole.reshape(*images.shape[:2], height, factor, width, factor).mean(axis=(3, 5))
    values = (small - low) / (high - low)
    if values.shape[1] == 1:
        return values[:, 0]
    return values.transpose(0, 2, 3, 1)


def sample_text(store: AnyStore, num: int) -> dict[int, str]:
    """Decode `num` rows spread over a store of tokens, by row number; {} without. Raises as
    `open_tokenizer` does.
    """
    tokenizer = store_tokenizer(store)
    if tokenizer is None:
        return {}
    rows = _spread(store, num)
    texts = map(tokenizer.decode, store.gather("tokens", rows).tolist())
    return dict(zip(rows.tolist(), texts, strict=True))


def _spread(store: AnyStore, num: int) -> np.ndarray:
    return np.unique(np.linspace(0, len(store) - 1, num=num).round().astype(np.int64))

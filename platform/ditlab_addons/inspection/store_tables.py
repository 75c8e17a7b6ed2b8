"""Tables of a store for a terminal, and its facts as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.manifest import ImportedFile, StoredColumn
from ditlab.data.text.tokenizer import text_line
from ditlab.reports.formatting import facts_table, terminal_table
from ditlab.spec.values import format_bytes
from ditlab_models.contract import ANY

TEXT_SHOWN = 600
"""Characters of a row of text in a table."""
CLASSES_SHOWN = 30
"""Classes of a table: as many as fit a tall terminal."""


def store_tables(store: AnyStore, place: str) -> Iterator[Table]:
    """Tables of a store: its facts, image sizes, columns, class counts and source files."""
    yield facts_table(_facts(store, place), store.name)
    columns = store.columns
    if isinstance(store, BucketedStore):
        yield _bucket_table(store)
    yield _texts("columns", [_column_row(name, column) for name, column in columns.items()])
    statistics = ("min", "max", "mean", "std")
    values = (
        (name, *(f"{getattr(column.statistics, key):.5g}" for key in statistics)) for name, column in columns.items()
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
    limits = "" if column.value_range is None else "{:g} to {:g}".format(*column.value_range)
    return {"column": name, "shape": _shape(column), "type": column.dtype, "range": limits, "unit": column.unit}


def _class_table(name: str, names: Sequence[str], counts: Sequence[int]) -> Table:
    """A table of the rows of the first classes, with the classes' names, if any."""
    columns: dict[str, Iterable[str]] = {
        "class": map(str, range(CLASSES_SHOWN)),
        "name": names,
        "rows": [f"{count:,}" for count in counts],
    }
    heads = {"class": "number", "name": "text", "rows": "number"}
    if not names:
        del columns["name"], heads["name"]
    caption = None
    if len(counts) > CLASSES_SHOWN:
        caption = f"the first {CLASSES_SHOWN} of {len(counts):,} classes; --json gives all"
    return terminal_table(heads, zip(*columns.values(), strict=False), f"{name}: rows by class", caption)


def store_facts(store: AnyStore, place: str, picture: Path | None) -> dict[str, Any]:
    """Facts of a store at `place` in JSON's types, for `--json`; `picture` is a contact sheet of it, if any."""
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
    blocks = f" of {num:,} block{'s' if num > 1 else ''}"
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
        "imported": "\n".join(manifest.receipt.lines()) if manifest.receipt else "",
        "look at": "\n".join(manifest.receipt.warnings) if manifest.receipt else "",
    }


def _shape(column: Any) -> str:
    return str(column.shape).replace(str(ANY), "any")


def _texts(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """Make a table of texts by heading."""
    return terminal_table(dict.fromkeys(rows[0], "text"), (list(row.values()) for row in rows), title)


def text_table(samples: Mapping[int, str]) -> Table:
    """Beginnings of a store's rows as text, by row number."""
    rows = (
        (f"{row:,}", Text(text if len(text) <= TEXT_SHOWN else text[:TEXT_SHOWN] + " ..."))
        for row, text in samples.items()
    )
    return terminal_table({"row": "number", "text": "text"}, rows, "rows as text", "--json gives all")

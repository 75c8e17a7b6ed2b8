"""A store's manifest as tables for a terminal and as JSON."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from denoisers.contract import ANY
from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.manifest import StoredColumn

TEXT_SHOWN = 600
"""Characters of a row of text in a table."""


def store_tables(store: AnyStore, place: str) -> Iterator[Table]:
    """Tables of a store: its facts, image sizes, columns, names of their entries, class counts and source files."""
    yield _facts(store, place)
    if isinstance(store, BucketedStore):
        yield _buckets(store)
    yield _columns(store)
    if any(column.names and column.num_classes is None for column in store.columns.values()):
        yield _entries(store)
    for name, column in store.columns.items():
        if column.statistics.class_counts is not None and not column.shape:
            yield _classes(name, column)
    if store.manifest.source.files:
        yield _files(store)


def store_facts(store: AnyStore, place: str, picture: Path | None) -> dict[str, Any]:
    """Facts of a store at `place` in JSON's types, for `--json`; `picture` is a contact sheet of it, if any."""
    shown = {"name", "description", "source", "buckets", "facts", "notes", "files"}
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


def _facts(store: AnyStore, place: str) -> Table:
    manifest = store.manifest
    shards = [shard for part in store.parts for shard in part.manifest.shards]
    facts = {
        "path": place,
        "holds": manifest.description,
        "rows": f"{manifest.rows:,}",
        "shards": f"{len(shards)} ({sum(shard.bytes for shard in shards) / 2**20:.1f} MiB)",
        "fingerprint": manifest.fingerprint,
        "source": manifest.source.citation or manifest.source.kind,
        "license": manifest.source.license,
        "note": manifest.source.note,
        "text": text_line(store),
        "left out or cut": left_out(store),
    }
    table = Table(title=store.name, title_justify="left", box=box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for key, value in facts.items():
        if value:
            table.add_row(key, value)
    return table


def left_out(store: AnyStore) -> str:
    """Counts of images that an import skipped or cropped, with the files that list them; empty where there are none."""
    if not isinstance(store, BucketedStore) or not store.manifest.facts:
        return ""
    counts = ", ".join(f"{number:,} {what}" for what, number in store.manifest.facts.items())
    is_here = store.path.is_dir()  # else a place that was named by a URI
    lists = ", ".join(str(store.path / file) if is_here else file for file in store.manifest.files.values())
    return counts + (f"; listed in {lists}" if lists else "")


def text_line(store: AnyStore) -> str:
    """Documents, bytes and tokens of a text store in one line; empty for other stores."""
    text = store.manifest.text
    if text is None:
        return ""
    vocabulary = store.columns["tokens"].num_classes or 0
    dropped = f"; the last {text.dropped:,} fill no row and are left out" if text.dropped else ""
    return (
        f"{text.documents:,} document{'s' if text.documents > 1 else ''}, {text.bytes:,} bytes, {text.tokens:,} tokens "
        f"of tokeniser {text.tokenizer} (vocabulary {vocabulary:,}; {text.bytes_per_token:.4g} bytes a token){dropped}"
    )


def text_table(samples: Mapping[int, str]) -> Table:
    """Beginnings of a store's rows as text, by row number."""
    table = Table(title="rows as text", title_justify="left", box=box.SIMPLE)
    table.add_column("row", justify="right")
    table.add_column("text", overflow="fold")
    for row, text in samples.items():
        table.add_row(f"{row:,}", Text(text if len(text) <= TEXT_SHOWN else text[:TEXT_SHOWN] + " ..."))
    if any(len(text) > TEXT_SHOWN for text in samples.values()):
        table.caption = "--json gives all of each"
    return table


def _buckets(store: BucketedStore) -> Table:
    """Image sizes with aspect ratio, share and row numbers."""
    table = Table(title="image sizes", title_justify="left", box=box.SIMPLE)
    for heading in ("height x width", "width / height", "rows", "share", "numbers"):
        table.add_column(heading, justify="right")
    first = 0
    for bucket in store.manifest.buckets:
        share, numbers = f"{bucket.rows / len(store):.1%}", f"{first:,} to {first + bucket.rows - 1:,}"
        table.add_row(bucket.size, f"{bucket.width / bucket.height:.3g}", f"{bucket.rows:,}", share, numbers)
        first += bucket.rows
    return table


def _columns(store: AnyStore) -> Table:
    table = Table(title="columns", title_justify="left", box=box.SIMPLE)
    for heading in ("column", "shape", "type", "range", "unit"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("column", "shape"))
    for heading in ("min", "max", "mean", "std"):
        table.add_column(heading, justify="right")
    for name, column in store.columns.items():
        span = "" if column.value_range is None else "{:g} to {:g}".format(*column.value_range)
        seen = column.statistics
        numbers = (f"{value:.5g}" for value in (seen.min, seen.max, seen.mean, seen.std))
        shape = str(column.shape).replace(str(ANY), "any")
        table.add_row(name, shape, column.dtype, span, column.unit, *numbers)
    return table


def _entries(store: AnyStore) -> Table:
    """Names along a column's last axis, shortened to the first few and the last."""
    table = Table(title="names of the last axis", title_justify="left", box=box.SIMPLE)
    for heading in ("column", "number", "names"):
        table.add_column(heading, overflow="fold")
    for name, column in store.columns.items():
        if column.names and column.num_classes is None:
            few = column.names if len(column.names) <= 10 else (*column.names[:8], "...", column.names[-1])
            table.add_row(name, f"{len(column.names):,}", ", ".join(few))
    if any(len(column.names) > 10 for column in store.columns.values() if column.num_classes is None):
        table.caption = "--json gives all"
    return table


def _classes(name: str, column: StoredColumn) -> Table:
    """Rows by class: one class a column, or one a line where classes have names."""
    counts = column.statistics.class_counts or ()
    title = f"{name}: rows by class"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, min_width=len(title))
    shown = counts[: 30 if column.names else 20]  # as many as fit a tall or a wide terminal
    if column.names:
        table.add_column("class", overflow="fold")
        table.add_column("rows", justify="right")
        for label, count in zip(column.names, shown, strict=False):
            table.add_row(label, f"{count:,}")
    else:
        for number in range(len(shown)):
            table.add_column(str(number), justify="right")
        table.add_row(*(f"{count:,}" for count in shown))
    if len(counts) > len(shown):
        table.caption = f"the first {len(shown)} of {len(counts)} classes; --json gives all"
    return table


def _files(store: AnyStore) -> Table:
    table = Table(title="read from", title_justify="left", box=box.SIMPLE)
    for heading in ("file", "MD5", "check", "from"):
        table.add_column(heading, overflow="fold")
    for file in store.manifest.source.files:
        table.add_row(file.name, file.md5, file.check, file.url or "local")
    return table

"""A store's manifest as tables for a terminal."""

from collections.abc import Iterator

from rich import box
from rich.table import Table

from ditlab.data.manifest import StoredColumn
from ditlab.data.store import Store


def store_tables(store: Store) -> Iterator[Table]:
    """What the store is, its columns, its class counts, where it comes from."""
    yield _facts(store)
    yield _columns(store)
    for name, column in store.columns.items():
        if column.statistics.class_counts is not None:
            yield _classes(name, column)
    if store.manifest.source.files:
        yield _files(store)


def _facts(store: Store) -> Table:
    manifest = store.manifest
    size = sum(shard.bytes for shard in manifest.shards)
    facts = {
        "path": str(store.path),
        "holds": manifest.description,
        "rows": f"{manifest.rows:,}",
        "shards": f"{len(manifest.shards)} ({size / 2**20:.1f} MiB)",
        "fingerprint": manifest.fingerprint,
        "source": manifest.source.citation or manifest.source.kind,
        "license": manifest.source.license,
        "note": manifest.source.note,
    }
    table = Table(title=store.name, title_justify="left", box=box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for key, value in facts.items():
        if value:
            table.add_row(key, value)
    return table


def _columns(store: Store) -> Table:
    table = Table(title="columns", title_justify="left", box=box.SIMPLE)
    for heading in ("column", "shape", "type", "range", "unit"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("column", "shape"))
    for heading in ("min", "max", "mean", "std"):
        table.add_column(heading, justify="right")
    for name, column in store.columns.items():
        span = "" if column.value_range is None else "{:g} to {:g}".format(*column.value_range)
        seen = column.statistics
        numbers = (f"{value:.5g}" for value in (seen.min, seen.max, seen.mean, seen.std))
        table.add_row(name, str(column.shape), column.dtype, span, column.unit, *numbers)
    return table


def _classes(name: str, column: StoredColumn) -> Table:
    counts = column.statistics.class_counts or ()
    table = Table(title=f"{name}: rows by class", title_justify="left", box=box.SIMPLE)
    shown = counts[:20]  # as many as fit a wide terminal
    for number in range(len(shown)):
        table.add_column(str(number), justify="right")
    table.add_row(*(f"{count:,}" for count in shown))
    if len(counts) > len(shown):
        table.caption = f"the first {len(shown)} of {len(counts)} classes; --json gives all"
    return table


def _files(store: Store) -> Table:
    table = Table(title="read from", title_justify="left", box=box.SIMPLE)
    for heading in ("file", "MD5", "check", "from"):
        table.add_column(heading, overflow="fold")
    for file in store.manifest.source.files:
        table.add_row(file.name, file.md5, file.check, file.url or "local")
    return table

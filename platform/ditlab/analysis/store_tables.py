"""Tables of data for a terminal and as JSON: a store's manifest, an experiment's data, records an import left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from denoisers.contract import ANY
from ditlab.data.mixture_store import JoinedStore
from ditlab.data.splits import DataSplits
from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.manifest import StoredColumn
from ditlab.data.stores.writing import LeftOutRecords, WrittenStore
from ditlab.spec.experiment import Experiment

TEXT_SHOWN = 600
"""Characters of a row of text in a table."""
LONGEST_WORD = 40
"""Characters from which a word, such as a name or a URL, may be broken."""
WIDTH = 76
"""Characters of a table's cells in a line."""
CLASSES_SHOWN = 30


def store_tables(store: AnyStore, place: str) -> Iterator[Table]:
    """Tables of a store: its facts, image sizes, columns, names of their entries, class counts and source files."""
    yield _facts(store, place)
    if isinstance(store, BucketedStore):
        yield _buckets(store)
    yield _columns(store)
    yield _statistics(store)
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
        "shards": f"{len(shards):,} ({_format_bytes(sum(shard.bytes for shard in shards))}){_blocks(store)}",
        "fingerprint": manifest.fingerprint,
        "source": manifest.source.citation or manifest.source.kind,
        "license": manifest.source.license,
        "note": manifest.source.note,
        "text": text_line(store),
        "left out": left_out(store),
    }
    table = Table(title=store.name, title_justify="left", box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    for key, value in facts.items():
        if value:
            table.add_row(key, value)
    return table


def _blocks(store: AnyStore) -> str:
    """Number of blocks as text; empty for a mixture."""
    if isinstance(store, JoinedStore):
        return ""
    num = sum(part.layout.num_blocks for part in store.parts)
    return f" of {num:,} block{'s' if num > 1 else ''}"


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
    rows, first = [], 0
    for bucket in store.manifest.buckets:
        rows.append(
            {
                "height x width": bucket.size,
                "width / height": f"{bucket.width / bucket.height:.3g}",
                "rows": f"{bucket.rows:,}",
                "share": f"{bucket.rows / len(store):.1%}",
                "numbers": f"{first:,} to {first + bucket.rows - 1:,}",
            }
        )
        first += bucket.rows
    return _table("image sizes", rows)


def _columns(store: AnyStore) -> Table:
    rows = [
        {
            "column": name,
            "shape": str(column.shape).replace(str(ANY), "any"),
            "type": column.dtype,
            "range": "" if column.value_range is None else "{:g} to {:g}".format(*column.value_range),
            "unit": column.unit,
        }
        for name, column in store.columns.items()
    ]
    return _table("columns", rows, left=rows[0])


def _statistics(store: AnyStore) -> Table:
    """Extrema, means and standard deviations of the columns."""
    rows = [
        {"column": name, **{key: f"{getattr(column.statistics, key):.5g}" for key in ("min", "max", "mean", "std")}}
        for name, column in store.columns.items()
    ]
    return _table("values", rows, left=("column",))


def _table(title: str, rows: Sequence[Mapping[str, str]], left: Collection[str] = ()) -> Table:
    """Table of rows by heading, `left` of which are texts, the others numbers."""
    first, *heads = rows[0]
    same = {head: rows[0][head] for head in heads if len({row[head] for row in rows}) == 1} if len(rows) > 1 else {}
    listed = ", ".join(f"{head} {text}" for head, text in same.items() if text)
    title = f"{title} (all: {listed})" if listed else title
    table = Table(title=title, title_justify="left", box=box.SIMPLE, min_width=min(len(title), WIDTH))
    for head in (first, *(head for head in heads if head not in same)):
        words = [word for row in rows for word in (head, *row[head].split())]
        is_text = head in left
        width = min(LONGEST_WORD, max(map(len, words)))
        justify: Any = "left" if is_text else "right"
        table.add_column(head, justify=justify, min_width=width, overflow="fold", no_wrap=not is_text)
    for row in rows:
        table.add_row(*(row[head] for head in (first, *heads) if head not in same))
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
    """Rows by class: a few numbered classes beside each other, others below each other."""
    counts = column.statistics.class_counts or ()
    title = f"{name}: rows by class"
    shown = counts[:CLASSES_SHOWN]  # as many as fit a tall terminal
    caption = (
        f"the first {len(shown)} of {len(counts):,} classes; --json gives all" if len(counts) > len(shown) else None
    )
    width = max(len(title), len(caption or ""))
    table = Table(title=title, title_justify="left", caption=caption or None, box=box.SIMPLE, min_width=width)
    texts = [f"{count:,}" for count in shown]
    if not column.names and sum(len(text) + 3 for text in texts) <= WIDTH:
        for number in range(len(shown)):
            table.add_column(str(number), justify="right", no_wrap=True)
        table.add_row(*texts)
    else:
        table.add_column("class", overflow="fold", justify="left" if column.names else "right")
        table.add_column("rows", justify="right", no_wrap=True)
        for label, text in zip(column.names or map(str, range(len(texts))), texts, strict=False):
            table.add_row(label, text)
    return table


def _files(store: AnyStore) -> Table:
    rows = [
        {
            "file": file.name,
            "MD5": file.md5,
            "check": file.check,
            "from": file.url.removesuffix(file.name) if file.url else "this machine",
        }
        for file in store.manifest.source.files
    ]
    return _table("read from", rows, left=rows[0])


def _format_bytes(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def data_tables(experiment: Experiment, data: DataSplits) -> Iterator[Table]:
    """Tables of the parts, of the columns that all of them hold alike, and of those that they do not."""
    draws = f"drawn by {data.mixture.draw}" if data.mixture else "one source"
    parts = Table(title=f"data of {experiment.name}: {draws}", title_justify="left", box=box.SIMPLE)
    for header in ("part", "store", "share", "training", "held out", "passes"):
        parts.add_column(header, justify="left" if header in ("part", "store") else "right", overflow="fold")
    for name, part in _parts(experiment, data).items():
        passes = "" if part["passes"] is None else f"{part['passes']:.3g}"
        numbers = (f"{part['share']:.4g}", f"{part['train']:,}", f"{part['held_out']:,}", passes)
        parts.add_row(name, part["store"], *numbers)
    yield parts
    columns = Table(title="columns", title_justify="left", box=box.SIMPLE)
    for header in ("column", "shape", "type"):
        columns.add_column(header)
    for name, column in data.train.columns.items():
        columns.add_row(name, str(column.shape).replace(str(ANY), "any"), column.dtype)
    yield columns
    if problems := _problems(data):
        left_out = Table(title="columns that the parts do not hold alike", title_justify="left", box=box.SIMPLE)
        left_out.add_column("column")
        left_out.add_column("reason", overflow="fold")
        for name, reason in problems.items():
            left_out.add_row(name, reason)
        yield left_out


def data_facts(experiment: Experiment, data: DataSplits) -> dict[str, Any]:
    """Return what the tables of an experiment's data show, in JSON's types."""
    return {
        "name": data.name,
        "fingerprint": data.fingerprint,
        "draw": data.mixture.draw if data.mixture else None,
        "parts": _parts(experiment, data),
        "columns": {
            name: {"shape": list(column.shape), "dtype": column.dtype} for name, column in data.train.columns.items()
        },
        "problems": dict(_problems(data)),
        "note": data.note,
    }


def _parts(experiment: Experiment, data: DataSplits) -> dict[str, dict[str, Any]]:
    kind: str = experiment.data.kind
    parts = data.mixture.parts if data.mixture else {kind: data}
    shares = data.mixture.shares if data.mixture else {kind: 1.0}
    steps = experiment.training.steps
    return {
        name: {
            "store": part.name,
            "fingerprint": part.fingerprint,
            "share": shares[name],
            "train": len(part.train),
            "held_out": len(part.held_out),
            "passes": steps and shares[name] * steps * experiment.batch.size / max(1, len(part.train)),
        }
        for name, part in parts.items()
    }


def _problems(data: DataSplits) -> Mapping[str, str]:
    return data.train.store.problems if isinstance(data.train.store, JoinedStore) else {}


def left_out_records(written: WrittenStore) -> Sequence[LeftOutRecords]:
    """Return what was left out or changed, by reason, most first.

    Of captions that are cut, the images are in the store.
    """
    store = written.store
    if not isinstance(store, BucketedStore):
        return sorted(written.left_out, key=lambda each: -each.number)
    facts = store.manifest.facts
    total = len(store) + sum(number for reason, number in facts.items() if "cut" not in reason)
    by_number = sorted(facts.items(), key=lambda fact: -fact[1])
    notes = store.manifest.notes
    found = []
    for reason, number in by_number:  # the first note about each, without the reason: `a.png (15x900 pixels)`
        note = next((note for note in notes if f": {reason} (" in note), "")
        found.append(LeftOutRecords(reason, number, total, note.replace(f": {reason} (", " (", 1)))
    return found


def left_out_table(records: Sequence[LeftOutRecords]) -> Table:
    """Return a table of counts by reason, their share of the source's records of that kind, and one of each."""
    table = Table(title="left out or cut", title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("reason")
    table.add_column("records", justify="right")
    table.add_column("share", justify="right")
    table.add_column("for one", overflow="fold")
    for each in records:
        share = each.number / each.total
        shown = f"{share:.2%}" if share >= 0.0001 else "under 0.01%"
        table.add_row(each.reason, f"{each.number:,}", shown, Text(each.example))
    return table

"""Table of the records that an import left out or changed, and why."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from ditlab.data.stores.bucketed_store import BucketedStore
from ditlab.data.stores.writer import LeftOutRecords, WrittenStore


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
    return [LeftOutRecords(reason, number, total, _example(reason, notes)) for reason, number in by_number]


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


def _example(reason: str, notes: Sequence[str]) -> str:
    """Return the first note about a reason without it: `a.png (15x900 pixels)`; empty where none is noted."""
    part = f": {reason} ("
    note = next((note for note in notes if part in note), "")
    return note.replace(part, " (", 1)

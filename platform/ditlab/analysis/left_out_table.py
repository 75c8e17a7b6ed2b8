"""Table of the records that an import left out or changed, and why."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore


def left_out_table(store: AnyStore) -> Table | None:
    """Counts by reason, their share of the source's records, and the first of each; None where all was taken as it is.

    Of captions that are cut, the images are in the store.
    """
    if not isinstance(store, BucketedStore) or not store.manifest.facts:
        return None
    facts = store.manifest.facts
    records = len(store) + sum(number for reason, number in facts.items() if "cut" not in reason)
    table = Table(title="left out or cut", title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("reason")
    table.add_column("records", justify="right")
    table.add_column("share", justify="right")
    table.add_column("for one", overflow="fold")
    for reason, number in sorted(facts.items(), key=lambda fact: -fact[1]):
        share = f"{number / records:.2%}" if number / records >= 0.0001 else "under 0.01%"
        table.add_row(reason, f"{number:,}", share, Text(_example(reason, store.manifest.notes)))
    return table


def _example(reason: str, notes: Sequence[str]) -> str:
    """Return the first note about a reason without it: `a.png (15x900 pixels)`; empty where none is noted."""
    part = f": {reason} ("
    note = next((note for note in notes if part in note), "")
    return note.replace(part, " (", 1)

"""Receipts of imports: what a source holds, what of it is in the store, and what was dropped, by
reason.

A receipt has levels: files, and below them the rows of tables, the members of archives or the
documents of text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    NonNegativeInt,
    PositiveInt,
)

from ditlab.errors import shortened
from ditlab.spec.values import escaped, printable

MAX_BYTES = 200
"""Most bytes of a name. File systems take 255; a copy in the making has a longer name."""
SHOWN = 3
"""Reasons, or records, that a line names."""
LISTED = 1000
"""Dropped records that a receipt lists; all are counted."""
DAMAGED = "damaged file"
"""Reason for which all of a file behind its damage is dropped."""
NO_RECORD = "unreadable"
"""Reason of a record that cannot be read."""
REPLACED = "replaced by a later one"
"""Reason of a file or member that gives way to another one of its name."""
MUCH = 0.1
"""Share of a level above which a warning says what was dropped."""


def plain_name(name: str) -> str:
    """Return the name of one file or folder unchanged. Raises ValueError for `..`, `a/b`, `/a`, an
    empty one etc.
    """
    if (
        not name.strip(".")
        or re.search(r"[/\\\x00-\x1f\x7f]", name)
        or len(name.encode()) > MAX_BYTES
    ):
        raise ValueError(f"{name[:60]!r} is no plain name of a file or folder in the store")
    return name


PlainName = Annotated[str, AfterValidator(plain_name)]


class ManifestRecord(BaseModel):
    """Base of the manifest's records: frozen, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class DroppedRecord(ManifestRecord):
    """Record of a source that is not in the store."""

    place: Annotated[str, BeforeValidator(escaped)]
    """Place for people: a path below the source, a tar's member, a row of a file."""
    reason: str
    """Reason, which records are counted by: `too small`."""
    detail: str = ""
    """Finding that led to it."""

    def __str__(self) -> str:
        if self.detail:
            return f"{self.place}: {self.reason} ({self.detail})"
        return f"{self.place}: {self.reason}"


@dataclass
class DroppedRecords:
    """Records that are dropped, as they are found: all are counted, the first are kept."""

    counts: Counter[str] = field(default_factory=Counter)
    """Number of them by reason."""
    first: list[DroppedRecord] = field(default_factory=list)

    def add(self, *records: DroppedRecord) -> None:
        """Count records."""
        self.counts.update(each.reason for each in records)
        self.first += records[: LISTED - len(self.first)]


class ReceiptLevel(ManifestRecord):
    """Counts of one kind of a source's records."""

    unit: str
    """`files`, `members`, `rows`, `documents`, `lines`, `peaks`, `windows`."""
    used: dict[str, NonNegativeInt]
    """Number of those in the store, by what they are there: `images`, `captions`."""
    left_out: dict[str, NonNegativeInt] = {}
    """Number of the others, by reason."""

    @property
    def num_left_out(self) -> int:
        """Number of dropped records."""
        return sum(self.left_out.values())

    @property
    def found(self) -> int:
        """Number of all records."""
        return sum(self.used.values()) + self.num_left_out

    def __str__(self) -> str:
        used = [f"{number:,} {what}" for what, number in self.used.items() if number]
        line = f"{self.found:,} {self.unit} found: {', '.join(used) or 'none'}"
        if not self.num_left_out:
            return line
        reasons = Counter(self.left_out).most_common(SHOWN)
        shown = ", ".join(f"{number:,} {reason}" for reason, number in reasons)
        others = self.num_left_out - sum(number for _, number in reasons)
        more = f", {others:,} for other reasons" if others else ""
        return f"{line}; {self.num_left_out:,} dropped: {shown}{more}"


class SourceReceipt(ManifestRecord):
    """Receipt of an import."""

    model_config = ConfigDict(extra="ignore")  # older ones name a file of all that was dropped

    levels: tuple[ReceiptLevel, ...]
    changed: dict[str, PositiveInt] = {}
    """Number of rows that were changed on their way, by what was done: `captions cut`."""
    listed: tuple[str, ...] = ()
    """The first of what was dropped, a line each: place, reason and finding."""
    warnings: tuple[str, ...] = ()
    """Sentences on what a person should look at."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of records dropped or changed on all levels, by reason."""
        counts = Counter(self.changed)
        for level in self.levels:
            counts.update(level.left_out)
        return dict(sorted(counts.items()))

    def lines(self) -> list[str]:
        """Return it for a terminal; warnings stand apart."""
        lines = [str(level) for level in self.levels]
        if self.changed:
            lines.append(", ".join(f"{number:,} {what}" for what, number in self.changed.items()))
        if self.listed:
            shown = [*self.listed[:SHOWN]]
            if len(self.listed) > SHOWN:
                shown.append("...")
            lines.append(f"dropped: {'; '.join(shown)}")
        return lines


def make_receipt(
    levels: Sequence[ReceiptLevel],
    dropped: Iterable[DroppedRecord],
    changed: Mapping[str, int] | None = None,
    warnings: Sequence[str] = (),
) -> SourceReceipt:
    """Return a receipt, with warnings of shares and damages added. `dropped`: the dropped records
    that were kept."""
    kept = list(dropped)[:LISTED]
    damaged = [printable(each.place) for each in kept if each.reason == DAMAGED]
    return SourceReceipt(
        levels=tuple(levels),
        changed={what: number for what, number in sorted((changed or {}).items()) if number},
        listed=tuple(printable(str(each)) for each in kept),
        warnings=(*warnings, *_damages(damaged), *_shares(levels)),
    )


def _damages(places: Sequence[str]) -> list[str]:
    if not places:
        return []
    shown = [*places[:SHOWN]]
    if len(places) > SHOWN:
        shown.append("...")
    warning = (
        f"Damaged: {', '.join(shown)}. What lies behind the damage is neither in the store nor "
        "counted; copy the file again."
    )
    return [warning]


def _shares(levels: Sequence[ReceiptLevel]) -> list[str]:
    """Return a sentence for each level of which more than a tenth was dropped."""
    warnings = []
    for level in levels:
        if level.num_left_out > MUCH * level.found:
            share = level.num_left_out / level.found
            most = max(level.left_out, key=level.left_out.__getitem__)
            warnings.append(
                f"{level.num_left_out:,} of {level.found:,} {level.unit} ({share:.0%}) were "
                f"dropped, most as {most}."
            )
    return warnings


def class_warnings(counts: Mapping[str, int]) -> list[str]:
    """Return a sentence for the classes (rows by name) that have no sample."""
    empty = [name for name, number in counts.items() if not number]
    if not empty:
        return []
    classes = "class has" if len(empty) == 1 else "classes have"
    warning = (
        f"{len(empty):,} {classes} no sample: {shortened(empty, SHOWN)}; a model that is asked for "
        "one draws what it never saw."
    )
    return [warning]

"""Receipts of imports: what a source holds, what of it is in the store, and what was left out, by reason and ending.

A receipt has levels: files, and below them the rows of tables, the members of archives or the documents of text. On
each level the numbers add up: used + left out = found.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, NonNegativeInt, PositiveInt, model_validator

from ditlab.errors import shortened
from ditlab.spec.values import printable
from ditlab.storage.plain_files import MIB, read_plain

MAX_BYTES = 200
"""Most bytes of a name. File systems take 255; a copy in the making has a longer name."""
LEFT_OUT_LISTS = "left_out-*.txt"
"""Pattern of the names of files that list what an import left out."""
SHOWN_NAMES = 3
"""Names that a receipt gives of a group; the file beside the store has more."""
SHOWN_LINES = 20
"""Records left out that a receipt lists; the file beside the store has more."""
LISTED = 100_000
"""Lines of that file that an import adds."""
LIST_BYTES = 512 * MIB
"""Most bytes of that file."""
DAMAGED = "damaged file"
"""Reason for which all of a file behind its damage is left out."""
MUCH = 0.1
"""Share of a level from which what is left out is warned of."""


def plain_name(name: str) -> str:
    """Return the name of one file or folder unchanged. Raises ValueError for `..`, `a/b`, `/a`, an empty one etc."""
    if not name.strip(".") or re.search(r"[/\\\x00-\x1f\x7f]", name) or len(name.encode()) > MAX_BYTES:
        raise ValueError(f"{name[:60]!r} is no plain name of a file or folder in the store")
    return name


PlainName = Annotated[str, AfterValidator(plain_name)]


class ManifestRecord(BaseModel):
    """Base of the manifest's records: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class LeftOutGroup(ManifestRecord):
    """Records that were left out for one reason, whose names end alike."""

    reason: str
    """Reason: `too small`, `not read`."""
    ending: str = ""
    """Ending of their names in small letters, `.tif`; empty where names tell nothing, as of rows."""
    number: PositiveInt
    first: tuple[str, ...] = ()
    """Names of the first of them."""

    def __str__(self) -> str:
        what = f"{self.number:,} {self.ending or self.reason}"
        more = ", ..." if self.number > len(self.first) else ""
        return f"{what} ({f'{self.reason}: ' if self.ending else ''}{', '.join(self.first)}{more})"


@dataclass
class LeftOutTally:
    """Counts of what is left out, as it is found."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    names: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, reason: str, ending: str, *names: str, number: int = 1) -> None:
        """Count records of a reason and an ending."""
        key = (reason, ending)
        self.counts[key] += number
        held = self.names.setdefault(key, [])
        if len(held) < SHOWN_NAMES:
            held += map(printable, names[: SHOWN_NAMES - len(held)])

    def merge(self, groups: Iterable[LeftOutGroup]) -> LeftOutTally:
        """Add groups that were counted elsewhere; returns itself."""
        for group in groups:
            self.add(group.reason, group.ending, *group.first, number=group.number)
        return self

    def level(self, unit: str, used: Mapping[str, int]) -> ReceiptLevel:
        """Return the level of the records that are used, by what they are, and of those that are left out."""
        found = sum(used.values()) + self.counts.total()
        return ReceiptLevel(unit=unit, found=found, used=dict(used), left_out=self.groups())

    def groups(self) -> tuple[LeftOutGroup, ...]:
        """Return the groups, the largest first."""
        return tuple(
            LeftOutGroup(reason=reason, ending=ending, number=number, first=tuple(self.names[reason, ending]))
            for (reason, ending), number in sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
            if number
        )


class ReceiptLevel(ManifestRecord):
    """Counts of one kind of a source's records. Raises ValueError where used + left out is not found."""

    unit: str
    """`files`, `members`, `rows`, `documents`, `peaks`, `windows`."""
    found: NonNegativeInt
    used: dict[str, NonNegativeInt]
    """Number of those in the store, by what they are there: `images`, `captions`."""
    left_out: tuple[LeftOutGroup, ...] = ()

    @model_validator(mode="after")
    def _numbers_add_up(self) -> ReceiptLevel:
        used = sum(self.used.values())
        left = self.num_left_out
        if used + left != self.found:
            raise ValueError(f"{self.unit}: {used} used and {left} left out are not {self.found} found")
        return self

    @property
    def num_left_out(self) -> int:
        """Number of records left out."""
        return sum(group.number for group in self.left_out)


class SourceReceipt(ManifestRecord):
    """Receipt of an import."""

    levels: tuple[ReceiptLevel, ...]
    changed: dict[str, PositiveInt] = {}
    """Number of rows that were changed on their way, by what was done: `captions cut`."""
    listed: tuple[str, ...] = ()
    """The first of what was left out, a line each: place, reason and finding."""
    list_name: PlainName | None = None
    """Name of the file beside the manifest that lists all of it; null where nothing was left out."""
    warnings: tuple[str, ...] = ()
    """Sentences on what a person should look at."""
    earlier: tuple[SourceReceipt, ...] = ()
    """Receipts of the imports before, of a store to which images were added."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of records left out or changed on all levels, by reason."""
        counts = Counter(dict(self.changed))
        for level in self.levels:
            for group in level.left_out:
                counts[group.reason] += group.number
        return dict(sorted(counts.items()))

    def lines(self) -> list[str]:
        """Return it for a terminal: a line a level, then one for what was changed; warnings stand apart."""
        lines = []
        for level in self.levels:
            used = ", ".join(f"{number:,} {what}" for what, number in level.used.items() if number) or "none"
            line = f"{level.found:,} {level.unit} found: {used}"
            if level.num_left_out:
                shown = level.left_out[:SHOWN_NAMES]
                more = sum(group.number for group in level.left_out[SHOWN_NAMES:])
                groups = "; ".join(map(str, shown)) + (f"; {more:,} for other reasons" if more else "")
                line += f"; {level.num_left_out:,} left out: {groups}"
            lines.append(line)
        if self.changed:
            lines.append(", ".join(f"{number:,} {what}" for what, number in self.changed.items()))
        return lines


def make_receipt(
    levels: Sequence[ReceiptLevel],
    lines: Sequence[str],
    changed: Mapping[str, int] | None = None,
    warnings: Sequence[str] = (),
    earlier: tuple[Path, SourceReceipt] | None = None,
) -> tuple[SourceReceipt, bytes]:
    """Return a receipt, with warnings of shares and damages added, and the file that lists what was left out.

    `lines`: what was left out, as far as it was kept; `earlier`: folder and receipt of the store that grows.
    """
    lines = [*map(printable, lines[:LISTED])]
    more = sum(level.num_left_out for level in levels) - len(lines)
    text = "".join(f"{line}\n" for line in [*lines, *([f"and {more:,} more"] if more else [])]).encode()
    receipts: tuple[SourceReceipt, ...] = ()
    if earlier:
        folder, before = earlier
        text = read_list(folder, before) + text
        receipts = (*before.earlier, before.model_copy(update={"list_name": None, "earlier": ()}))
    receipt = SourceReceipt(
        levels=tuple(levels),
        changed={what: number for what, number in sorted((changed or {}).items()) if number},
        listed=tuple(lines[:SHOWN_LINES]),
        # a name with the content's hash: a new list leaves the old store's in place
        list_name=f"left_out-{hashlib.sha256(text).hexdigest()[:8]}.txt" if text else None,
        warnings=(*warnings, *_damages(levels), *_shares(levels)),
        earlier=receipts,
    )
    return receipt, text


def read_list(folder: Path, receipt: SourceReceipt | None) -> bytes:
    """Return the list of what was left out of a store; empty where there is none."""
    return read_plain(folder / receipt.list_name, LIST_BYTES) if receipt and receipt.list_name else b""


def _damages(levels: Sequence[ReceiptLevel]) -> list[str]:
    """Return a sentence for each level of which an unknown number lies behind the damage of a file."""
    return [
        f"Damaged: {', '.join(group.first)}{', ...' if group.number > len(group.first) else ''}. What lies behind the "
        f"damage is neither in the store nor counted among the {level.unit}; copy the file again."
        for level in levels
        for group in level.left_out
        if group.reason == DAMAGED and not group.ending
    ]


def _shares(levels: Sequence[ReceiptLevel]) -> list[str]:
    """Return a sentence for each level of which more than a tenth was left out."""
    return [
        f"{level.num_left_out:,} of {level.found:,} {level.unit} ({level.num_left_out / level.found:.0%}) were left "
        f"out, most as {max(level.left_out, key=lambda group: group.number).reason}."
        for level in levels
        if level.num_left_out > MUCH * level.found
    ]


def class_warnings(counts: Mapping[str, int]) -> list[str]:
    """Return a sentence for the classes (rows by name) that have no sample."""
    empty = [name for name, number in counts.items() if not number]
    if not empty:
        return []
    classes = "class has" if len(empty) == 1 else "classes have"
    shown = shortened(empty, SHOWN_NAMES)
    return [f"{len(empty):,} {classes} no sample: {shown}; a model that is asked for one draws what it never saw."]

"""Regions by coordinates: reading BED intervals, and which regions overlap them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

COLUMNS = ("chromosome", "start", "end")
"""What rows need to be found by coordinates."""
LARGEST = 2**63 - 1
"""Coordinates are int64."""
SKIPPED = ("#", "track", "browser")
"""How lines begin that hold no interval."""
MOST_NAMED = 6
"""Chromosomes that a message names."""


@dataclass(frozen=True)
class Intervals:
    """One chromosome's, by start."""

    start: np.ndarray
    """(n,) int64, base pairs from 0, ascending."""
    end: np.ndarray
    """(n,) int64, exclusive."""
    furthest: np.ndarray
    """(n,) int64: the largest end among this interval and those before it."""

    def overlap(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Whether [start, end) shares a base pair with any interval; bool in start's shape."""
        before = np.searchsorted(self.start, end, side="left")  # intervals that begin before the region ends
        return (before > 0) & (self.furthest[before - 1] > start)

    def num_met(self, start: np.ndarray, end: np.ndarray) -> int:
        """How many of these intervals share a base pair with any region [start, end), (m,) int64 in any order."""
        order = np.argsort(start, kind="stable")
        regions = _intervals(start[order], end[order])
        return int(regions.overlap(self.start, self.end).sum())


def read_bed(path: Path) -> dict[str, Intervals]:
    """Intervals by chromosome. Raises ValueError for a file that cannot be read, or a line that is no interval."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # without the mark that some editors put in front
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text; unpack it first"
        raise ValueError(f"sampling.mask.path={path} cannot be read ({reason}); name a BED file.") from error
    found: dict[str, list[tuple[int, int]]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith(SKIPPED):
            continue
        fields = line.split()
        try:
            start, end = int(fields[1]), int(fields[2])
        except (IndexError, ValueError):
            start = end = 0
        if not 0 <= start < end <= LARGEST:
            raise ValueError(
                f"sampling.mask.path={path}, line {number} is no BED interval ({line.strip()[:60]!r}); it needs a "
                f"chromosome, a start from 0 and a larger end (at most {LARGEST:,}), separated by tabs or spaces."
            )
        found.setdefault(fields[0], []).append((start, end))
    if not found:
        raise ValueError(f"sampling.mask.path={path} holds no interval; name a BED file that does.")
    ordered = {name: np.array(sorted(pairs), dtype=np.int64) for name, pairs in found.items()}
    return {name: _intervals(pairs[:, 0], pairs[:, 1]) for name, pairs in ordered.items()}


def _intervals(start: np.ndarray, end: np.ndarray) -> Intervals:
    return Intervals(start, end, np.maximum.accumulate(end))


def overlapping(columns: Mapping[str, np.ndarray], intervals: Mapping[str, Intervals]) -> np.ndarray:
    """(num, R) bool: which regions of windows overlap an interval. Columns: chromosome (num,), start and end (num, R).

    Padding, which starts and ends at 0, overlaps nothing. Raises ValueError for rows without such columns.
    """
    missing = " and no ".join(name for name in COLUMNS if name not in columns)
    if missing:
        raise ValueError(
            f"sampling.mask.kind=bed finds regions by their coordinates, and these rows have no {missing}; "
            "set sampling.mask.kind to random, or import the data with coordinates."
        )
    start, end = columns["start"], columns["end"]
    found = np.zeros(start.shape, dtype=bool)
    for name in np.unique(columns["chromosome"]):
        if str(name) in intervals:
            here = columns["chromosome"] == name
            found[here] = intervals[str(name)].overlap(start[here], end[here])
    return found & (end > start)


def unmet(columns: Mapping[str, np.ndarray], intervals: Mapping[str, Intervals]) -> str:
    """What a person should know of intervals without a region in these windows; nothing where each has one."""
    num = sum(len(each.start) for each in intervals.values())
    met = 0
    for name in np.unique(columns["chromosome"]):
        if str(name) in intervals:
            here = columns["chromosome"] == name
            start, end = columns["start"][here], columns["end"][here]
            present = end > start
            met += intervals[str(name)].num_met(start[present], end[present])
    if met == num:
        return ""
    if met:
        return f"{num - met:,} of {num:,} intervals meet no region of these windows, and nothing is imputed for them"
    windows, here = len(columns["start"]), _some(np.unique(columns["chromosome"]).tolist())
    return f"none of {num:,} intervals (of {_some(intervals)}) meets a region of these {windows:,} windows (of {here})"


def _some(names: Iterable[str]) -> str:
    """`chr1, chr2`, or the first few and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else ""
    return ", ".join(listed[:MOST_NAMED]) + more

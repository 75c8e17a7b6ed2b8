"""BED intervals, and the regions that overlap them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

COLUMNS = ("chromosome", "start", "end")
"""Columns that hold the coordinates of regions."""
MAX_COORDINATE = 2**63 - 1
"""Largest coordinate: int64's."""
SKIPPED = ("#", "track", "browser")
"""Beginnings of lines without an interval."""
MAX_NAMES = 6
"""Most chromosomes that a message names."""


@dataclass(frozen=True)
class Intervals:
    """Intervals of one chromosome, by start."""

    start: np.ndarray
    """(n,) int64, base pairs from 0, ascending."""
    end: np.ndarray
    """(n,) int64, exclusive."""
    max_end: np.ndarray
    """(n,) int64: the largest end among this interval and those before it."""

    def overlap(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """True where [start, end) shares a base pair with any interval; bool in start's shape."""
        before = np.searchsorted(self.start, end, side="left")  # intervals that begin before the region ends
        return (before > 0) & (self.max_end[before - 1] > start)

    def num_overlapped(self, start: np.ndarray, end: np.ndarray) -> int:
        """Count the intervals that share a base pair with any region [start, end), (m,) int64 in any order."""
        order = np.argsort(start, kind="stable")
        regions = _intervals(start[order], end[order])
        return int(regions.overlap(self.start, self.end).sum())


def read_bed(path: Path) -> dict[str, Intervals]:
    """Read intervals by chromosome. Raises ValueError for a file that cannot be read, or a line without an interval."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()  # without a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text; unpack it first"
        raise ValueError(f"sampling.mask.path={path} cannot be read ({reason}); name a BED file.") from error
    pairs: dict[str, list[tuple[int, int]]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith(SKIPPED):
            continue
        fields = line.split()
        try:
            start, end = int(fields[1]), int(fields[2])
        except (IndexError, ValueError):
            start = end = 0
        if not 0 <= start < end <= MAX_COORDINATE:
            raise ValueError(
                f"sampling.mask.path={path}, line {number} is no BED interval ({line.strip()[:60]!r}); it needs a "
                f"chromosome, a start from 0 and a larger end (at most {MAX_COORDINATE:,}), separated by tabs or "
                "spaces."
            )
        pairs.setdefault(fields[0], []).append((start, end))
    if not pairs:
        raise ValueError(f"sampling.mask.path={path} holds no interval; name a BED file that does.")
    ordered = {name: np.array(sorted(each), dtype=np.int64) for name, each in pairs.items()}
    return {name: _intervals(each[:, 0], each[:, 1]) for name, each in ordered.items()}


def _intervals(start: np.ndarray, end: np.ndarray) -> Intervals:
    return Intervals(start, end, np.maximum.accumulate(end))


def overlapping(columns: Mapping[str, np.ndarray], intervals: Mapping[str, Intervals]) -> np.ndarray:
    """Mask (num, R) bool of regions that overlap an interval. Columns: chromosome (num,), start and end (num, R).

    Padding, which starts and ends at 0, overlaps nothing. Raises ValueError for rows without such columns.
    """
    missing = " and no ".join(name for name in COLUMNS if name not in columns)
    if missing:
        raise ValueError(
            f"sampling.mask.kind=bed finds regions by their coordinates, and these rows have no {missing}; "
            "set sampling.mask.kind to random, or import the data with coordinates."
        )
    start, end = columns["start"], columns["end"]
    overlap = np.zeros(start.shape, dtype=bool)
    for name in np.unique(columns["chromosome"]):
        if str(name) in intervals:
            here = columns["chromosome"] == name
            overlap[here] = intervals[str(name)].overlap(start[here], end[here])
    return overlap & (end > start)


def describe_misses(columns: Mapping[str, np.ndarray], intervals: Mapping[str, Intervals]) -> str:
    """Describe the intervals without a region in these windows; "" if each has one."""
    num = sum(len(each.start) for each in intervals.values())
    num_hit = 0
    for name in np.unique(columns["chromosome"]):
        if str(name) in intervals:
            here = columns["chromosome"] == name
            start, end = columns["start"][here], columns["end"][here]
            present = end > start
            num_hit += intervals[str(name)].num_overlapped(start[present], end[present])
    if num_hit == num:
        return ""
    if num_hit:
        return (
            f"{num - num_hit:,} of {num:,} intervals meet no region of these windows, and nothing is imputed for them"
        )
    windows, here = len(columns["start"]), _list_names(np.unique(columns["chromosome"]).tolist())
    intervals_of = f"{num:,} intervals (of {_list_names(intervals)})"
    return f"none of {intervals_of} meets a region of these {windows:,} windows (of {here})"


def _list_names(names: Iterable[str]) -> str:
    """`chr1, chr2`, or the first few names and the number of others."""
    listed = sorted(names)
    more = f" and {len(listed) - MAX_NAMES} more" if len(listed) > MAX_NAMES else ""
    return ", ".join(listed[:MAX_NAMES]) + more

"""Regions by coordinates: reading BED intervals, and which regions overlap them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SKIPPED = ("#", "track", "browser")
"""How lines begin that hold no interval."""


@dataclass(frozen=True)
class Intervals:
    """One chromosome's, by start."""

    start: np.ndarray
    """(n,) int64, base pairs from 0, ascending."""
    furthest: np.ndarray
    """(n,) int64: the largest end (exclusive) among this interval and those before it."""

    def overlap(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Whether [start, end) shares a base pair with any interval; bool in start's shape."""
        before = np.searchsorted(self.start, end, side="left")  # intervals that begin before the region ends
        return (before > 0) & (self.furthest[before - 1] > start)


def read_bed(path: Path) -> dict[str, Intervals]:
    """Intervals by chromosome. Raises ValueError for a file that cannot be read, or a line that is no interval."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
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
        if not 0 <= start < end:
            raise ValueError(
                f"sampling.mask.path={path}, line {number} is no BED interval ({line.strip()[:60]!r}); it needs a "
                "chromosome, a start from 0 and a larger end, separated by tabs or spaces."
            )
        found.setdefault(fields[0], []).append((start, end))
    if not found:
        raise ValueError(f"sampling.mask.path={path} holds no interval; name a BED file that does.")
    return {name: _intervals(pairs) for name, pairs in found.items()}


def _intervals(pairs: list[tuple[int, int]]) -> Intervals:
    ordered = np.array(sorted(pairs), dtype=np.int64)
    return Intervals(ordered[:, 0], np.maximum.accumulate(ordered[:, 1]))


def overlapping(columns: Mapping[str, np.ndarray], intervals: Mapping[str, Intervals]) -> np.ndarray:
    """(num, R) bool: which regions of windows overlap an interval. Columns: chromosome (num,), start and end (num, R).

    Padding, which starts and ends at 0, overlaps nothing.
    """
    start, end = columns["start"], columns["end"]
    found = np.zeros(start.shape, dtype=bool)
    for name in np.unique(columns["chromosome"]):
        if str(name) in intervals:
            here = columns["chromosome"] == name
            found[here] = intervals[str(name)].overlap(start[here], end[here])
    return found & (end > start)

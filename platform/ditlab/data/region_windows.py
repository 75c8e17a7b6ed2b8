"""Windows of consecutive peaks along a chromosome: the rows of a store of genomic regions."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ditlab.data.stores.manifest import Column, class_column

if TYPE_CHECKING:  # torch and pyarrow, which an importer's --help can do without
    from ditlab.data.stores.bucketed_store import AnyStore

MAX_SPAN = 5_000_000
"""Most base pairs that a window may span."""
BATCH_BYTES = 16 * 2**20
"""Bytes of features in a batch of windows, unless one window is larger."""
COMPARED_WINDOWS = 256
"""Windows whose coordinates are compared at a time: at 900 regions, 7 MB."""
WHOLE_CHROMOSOMES = "hold out whole chromosomes: data.hold_out: {column: chromosome, values: [...]}"
"""Remedy where windows overlap."""
PEAK = np.dtype(
    [("chromosome", "<i4"), ("start", "<i8"), ("end", "<i8"), ("row", "<i8"), ("atpm", "<f8")]
)
"""Peak: number of its chromosome, first base pair and the one behind its last, number in its
source, accessibility.
"""


def make_peaks(chromosome: np.ndarray | int, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return peaks (peaks,) of type PEAK, numbered as they come, with an accessibility of 1."""
    peaks = np.empty(len(start), PEAK)
    peaks["chromosome"] = chromosome
    peaks["start"] = start
    peaks["end"] = end
    peaks["row"] = np.arange(len(start))
    peaks["atpm"] = 1
    return peaks


def region_columns(
    regions: int,
    feature_names: Sequence[str],
    divisors: Sequence[float],
    chromosomes: Sequence[str],
) -> dict[str, Column]:
    """Return the columns of windows of `regions` peaks, whose features were divided by `divisors`
    to lie in [0, 1].
    """
    return {
        "regions": Column(
            dtype="float32",
            shape=(regions, len(feature_names)),
            value_range=(0, 1),
            unit="score",
            description=(
                "region, feature (accessibility last), over the feature's divisor; 0 in padding"
            ),
            names=tuple(feature_names),
            divisors=tuple(divisors),
        ),
        "present": Column(
            dtype="bool",
            shape=(regions,),
            description="false for padding, which ends a chromosome's last window",
        ),
        "chromosome": class_column("the window's chromosome", len(chromosomes), chromosomes),
        "start": Column(
            dtype="int64",
            shape=(regions,),
            unit="base pairs",
            description="of each region; 0 in padding",
        ),
        "end": Column(
            dtype="int64",
            shape=(regions,),
            unit="base pairs",
            description="behind each region; 0 in padding",
        ),
    }


class Windows(NamedTuple):
    """Windows along the peaks."""

    first: np.ndarray
    """int64 (windows,), number of the first peak of each."""
    size: np.ndarray
    """int64 (windows,), number of its peaks."""
    dropped: int = 0
    """Windows that were dropped, as they span too many base pairs."""


def plan_windows(
    peaks: np.ndarray, regions: int, stride: int | None = None, max_span: int = MAX_SPAN
) -> Windows:
    """Cut peaks, by chromosome and ascending, into windows of `regions`, `stride` apart (None: side
    by side).

    A chromosome's last window may have fewer; one that lies within the window before is dropped.
    """
    stride = stride or regions
    first = [np.zeros(0, np.int64)]
    size = [np.zeros(0, np.int64)]
    for low, high in pairwise(np.flatnonzero(np.diff(peaks["chromosome"], prepend=-1, append=-1))):
        starts = np.arange(low, high, stride)
        starts = starts[(starts == low) | (starts - stride + regions < high)]
        first.append(starts)
        size.append(np.minimum(regions, high - starts))
    firsts = np.concatenate(first)
    sizes = np.concatenate(size)
    fits = peaks["end"][firsts + sizes - 1] - peaks["start"][firsts] <= max_span
    return Windows(firsts[fits], sizes[fits], int((~fits).sum()))


def windows_overlap(store: "AnyStore") -> bool:
    """Return True if any window of a store shares a region with the one before it; False where rows
    are no windows.
    """
    columns = store.columns
    if not columns.keys() >= {"regions", "chromosome", "start", "end"}:
        return False
    regions = columns["regions"].shape[:1]
    shapes = [columns[name].shape for name in ("chromosome", "start", "end")]
    if shapes != [(), regions, regions]:
        return False
    for begin in range(1, len(store), COMPARED_WINDOWS):
        later = np.arange(begin, min(begin + COMPARED_WINDOWS, len(store)))
        chromosome, start, end = (
            [store.gather(name, rows).numpy() for rows in (later - 1, later)]
            for name in ("chromosome", "start", "end")
        )
        same = (
            (start[0] == start[1][:, :1])
            & (end[0] == end[1][:, :1])
            & (chromosome[0] == chromosome[1])[:, None]
        )
        if same.any():
            return True
    return False


def window_batches(
    peaks: np.ndarray,
    windows: Windows,
    regions: int,
    num_features: int,
    features: Callable[[int, int], np.ndarray],
) -> Iterator[dict[str, np.ndarray]]:
    """Yield windows as batches for a store of `region_columns`, some `BATCH_BYTES` at a time.

    `features(first, stop)`, called once a window in their order, returns the features of peaks
    `first` to `stop`, float32 (stop - first, num_features).
    """
    rows = max(1, BATCH_BYTES // (4 * regions * num_features))
    for begin in range(0, len(windows.first), rows):
        first = windows.first[begin : begin + rows]
        size = windows.size[begin : begin + rows]
        present = np.arange(regions) < size[:, None]
        places = np.where(present, first[:, None] + np.arange(regions), 0)
        values = np.zeros((len(first), regions, num_features), np.float32)
        for row, low, num in zip(values, first.tolist(), size.tolist(), strict=True):
            row[:num] = features(low, low + num)
        yield {
            "regions": values,
            "present": present,
            "chromosome": peaks["chromosome"][first].astype(np.int64),
            **{name: np.where(present, peaks[name][places], 0) for name in ("start", "end")},
        }

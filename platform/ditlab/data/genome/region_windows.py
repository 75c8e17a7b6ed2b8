"""Windows of consecutive peaks along a chromosome: the rows of a store of genomic regions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ditlab.data.stores.manifest import Column

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
PEAK_NAME = "largest_accessibility"
PEAK_COLUMN = Column(
    dtype="float64", unit="atpm", description="the window's largest accessibility, by which its others were divided"
)
"""Column of windows whose accessibilities were measured."""

Features = Callable[[int, int, int], np.ndarray]
"""Function `features(chromosome, first, stop)`, called once a window, in the windows' order.

It returns the features of that chromosome's peaks `first` to `stop`, float32 (stop - first, features).
"""


@dataclass(frozen=True)
class ChromosomePeaks:
    """Peaks of one chromosome, to be cut into windows."""

    name: str
    start: np.ndarray
    """int64 (peaks,), base pairs, ascending."""
    end: np.ndarray
    """int64 (peaks,), base pairs, behind the peak's last one."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class WindowPlan:
    """Peaks of each window. Arrays are int64 (windows,), by chromosome and then along it."""

    peaks: tuple[ChromosomePeaks, ...]
    regions: int
    """Most peaks of a window."""
    chromosome: np.ndarray
    """Number of the window's chromosome in `peaks`."""
    first: np.ndarray
    """Number of its first peak among those of its chromosome."""
    size: np.ndarray
    """Number of its peaks, 1 to `regions`."""
    dropped: int
    """Windows left out, as they span too many base pairs."""

    def __len__(self) -> int:
        return len(self.first)


def region_columns(
    regions: int, feature_names: Sequence[str], divisors: Sequence[float], chromosomes: Sequence[str]
) -> dict[str, Column]:
    """Return the columns of a store whose rows are windows of `regions` peaks.

    `divisors`: the number by which each feature was divided, so that its values lie in [0, 1].
    """
    return {
        "regions": Column(
            dtype="float32",
            shape=(regions, len(feature_names)),
            value_range=(0, 1),
            unit="score",
            description="region, feature (accessibility last), over the feature's divisor; 0 in padding",
            names=tuple(feature_names),
            divisors=tuple(divisors),
        ),
        "present": Column(
            dtype="bool", shape=(regions,), description="false for padding, which ends a chromosome's last window"
        ),
        "chromosome": Column(
            dtype="int64",
            num_classes=len(chromosomes),
            unit="class index",
            description="the window's chromosome",
            names=tuple(chromosomes),
        ),
        "start": Column(dtype="int64", shape=(regions,), unit="base pairs", description="of each region; 0 in padding"),
        "end": Column(
            dtype="int64", shape=(regions,), unit="base pairs", description="behind each region; 0 in padding"
        ),
    }


def plan_windows(
    peaks: Sequence[ChromosomePeaks], regions: int, stride: int | None = None, max_span: int = MAX_SPAN
) -> WindowPlan:
    """Cut each chromosome into windows of `regions` consecutive peaks that begin `stride` (None: `regions`) apart.

    A chromosome's last window may hold fewer. With a stride of at most `regions` it ends with the last peak; a longer
    one leaves peaks between windows out, and maybe the last ones. Windows with more than `max_span` base pairs from the
    first start to the last end are left out, and counted.
    """
    stride = stride or regions
    chromosome, first, size, dropped = [], [], [], 0
    for number, along in enumerate(peaks):
        starts = np.arange(0, len(along), stride)
        # behind a window that reaches the last peak, another would hold nothing new
        starts = starts[(starts == 0) | (starts - stride + regions < len(along))]
        sizes = np.minimum(regions, len(along) - starts)
        fits = along.end[starts + sizes - 1] - along.start[starts] <= max_span
        dropped += int((~fits).sum())
        chromosome.append(np.full(fits.sum(), number))
        first.append(starts[fits])
        size.append(sizes[fits])
    return WindowPlan(tuple(peaks), regions, _joined(chromosome), _joined(first), _joined(size), dropped)


def windows_overlap(store: "AnyStore") -> bool:
    """Return True if any window of a store shares a region with the one before it; False for rows that are no windows.

    A store's windows come by chromosome and along it, so only neighbours are compared: the first region of each with
    all regions of the one before.
    """
    shapes = [store.columns[name].shape if name in store.columns else None for name in ("chromosome", "start", "end")]
    regions = store.columns["regions"].shape[:1] if "regions" in store.columns else None
    if shapes != [(), regions, regions]:
        return False
    for begin in range(1, len(store), COMPARED_WINDOWS):
        later = np.arange(begin, min(begin + COMPARED_WINDOWS, len(store)))
        chromosome, start, end = (
            [store.gather(name, rows).numpy() for rows in (later - 1, later)] for name in ("chromosome", "start", "end")
        )
        same = (start[0] == start[1][:, :1]) & (end[0] == end[1][:, :1]) & (chromosome[0] == chromosome[1])[:, None]
        if same.any():
            return True
    return False


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def window_batches(plan: WindowPlan, num_features: int, features: Features) -> Iterator[dict[str, np.ndarray]]:
    """Yield the plan's windows as batches for a `StoreWriter` of `region_columns`, some `BATCH_BYTES` at a time."""
    rows = max(1, BATCH_BYTES // (4 * plan.regions * num_features))
    for begin in range(0, len(plan), rows):
        windows = range(begin, min(begin + rows, len(plan)))
        batch = {
            "regions": np.zeros((len(windows), plan.regions, num_features), np.float32),
            "present": np.zeros((len(windows), plan.regions), bool),
            "chromosome": plan.chromosome[begin : windows.stop],
            "start": np.zeros((len(windows), plan.regions), np.int64),
            "end": np.zeros((len(windows), plan.regions), np.int64),
        }
        for row, window in enumerate(windows):
            number, first, size = (int(part[window]) for part in (plan.chromosome, plan.first, plan.size))
            along, stop = plan.peaks[number], first + size
            batch["regions"][row, :size] = features(number, first, stop)
            batch["present"][row, :size] = True
            batch["start"][row, :size] = along.start[first:stop]
            batch["end"][row, :size] = along.end[first:stop]
        yield batch

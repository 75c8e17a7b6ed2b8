"""Shuffle that reads a line of rows window by window: units of neighbours are permuted, then rows within windows."""

import numpy as np

from ditlab.data.loading.computed_permutation import hashed_keys, key_of, permuted

MOST_UNITS = 2**18
"""Most units of a shuffle, which has two numbers of each in memory: 4 MiB."""


class WindowedShuffle:
    """A permutation of a line of rows, cut into lanes, each of which is read in windows.

    The line's units (such as blocks of a store) are laid end to end in a permuted order. The line of them is cut into
    `lanes` of equally many rows (fewer than `lanes` rows are left over), a lane into equal windows of at most
    `window_rows`; within each window, rows are permuted. All of it is a function of the numbers given here.
    """

    def __init__(self, unit_starts: np.ndarray, text: str, lanes: int, window_rows: int):
        """Shuffle units that begin at ascending places, int64 (units + 1,), the last of which ends the last unit."""
        units = len(unit_starts) - 1
        order = permuted(np.arange(units), units, key_of(f"{text}/units"))
        sizes = np.diff(unit_starts)[order]
        self._ends = np.cumsum(sizes)
        self._shift = unit_starts[:-1][order] - (self._ends - sizes)
        """Distance from a place on the line to that in the units' own order, by unit."""
        self._key = key_of(f"{text}/windows")
        self.lanes = lanes
        self.lane_rows = int(unit_starts[-1] - unit_starts[0]) // lanes
        """Rows of each lane."""
        self.windows = max(1, -(-self.lane_rows // window_rows))
        """Windows of each lane."""

    def at(self, lanes: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return what the lanes hold at places (int64, in [0, lane_rows)); both of one shape, or broadcast."""
        lanes, places = np.broadcast_arrays(lanes, places)
        windows = self.window_of(places)
        starts = self.window_start(windows)
        lengths = self.window_start(windows + 1) - starts
        keys = hashed_keys(self._key, lanes * self.windows + windows)
        line = lanes * self.lane_rows + starts + permuted(places - starts, lengths, keys)
        found: np.ndarray = line + self._shift[np.searchsorted(self._ends, line, side="right")]
        return found

    def window_of(self, places: np.ndarray) -> np.ndarray:
        """Return the window that each place of a lane lies in."""
        found: np.ndarray = ((places + 1) * self.windows - 1) // max(1, self.lane_rows)
        return found

    def window_start(self, windows: np.ndarray) -> np.ndarray:
        """Return the first place of each window; for the number of windows: the lane's rows."""
        found: np.ndarray = windows * self.lane_rows // self.windows
        return found

    def ranges(self, lane: int, window: int) -> np.ndarray:
        """Return what a window of a lane holds, unordered: ranges (first, stop), int64 (ranges, 2), by unit."""
        first, stop = (lane * self.lane_rows + int(self.window_start(np.array(w))) for w in (window, window + 1))
        if first == stop:
            return np.zeros((0, 2), np.int64)
        begin, last = np.searchsorted(self._ends, [first, stop - 1], side="right")
        units = np.arange(begin, last + 1)
        begins = np.append(0, self._ends)[units]
        found = np.stack([np.maximum(begins, first), np.minimum(self._ends[units], stop)], axis=1)
        found += self._shift[units, None]
        return found[found[:, 0] < found[:, 1]]

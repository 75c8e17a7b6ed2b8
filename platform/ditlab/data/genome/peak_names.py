"""Peaks parsed from their names, `chr1:9939-10439`: a million in about a second."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ditlab.data.genome.region_windows import ChromosomePeaks
from ditlab.errors import UserError

PATTERN = r"^(?P<chromosome>.+):(?P<start>[0-9]{1,15})-(?P<end>[0-9]{1,15})$"


@dataclass(frozen=True)
class Peaks:
    """Peaks in the order of their file, each chromosome's together and by ascending start."""

    chromosomes: tuple[str, ...]
    """Names of the chromosomes, in the order of the file."""
    chromosome: np.ndarray
    """int32 (peaks,), ascending indices into `chromosomes`."""
    start: np.ndarray
    """int64 (peaks,), base pairs."""
    end: np.ndarray
    """int64 (peaks,), base pairs, above `start`."""

    def __len__(self) -> int:
        return len(self.start)

    def name(self, peak: int) -> str:
        """Return a peak's name, `chr1:9939-10439`."""
        return f"{self.chromosomes[self.chromosome[peak]]}:{self.start[peak]}-{self.end[peak]}"

    def by_chromosome(self, rows: np.ndarray) -> tuple[ChromosomePeaks, ...]:
        """Return the peaks `rows` (int64, ascending) by chromosome; a chromosome may have none."""
        edges = np.searchsorted(self.chromosome[rows], np.arange(len(self.chromosomes) + 1))
        return tuple(
            ChromosomePeaks(name, self.start[rows[low:high]], self.end[rows[low:high]])
            for name, low, high in zip(self.chromosomes, edges[:-1], edges[1:], strict=True)
        )


def parse_peaks(parts: Iterable[Sequence[str | bytes]], origin: str) -> Peaks:
    """Parse peaks from their names, which come a part at a time.

    Raises UserError, beginning with `origin`, for a name of another form, a peak that ends before it starts, peaks of
    a chromosome that are not together, and peaks that do not ascend along it.
    """
    numbers: dict[str, int] = {}
    columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    seen = 0
    for part in parts:
        columns.append(_parse(part, seen, numbers, origin))
        seen += len(part)
    empty = (np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64))
    peaks = Peaks(tuple(numbers), *(np.concatenate(column) for column in zip(*(columns or [empty]), strict=True)))
    _check_order(peaks, origin)
    return peaks


def _parse(
    part: Sequence[str | bytes], first: int, numbers: dict[str, int], origin: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return chromosome numbers, starts and ends; chromosomes not seen before are added to `numbers`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        names = pa.array([name.decode() if isinstance(name, bytes) else name for name in part], pa.string())
    except (pa.ArrowException, TypeError, UnicodeDecodeError) as error:
        raise UserError(f"{origin} holds values that are no text ({error}); export them as text again.") from error
    fields = pc.extract_regex(names, PATTERN)
    bad = pc.index(pc.is_valid(fields), False).as_py()
    if bad >= 0:
        raise UserError(
            f"{origin} holds {names[bad].as_py()!r} as peak {first + bad:,} (counted from 0), which is no "
            "CHROMOSOME:START-END such as chr1:9939-10439; mend the name."
        )
    start, end = (fields.field(name).cast(pa.int64()).to_numpy() for name in ("start", "end"))
    if (end <= start).any():
        bad = int(np.argmax(end <= start))
        raise UserError(
            f"{origin} holds {names[bad].as_py()!r} as peak {first + bad:,} (counted from 0), which does not end "
            "behind its start; mend or leave out the peak."
        )
    coded = fields.field("chromosome").dictionary_encode()
    own = [numbers.setdefault(name, len(numbers)) for name in coded.dictionary.to_pylist()]
    return np.array(own, np.int32)[coded.indices.to_numpy()], start, end


def _check_order(peaks: Peaks, origin: str) -> None:
    remedy = "sort the peaks by chromosome and start."
    begins = np.flatnonzero(np.diff(peaks.chromosome, prepend=-1))
    runs = peaks.chromosome[begins]
    if len(runs) > len(peaks.chromosomes):
        again = int(np.argmax(runs != np.arange(len(runs))))  # chromosomes are numbered as they come
        before = int(begins[np.flatnonzero(runs[:again] == runs[again])[-1] + 1]) - 1
        raise UserError(
            f"{origin} holds peaks of {peaks.chromosomes[runs[again]]} in two places: {peaks.name(before)} (peak "
            f"{before:,}) and again {peaks.name(begins[again])} (peak {begins[again]:,}); {remedy}"
        )
    falls = (np.diff(peaks.start) < 0) & (np.diff(peaks.chromosome) == 0)
    if falls.any():
        bad = int(np.argmax(falls))
        raise UserError(
            f"{origin} holds {peaks.name(bad)} (peak {bad:,}) before {peaks.name(bad + 1)}, which starts earlier; "
            f"{remedy}"
        )

"""Zarr stores of GET (Fu et al. 2025), formats 2 and 3: checked, their names and accessibilities read.

Peaks are parsed from their names, `chr1:9939-10439`: a million in about a second.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ditlab.data.genome.region_windows import ChromosomePeaks
from ditlab.data.genome.zarr_arrays import ZarrArray, ZarrFiles, open_array, open_group
from ditlab.errors import UserError
from ditlab.progress import Progress

PATTERN = r"^(?P<chromosome>.+):(?P<start>[0-9]{1,15})-(?P<end>[0-9]{1,15})$"
MOST_MOTIFS = 100_000
NAMES_AT_A_TIME = 65_536
"""Names of peaks read at a time."""
KEYS = ("data", "peak_names", "motif_names")
"""Arrays that every store of GET has."""


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

    def by_chromosome(self) -> tuple[ChromosomePeaks, ...]:
        """Return the peaks by chromosome; one may have none."""
        edges = np.searchsorted(self.chromosome, np.arange(len(self.chromosomes) + 1))
        return tuple(
            ChromosomePeaks(name, self.start[low:high], self.end[low:high])
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


@dataclass(frozen=True)
class GetZarrStore:
    """Open zarr store of GET."""

    files: ZarrFiles
    format: int
    """Format of zarr, 2 or 3."""
    data: ZarrArray
    """Scores, (peaks, motifs)."""
    names: ZarrArray
    """Names of the peaks."""
    motifs: tuple[str, ...]
    peaks: Peaks

    @property
    def source(self) -> str:
        """Folder or URI as it was given."""
        return self.files.source

    @property
    def cell_types(self) -> list[str]:
        """Cell types that have accessibilities."""
        return self.files.members("atpm")

    def atpm(self, cell_type: str) -> np.ndarray:
        """Read a cell type's accessibility of each peak, float64 (peaks,).

        Raises UserError for an unknown cell type, another number of peaks, and values that are no accessibilities.
        """
        if cell_type not in self.cell_types:
            raise UserError(f"--cell-type={cell_type}: {self.source} has no such cell type; {self._nearest(cell_type)}")
        array = open_array(self.files, f"atpm/{cell_type}")
        if array.dtype.kind not in "fiub":
            raise UserError(
                f"{self.source}: atpm/{cell_type} holds {array.dtype}, and accessibilities are real numbers; choose "
                "another cell type, or export it again."
            )
        if array.shape not in ((len(self.peaks),), (len(self.peaks), 1)):
            raise UserError(
                f"{self.source}: atpm/{cell_type} has shape {array.shape}, and data has {len(self.peaks):,} peaks; "
                "it needs one number a peak."
            )
        values = array.read().reshape(-1).astype(np.float64)
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            peak = int(np.argmax(bad))
            raise UserError(
                f"{self.source}: atpm/{cell_type} holds {values[peak]:g} for peak {self.peaks.name(peak)} (number "
                f"{peak:,} from 0); it needs finite numbers of 0 or more."
            )
        return values

    def _nearest(self, cell_type: str) -> str:
        known = self.cell_types
        near = difflib.get_close_matches(cell_type, known, n=3, cutoff=0.4)
        if near:
            return f"did you mean {' or '.join(repr(name) for name in near)}?"
        return f"it has {listed(known)}." if known else "it has none at all; leave --cell-type out."


def open_get_zarr(source: str, progress: Progress) -> GetZarrStore:
    """Open the GET store in a folder, or below a URI.

    Raises UserError where the folder is no zarr group, a key is missing or cannot be opened,
    sizes contradict each other, or a peak's name or position is wrong.
    """
    files = ZarrFiles.listed(source)
    group = open_group(files)
    there = files.members()
    missing = [key for key in KEYS if key not in there]
    if missing:
        raise UserError(
            f"--source={source} holds no array '{missing[0]}' (it holds {listed(there) or 'nothing'}), "
            f"and GET's stores have {', '.join(KEYS)}; name the folder of such a store."
        )
    data, names, motif_names = (open_array(files, key) for key in KEYS)
    if len(data.shape) != 2 or data.dtype.kind not in "fiu" or 0 in data.shape:
        raise UserError(
            f"{source}: data has shape {data.shape} of {data.dtype}; it needs (peaks, motifs) of numbers, one of each "
            "at least."
        )
    num_peaks, num_motifs = data.shape
    if num_motifs > MOST_MOTIFS:
        raise UserError(
            f"{source}: data has {num_motifs:,} motifs, and at most {MOST_MOTIFS:,} are read; leave some out."
        )
    motifs = _motif_names(motif_names, num_motifs)
    if names.shape not in ((num_peaks,), (num_peaks, 1)):
        raise UserError(
            f"{source}: peak_names has shape {names.shape}, and data has {num_peaks:,} peaks; it needs a name a peak."
        )
    peaks = parse_peaks(_names(names, progress), f"{source}: peak_names")
    return GetZarrStore(files, int(group.metadata.zarr_format), data, names, motifs, peaks)


def _motif_names(array: ZarrArray, num: int) -> tuple[str, ...]:
    source = array.files.source
    if not array.shape or array.array.size != num:
        raise UserError(
            f"{source}: motif_names has shape {array.shape}, and data has {num:,} motifs; it needs a name a motif."
        )
    values = array.read().reshape(-1).tolist()
    names = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in values)
    times = Counter(names)
    twice = next((name for name in names if times[name] > 1 or name == "accessibility"), None)
    if twice is not None:
        problem = "names a motif accessibility" if twice == "accessibility" else f"holds '{twice}' more than once"
        raise UserError(f"{source}: motif_names {problem}; each feature needs a name of its own, so rename it.")
    return names


def _names(array: ZarrArray, progress: Progress) -> Iterator[Sequence[str | bytes]]:
    num = array.shape[0]
    for first in range(0, num, NAMES_AT_A_TIME):
        yield array.read(slice(first, first + NAMES_AT_A_TIME)).reshape(-1).tolist()
        progress("reading names", min(first + NAMES_AT_A_TIME, num), num, "peaks")


def listed(names: Iterable[str], most: int = 12) -> str:
    """Join names, `a, b, c`, or the first few and the number of the others."""
    names = list(names)
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])} and {len(names) - most} more"

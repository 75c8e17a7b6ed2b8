"""Zarr stores of GET (Fu et al. 2025), formats 2 and 3: checked, their names and accessibilities
read.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ditlab.data.region_windows import make_peaks
from ditlab.errors import UserError, shortened
from ditlab.progress import Progress
from ditlab_addons.genome.zarr_arrays import ZarrArray, ZarrFiles, open_array, open_group

PATTERN = r"^(?P<chromosome>.+):(?P<start>[0-9]{1,15})-(?P<end>[0-9]{1,15})$"
MOST_MOTIFS = 100_000
NAMES_AT_A_TIME = 65_536
"""Names of peaks read at a time."""
MOST_LISTED = 12
"""Names that a sentence lists."""
KEYS = ("data", "peak_names", "motif_names")
"""Arrays that every store of GET has."""


def parse_peaks(
    parts: Iterable[Sequence[str | bytes]], origin: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Parse peaks from their names, which come a part at a time; return (peaks,) of type PEAK, and
    chromosomes' names.

    Raises UserError, beginning with `origin`, for a name of another form, a peak that ends before
    it starts, peaks of a chromosome that are not together, and peaks that do not ascend along it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers: dict[str, int] = {}
    columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    seen = 0

    def refuse_first(bad: Any, problem: str) -> None:
        place = pc.index(bad, True).as_py()
        if place >= 0:
            name = names[place].as_py()
            raise UserError(
                f"{origin} holds {name!r} as peak {seen + place:,} (counted from 0), which "
                f"{problem}."
            )

    for part in parts:
        try:
            names = pa.array(
                [name.decode() if isinstance(name, bytes) else name for name in part], pa.string()
            )
        except (pa.ArrowException, TypeError, UnicodeDecodeError) as error:
            raise UserError(
                f"{origin} holds values that are no text ({error}); export them as text again."
            ) from error
        fields = pc.extract_regex(names, PATTERN)
        refuse_first(
            fields.is_null(), "is no CHROMOSOME:START-END such as chr1:9939-10439; correct the name"
        )
        start, end = (fields.field(name).cast(pa.int64()).to_numpy() for name in ("start", "end"))
        refuse_first(
            pa.array(end <= start), "does not end behind its start; correct or leave out the peak"
        )
        coded = fields.field("chromosome").dictionary_encode()
        own = [numbers.setdefault(name, len(numbers)) for name in coded.dictionary.to_pylist()]
        columns.append((np.array(own, np.int32)[coded.indices.to_numpy()], start, end))
        seen += len(part)
    peaks = make_peaks(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    chromosomes = tuple(numbers)
    # chromosomes are numbered as they come
    falls = np.diff(peaks["chromosome"]) < 0
    falls |= (np.diff(peaks["chromosome"]) == 0) & (np.diff(peaks["start"]) < 0)
    if falls.any():
        bad = int(np.argmax(falls))
        raise UserError(
            f"{origin} holds {peak_name(chromosomes, peaks[bad])} (peak {bad:,}) before "
            f"{peak_name(chromosomes, peaks[bad + 1])}; sort the peaks by chromosome and start."
        )
    return peaks, chromosomes


def peak_name(chromosomes: Sequence[str], peak: Any) -> str:
    """Return the name of a peak (PEAK), `chr1:9939-10439`."""
    return f"{chromosomes[peak['chromosome']]}:{peak['start']}-{peak['end']}"


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
    peaks: np.ndarray
    """(peaks,) of type PEAK, each chromosome's together and by ascending start."""
    chromosomes: tuple[str, ...]
    """Names of the chromosomes, in the order of the file."""

    def atpm(self, cell_type: str) -> np.ndarray:
        """Read a cell type's accessibilities, float64 (peaks,). Raises UserError for unknown or
        invalid ones.
        """
        source = self.files.source
        known = self.files.members("atpm")
        if cell_type not in known:
            near = " or ".join(
                map(repr, difflib.get_close_matches(cell_type, known, n=3, cutoff=0.4))
            )
            remedy = "it has none at all; leave --cell-type out."
            if near:
                remedy = f"did you mean {near}?"
            elif known:
                remedy = f"it has {shortened(known, MOST_LISTED)}."
            raise UserError(f"--cell-type={cell_type}: {source} has no such cell type; {remedy}")
        array = open_array(self.files, f"atpm/{cell_type}")
        if array.dtype.kind not in "fiub" or array.shape not in (
            (len(self.peaks),),
            (len(self.peaks), 1),
        ):
            raise UserError(
                f"{source}: atpm/{cell_type} has shape {array.shape} of {array.dtype}, and it "
                f"needs a real number for each of {len(self.peaks):,} peaks; choose another "
                "cell type, or export it again."
            )
        values = array.read().reshape(-1).astype(np.float64)
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            peak = int(np.argmax(bad))
            raise UserError(
                f"{source}: atpm/{cell_type} holds {values[peak]:g} for peak "
                f"{peak_name(self.chromosomes, self.peaks[peak])} (number {peak:,} from 0); it "
                "needs finite numbers of 0 or more."
            )
        return values


def open_get_zarr(source: str, progress: Progress) -> GetZarrStore:
    """Open the GET store in a folder, or below a URI. Raises UserError for what is none, or
    contradicts itself.
    """
    files = ZarrFiles.listed(source)
    group = open_group(files)
    there = files.members()
    missing = [key for key in KEYS if key not in there]
    if missing:
        raise UserError(
            f"--source={source} holds no array '{missing[0]}' (it holds "
            f"{shortened(there, MOST_LISTED) or 'nothing'}), and GET's stores have "
            f"{', '.join(KEYS)}; name the folder of such a store."
        )
    data, names, motif_names = (open_array(files, key) for key in KEYS)
    if (
        len(data.shape) != 2
        or data.dtype.kind not in "fiu"
        or 0 in data.shape
        or data.shape[1] > MOST_MOTIFS
    ):
        raise UserError(
            f"{source}: data has shape {data.shape} of {data.dtype}; it needs (peaks, motifs) "
            f"of numbers, one of each at least and {MOST_MOTIFS:,} motifs at most."
        )
    for array, num, what in ((names, data.shape[0], "peak"), (motif_names, data.shape[1], "motif")):
        if array.shape not in ((num,), (num, 1)):
            raise UserError(
                f"{source}: {array.key} has shape {array.shape}, and data has {num:,} {what}s; "
                "it needs a name for each."
            )
    motifs = _motifs(motif_names)

    def parts() -> Iterable[Sequence[str | bytes]]:
        num = data.shape[0]
        for first in range(0, num, NAMES_AT_A_TIME):
            yield names.read(slice(first, first + NAMES_AT_A_TIME)).reshape(-1).tolist()
            progress("reading names", min(first + NAMES_AT_A_TIME, num), num, "peaks")

    peaks, chromosomes = parse_peaks(parts(), f"{source}: peak_names")
    return GetZarrStore(
        files, int(group.metadata.zarr_format), data, names, motifs, peaks, chromosomes
    )


def _motifs(array: ZarrArray) -> tuple[str, ...]:
    """Read the names of the motifs. Raises UserError where they are not those of different
    features.
    """
    motifs = tuple(
        name.decode() if isinstance(name, bytes) else str(name) for name in array.read().reshape(-1)
    )
    twice = next(
        (name for name, times in Counter([*motifs, "accessibility"]).items() if times > 1), None
    )
    if twice is not None:
        raise UserError(
            f"{array.files.source}: motif_names holds '{twice}' more than once, or names a "
            "motif accessibility; each feature needs a name of its own, so rename it."
        )
    return motifs

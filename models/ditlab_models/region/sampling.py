"""Imputation of masked regions of real windows, given the regions that are not masked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ditlab_models.checks import check_no_label, check_no_prompts
from ditlab_models.contract import (
    DEFAULT_REQUEST,
    Conditions,
    RealRows,
    RowUse,
    Sampler,
    SampleRequest,
    Samples,
)
from ditlab_models.figures import Figure
from ditlab_models.processes.draws import SampleDraws, starting_noise, state_dtype
from ditlab_models.processes.gaussian import linear_schedule, sample_ddim, sample_ddpm, timesteps
from ditlab_models.processes.specs import LinearBetas
from ditlab_models.region.figures import imputation_figure
from ditlab_models.region.network import evaluate_network, present_or_none
from ditlab_models.region.spec import BedMask, RandomMask, RegionSamplingSpec, RegionSpec
from ditlab_models.tensors import to_numpy

FIELDS = ("regions", "present")
COLUMNS = ("chromosome", "start", "end")
"""Columns that hold the coordinates of regions."""
MAX_COORDINATE = 2**63 - 1
"""Largest coordinate: int64's."""
MAX_NAMES = 6
"""Most chromosomes that a message names."""
PEAK = "largest_accessibility"
"""Column with the largest accessibility of each window, by which the store's accessibilities were
divided.
"""


def read_bed(path: Path) -> dict[str, np.ndarray]:
    """Read intervals by chromosome, (n, 2) int64 each: starts, ascending, and exclusive ends, in
    base pairs from 0.

    Raises ValueError for a file that cannot be read, or a line without an interval.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()  # without a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text; unpack it first"
        raise ValueError(
            f"sampling.mask.path={path} cannot be read ({reason}); name a BED file."
        ) from error
    pairs: dict[str, list[tuple[int, int]]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith(("#", "track", "browser")):
            continue
        fields = line.split()
        try:
            start = int(fields[1])
            end = int(fields[2])
        except (IndexError, ValueError):
            start = end = 0
        if not 0 <= start < end <= MAX_COORDINATE:
            raise ValueError(
                f"sampling.mask.path={path}, line {number} is no BED interval "
                f"({line.strip()[:60]!r}); it needs a chromosome, a start from 0 and a larger "
                f"end (at most {MAX_COORDINATE:,}), separated by tabs or spaces."
            )
        pairs.setdefault(fields[0], []).append((start, end))
    if not pairs:
        raise ValueError(f"sampling.mask.path={path} holds no interval; name a BED file that does.")
    return {name: np.array(sorted(each), dtype=np.int64) for name, each in pairs.items()}


def overlaps(start: np.ndarray, end: np.ndarray, intervals: np.ndarray) -> np.ndarray:
    """True where [start, end) shares a base pair with any of `intervals` (n, 2), by start; bool in
    start's shape.
    """
    # intervals that begin before [start, end) ends
    before = np.searchsorted(intervals[:, 0], end, side="left")
    max_end = np.maximum.accumulate(intervals[:, 1])
    return (before > 0) & (max_end[before - 1] > start)


class RegionSampler(Sampler):
    """Sampler of windows with masked regions imputed: values (num, R, F), measured where a region
    was not masked.
    """

    takes_rows: RowUse = "completed"

    def __init__(self, spec: RegionSamplingSpec, noise: LinearBetas, model: RegionSpec) -> None:
        self.spec = spec
        self._model = model
        self._schedule = linear_schedule(noise)
        self._first_timestep = 0 if model.corruption == "mask" else noise.steps - 1
        # Windows that come without a mask of their own, as those of figures, are masked by chance.
        by_chance = spec.mask if isinstance(spec.mask, RandomMask) else RandomMask()
        self._ratio = by_chance.ratio

    @cached_property
    def _intervals(self) -> dict[str, np.ndarray]:
        assert isinstance(self.spec.mask, BedMask)
        return read_bed(Path(self.spec.mask.path).expanduser())

    def _overlapping(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Mask (num, R) bool of regions that overlap an interval; padding, which ends at 0,
        overlaps nothing.

        Raises ValueError for rows without coordinates: chromosome (num,), start and end (num, R).
        """
        missing = " and no ".join(name for name in COLUMNS if name not in columns)
        if missing:
            raise ValueError(
                "sampling.mask.kind=bed finds regions by their coordinates, and these rows "
                f"have no {missing}; set sampling.mask.kind to random, or import the data with "
                "coordinates."
            )
        chromosome, start, end = (columns[name] for name in COLUMNS)
        overlapping = np.zeros(start.shape, dtype=bool)
        for name, intervals in self._intervals.items():
            here = chromosome == name
            overlapping[here] = overlaps(start[here], end[here], intervals)
        return overlapping & (end > start)

    def select_rows(self, rows: RealRows) -> np.ndarray | None:
        """Select all windows, or those with a region that overlaps the BED file."""
        if isinstance(self.spec.mask, RandomMask):
            return None
        return np.asarray(self._overlapping(rows.columns).any(axis=1))

    def note(self, rows: RealRows) -> str:
        """Describe the BED file's intervals that overlap none of the windows' regions, if there are
        any.
        """
        mask = self.spec.mask
        if isinstance(mask, RandomMask):
            return ""
        num = sum(map(len, self._intervals.values()))
        missed = num - self._num_met(rows.columns)
        if missed == 0:
            return ""
        names = ""
        if missed == num:
            of_none, of_windows = (
                ", ".join(sorted(map(str, each))[:MAX_NAMES])
                for each in (self._intervals, set(rows.columns["chromosome"]))
            )
            names = f" (intervals of {of_none}; windows of {of_windows})"
        return (
            f"sampling.mask.path={mask.path}: {missed:,} of {num:,} intervals meet no region "
            f"of these windows, and nothing is imputed for them{names}"
        )

    def _num_met(self, columns: Mapping[str, np.ndarray]) -> int:
        """Count the BED file's intervals that overlap a region of the windows."""
        chromosome, start, end = (columns[name] for name in COLUMNS)
        met = 0
        for name, intervals in self._intervals.items():
            here = (chromosome == name)[:, None] & (end > start)
            regions = np.stack((start[here], end[here]), axis=1)
            regions = regions[regions[:, 0].argsort(kind="stable")]
            if len(regions):
                met += int(overlaps(intervals[:, 0], intervals[:, 1], regions).sum())
        return met

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """Return `regions` (num, R, F) and `present` (num, R) of the rows; with a BED file, `mask`
        (num, R) too.
        """
        check_no_label(request)
        check_no_prompts(request)
        rows = request.rows
        assert rows is not None, "imputation begins with real rows"
        conditions = {name: rows.batch[name][:num] for name in FIELDS}
        if isinstance(self.spec.mask, BedMask):
            mask = torch.from_numpy(self._overlapping(rows.columns)[:num])
            conditions["mask"] = mask.to(conditions["present"].device)
        return conditions

    @torch.no_grad()
    def sample(
        self,
        network: nn.Module,
        conditions: Conditions,
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
        noise: Tensor | None = None,
    ) -> Samples:
        """Impute windows, (num, R, F), each by its own generator; the samples' `conditions` hold
        the mask. Frames begin with noise.

        In the best dtype of float32, the parameters, the regions and `noise`, which counts at
        masked regions.
        """
        regions = conditions["regions"]
        present = conditions["present"]
        regions = regions.to(torch.promote_types(regions.dtype, state_dtype(network)))
        draws = SampleDraws(num, generator, regions.device)
        mask = conditions.get("mask")
        if mask is None:
            mask = (draws.uniform(present.shape) < self._ratio) & present
        padding = present_or_none(present)
        start = draws.normal(regions).to(regions)
        if noise is not None:
            start = starting_noise(noise, regions.shape, regions)
            regions = regions.to(start.dtype)

        def complete(x: Tensor) -> Tensor:
            return torch.where(mask[..., None], x, regions)

        def denoise(x: Tensor, t: int) -> Tensor:
            times = torch.full((num,), t, device=x.device)
            return evaluate_network(network, complete(x), mask, times, padding, None).to(x.dtype)

        frames = [complete(start)]
        if self.spec.solver == "predict":
            x = denoise(start, self._first_timestep)
            frames.append(complete(x))
        else:
            steps = timesteps(self._schedule.num_steps, self.spec.steps)

            def record(x: Tensor) -> None:
                if trajectory:
                    frames.append(complete(x))

            if self.spec.solver == "ddpm":
                x = sample_ddpm(denoise, self._schedule, start, steps, draws.normal, record)
            else:
                x = sample_ddim(
                    denoise, self._schedule, start, steps, draws.normal, self.spec.eta, record
                )
        conditions = {"regions": regions, "present": present, "mask": mask}
        return Samples(complete(x), conditions, torch.stack(frames) if trajectory else None)

    def show(self, samples: Samples) -> Figure:
        """Draw measured, masked and imputed windows side by side."""
        return imputation_figure(samples, self._model)

    def table(self, samples: Samples, rows: RealRows) -> dict[str, np.ndarray]:
        """Make a row for each region: window, coordinates, `masked`, features imputed where masked,
        measured features.

        Coordinates are those of the rows. A feature with the name of another column becomes
        `imputed:NAME`.
        """
        present = to_numpy(samples.conditions["present"])
        num, length = present.shape
        names = rows.names.get("regions") or [
            f"feature_{i}" for i in range(samples.values.shape[-1])
        ]
        table = {"window": np.broadcast_to(np.arange(num)[:, None], (num, length))[present]}
        for name in (*COLUMNS, PEAK):
            if name in rows.columns:
                values = rows.columns[name][:num]
                if values.ndim == 1:
                    values = np.broadcast_to(values[:, None], (num, length))
                table[name] = values[present]
        table["masked"] = to_numpy(samples.conditions["mask"])[present]
        imputed = to_numpy(samples.values)[present]  # (regions of all windows, F)
        measured = to_numpy(samples.conditions["regions"])[present]
        measured_columns = {f"measured:{name}": measured[:, i] for i, name in enumerate(names)}
        for i, name in enumerate(names):
            while name in table or name in measured_columns:
                name = f"imputed:{name}"
            table[name] = imputed[:, i]
        return table | measured_columns

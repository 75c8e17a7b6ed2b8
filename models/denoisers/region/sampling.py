"""Imputation: masked regions of real windows, given the regions that are not masked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.checks import check_no_label, check_no_prompts
from denoisers.contract import DEFAULT_REQUEST, RealRows, SampleRequest, Samples
from denoisers.figures import Figure
from denoisers.processes.gaussian.schedule import linear_schedule, sample_ddim, sample_ddpm, timesteps
from denoisers.processes.gaussian.spec import LinearBetas
from denoisers.processes.sample_draws import SampleDraws
from denoisers.region.bed import COLUMNS, Intervals, overlapping, read_bed, unmet
from denoisers.region.figures import imputation_figure
from denoisers.region.mask_spec import BedMask, RandomMask
from denoisers.region.prediction import ask
from denoisers.region.spec import RegionSamplingSpec, RegionSpec

FIELDS = ("regions", "present")
PEAK = "largest_accessibility"
"""Column of stores whose windows' accessibilities were each divided by their largest."""


class RegionSampler:
    """Windows with masked regions filled in: values (num, R, F), measured where a region was not masked."""

    takes_rows: Literal["none", "conditions", "completed"] = "completed"
    draws_per_prompt = False
    max_batch_size: int | None = None

    def __init__(self, spec: RegionSamplingSpec, noise: LinearBetas, model: RegionSpec) -> None:
        self.spec = spec
        self._model = model
        self._schedule = linear_schedule(noise)
        self._first_timestep = 0 if model.corruption == "mask" else noise.steps - 1
        # Windows that come without a mask of their own, as those of figures, are masked by chance.
        self._ratio = (spec.mask if isinstance(spec.mask, RandomMask) else RandomMask()).ratio

    @cached_property
    def _intervals(self) -> dict[str, Intervals]:
        assert isinstance(self.spec.mask, BedMask)
        return read_bed(Path(self.spec.mask.path).expanduser())

    def select_rows(self, rows: RealRows) -> np.ndarray | None:
        """All windows, or those with a region that overlaps the BED file."""
        if self.spec.mask.kind == "random":
            return None
        return np.asarray(overlapping(rows.columns, self._intervals).any(axis=1))

    def note(self, rows: RealRows) -> str:
        """How many of a BED file's intervals meet none of the windows' regions, if any."""
        mask = self.spec.mask
        if mask.kind == "random":
            return ""
        said = unmet(rows.columns, self._intervals)
        return said and f"sampling.mask.path={mask.path}: {said}"

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """`regions` (num, R, F) and `present` (num, R) of the rows; `mask` (num, R) too where a BED file gives it."""
        check_no_label(request)
        check_no_prompts(request)
        rows = request.rows
        assert rows is not None, "imputation begins with real rows"
        found = {name: rows.batch[name][:num] for name in FIELDS}
        if self.spec.mask.kind == "bed":
            mask = torch.from_numpy(overlapping(rows.columns, self._intervals)[:num])
            found["mask"] = mask.to(found["present"].device)
        return found

    @torch.no_grad()
    def sample(
        self,
        network: nn.Module,
        conditions: Mapping[str, Tensor],
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
    ) -> Samples:
        """Imputed windows, (num, R, F) float32; `conditions` of the answer hold the mask. Frames begin with noise.

        Every window has its own generator, seeded from `generator`, for its mask and its noise.
        """
        regions, present = conditions["regions"].float(), conditions["present"]
        draws = SampleDraws(num, generator, regions.device)
        mask = conditions.get("mask")
        if mask is None:
            mask = (draws.uniform(present.shape) < self._ratio) & present
        padding = None if bool(present.all()) else present
        frames: list[Tensor] = []

        def whole(x: Tensor) -> Tensor:
            return torch.where(mask[..., None], x, regions)

        def denoise(x: Tensor, t: int) -> Tensor:
            times = torch.full((num,), t, device=x.device)
            return ask(network, whole(x), mask, times, padding, None).float()

        start = draws.normal(regions)
        frames.append(whole(start))
        if self.spec.solver == "predict":
            x = denoise(start, self._first_timestep)
            frames.append(whole(x))
        else:
            steps = timesteps(self._schedule.num_steps, self.spec.steps)

            def record(x: Tensor) -> None:
                if trajectory:
                    frames.append(whole(x))

            if self.spec.solver == "ddpm":
                x = sample_ddpm(denoise, self._schedule, start, steps, draws.normal, record)
            else:
                x = sample_ddim(denoise, self._schedule, start, steps, draws.normal, self.spec.eta, record)
        kept = {"regions": regions, "present": present, "mask": mask}
        return Samples(whole(x), kept, torch.stack(frames) if trajectory else None)

    def show(self, samples: Samples) -> Figure:
        """Measured, masked and imputed, side by side."""
        return imputation_figure(samples, self._model)

    def table(self, samples: Samples, rows: RealRows) -> dict[str, np.ndarray]:
        """A row a region: window, coordinates, `masked`, features imputed where masked, then as they were measured.

        Coordinates are those that the rows have. A feature that another column already has the name of is
        `imputed:NAME`.
        """
        present = samples.conditions["present"].cpu().numpy()
        num, length = present.shape
        names = rows.names.get("regions") or [f"feature_{i}" for i in range(samples.values.shape[-1])]
        table = {"window": np.broadcast_to(np.arange(num)[:, None], (num, length))[present]}
        for name in (*COLUMNS, PEAK):
            if name in rows.columns:
                values = rows.columns[name][:num]
                table[name] = (values if values.ndim == 2 else np.broadcast_to(values[:, None], (num, length)))[present]
        table["masked"] = samples.conditions["mask"].cpu().numpy()[present]
        imputed = samples.values.float().cpu().numpy()[present]  # (regions of all windows, F)
        measured = samples.conditions["regions"].float().cpu().numpy()[present]
        seen = {f"measured:{name}": measured[:, i] for i, name in enumerate(names)}
        for i, name in enumerate(names):
            while name in table or name in seen:
                name = f"imputed:{name}"
            table[name] = imputed[:, i]
        return table | seen

"""Imputation of masked regions of real windows, given the regions that are not masked."""

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
from denoisers.processes.draws import SampleDraws, starting_noise, state_dtype
from denoisers.processes.gaussian import linear_schedule, sample_ddim, sample_ddpm, timesteps
from denoisers.processes.specs import LinearBetas
from denoisers.region.bed import COLUMNS, Intervals, describe_misses, overlapping, read_bed
from denoisers.region.figures import imputation_figure
from denoisers.region.network import evaluate_network, present_or_none
from denoisers.region.spec import BedMask, RandomMask, RegionSamplingSpec, RegionSpec

FIELDS = ("regions", "present")
PEAK = "largest_accessibility"
"""Column with the largest accessibility of each window, by which the store's accessibilities were divided."""


class RegionSampler:
    """Sampler of windows with masked regions imputed: values (num, R, F), measured where a region was not masked."""

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
        """Select all windows, or those with a region that overlaps the BED file."""
        if self.spec.mask.kind == "random":
            return None
        return np.asarray(overlapping(rows.columns, self._intervals).any(axis=1))

    def note(self, rows: RealRows) -> str:
        """Describe the BED file's intervals that overlap none of the windows' regions, if there are any."""
        mask = self.spec.mask
        if mask.kind == "random":
            return ""
        misses = describe_misses(rows.columns, self._intervals)
        return misses and f"sampling.mask.path={mask.path}: {misses}"

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """Return `regions` (num, R, F) and `present` (num, R) of the rows; with a BED file, `mask` (num, R) too."""
        check_no_label(request)
        check_no_prompts(request)
        rows = request.rows
        assert rows is not None, "imputation begins with real rows"
        conditions = {name: rows.batch[name][:num] for name in FIELDS}
        if self.spec.mask.kind == "bed":
            mask = torch.from_numpy(overlapping(rows.columns, self._intervals)[:num])
            conditions["mask"] = mask.to(conditions["present"].device)
        return conditions

    @torch.no_grad()
    def sample(
        self,
        network: nn.Module,
        conditions: Mapping[str, Tensor],
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
        noise: Tensor | None = None,
    ) -> Samples:
        """Impute windows, (num, R, F); the samples' `conditions` hold the mask. Frames begin with noise.

        Every window has its own generator, seeded from `generator`, for its mask and its noise. In the best dtype of
        float32, the parameters, the regions and `noise`, which counts at masked regions.
        """
        regions, present = conditions["regions"], conditions["present"]
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
        frames: list[Tensor] = []

        def complete(x: Tensor) -> Tensor:
            return torch.where(mask[..., None], x, regions)

        def denoise(x: Tensor, t: int) -> Tensor:
            times = torch.full((num,), t, device=x.device)
            return evaluate_network(network, complete(x), mask, times, padding, None).to(x.dtype)

        frames.append(complete(start))
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
                x = sample_ddim(denoise, self._schedule, start, steps, draws.normal, self.spec.eta, record)
        conditions = {"regions": regions, "present": present, "mask": mask}
        return Samples(complete(x), conditions, torch.stack(frames) if trajectory else None)

    def show(self, samples: Samples) -> Figure:
        """Draw measured, masked and imputed windows side by side."""
        return imputation_figure(samples, self._model)

    def table(self, samples: Samples, rows: RealRows) -> dict[str, np.ndarray]:
        """Make a row for each region: window, coordinates, `masked`, features imputed where masked, measured features.

        Coordinates are those of the rows. A feature with the name of another column becomes `imputed:NAME`.
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
        imputed = samples.values.cpu().numpy()[present]  # (regions of all windows, F)
        measured = samples.conditions["regions"].cpu().numpy()[present]
        measured_columns = {f"measured:{name}": measured[:, i] for i, name in enumerate(names)}
        for i, name in enumerate(names):
            while name in table or name in measured_columns:
                name = f"imputed:{name}"
            table[name] = imputed[:, i]
        return table | measured_columns

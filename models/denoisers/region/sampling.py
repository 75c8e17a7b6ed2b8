"""Imputation: masked regions of real windows, given the regions that are not masked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.contract import RealRows, Samples
from denoisers.figures import Figure
from denoisers.processes.ddpm import sample_ddim, sample_ddpm, timesteps
from denoisers.processes.ddpm_spec import LinearBetas
from denoisers.region.bed import Intervals, overlapping, read_bed
from denoisers.region.figures import imputation_figure
from denoisers.region.prediction import ask
from denoisers.region.spec import BedMask, RegionSamplingSpec

FIELDS = ("regions", "present")


class RegionSampler:
    """Windows with masked regions filled in: values (num, R, F), measured where a region was not masked."""

    completes_rows = True

    def __init__(self, spec: RegionSamplingSpec, noise: LinearBetas, corruption: Literal["mask", "ddpm"]) -> None:
        self.spec = spec
        self._schedule = noise.build()
        self._first_timestep = 0 if corruption == "mask" else noise.steps - 1

    @cached_property
    def _intervals(self) -> dict[str, Intervals]:
        assert isinstance(self.spec.mask, BedMask)
        return read_bed(Path(self.spec.mask.path).expanduser())

    def wanted(self, rows: RealRows) -> np.ndarray | None:
        """All windows, or those with a region that overlaps the BED file."""
        if self.spec.mask.kind == "random":
            return None
        return np.asarray(overlapping(rows.columns, self._intervals).any(axis=1))

    def conditions(self, num: int, label: int | None = None, rows: RealRows | None = None) -> dict[str, Tensor]:
        """`regions` (num, R, F) and `present` (num, R) of the rows; `mask` (num, R) too where a BED file gives it."""
        if label is not None:
            raise ValueError(f"label={label} was asked of a model without classes; leave the label out.")
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
        draws = _Draws(num, generator, regions.device)
        mask = conditions.get("mask")
        if mask is None:
            assert self.spec.mask.kind == "random"
            mask = (draws.uniform(present.shape) < self.spec.mask.ratio) & present
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
        return imputation_figure(samples)

    def table(self, samples: Samples, rows: RealRows) -> dict[str, np.ndarray]:
        """A row a region: window, coordinates, `masked`, features imputed where masked, then as they were measured."""
        present = samples.conditions["present"].cpu().numpy()
        num, length = present.shape
        names = rows.names.get("regions") or [f"feature_{i}" for i in range(samples.values.shape[-1])]
        window = np.broadcast_to(np.arange(num)[:, None], (num, length))
        chromosome = np.broadcast_to(rows.columns["chromosome"][:num, None], (num, length))
        table = {"window": window[present], "chromosome": chromosome[present]}
        table |= {name: rows.columns[name][:num][present] for name in ("start", "end")}
        table["masked"] = samples.conditions["mask"].cpu().numpy()[present]
        imputed = samples.values.float().cpu().numpy()[present]  # (regions of all windows, F)
        measured = samples.conditions["regions"].float().cpu().numpy()[present]
        table |= {name: imputed[:, i] for i, name in enumerate(names)}
        return table | {f"measured:{name}": measured[:, i] for i, name in enumerate(names)}


class _Draws:
    """Random numbers of several windows, each from a generator of its own: none depends on how many there are."""

    def __init__(self, num: int, generator: torch.Generator, device: torch.device) -> None:
        self._device = device
        self._generators = []
        for _ in range(num):
            seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
            self._generators.append(torch.Generator(generator.device).manual_seed(seed))

    def uniform(self, shape: torch.Size) -> Tensor:
        return self._stack([torch.rand(shape[1:], generator=g, device=g.device) for g in self._generators])

    def normal(self, like: Tensor) -> Tensor:
        return self._stack([torch.randn(like.shape[1:], generator=g, device=g.device) for g in self._generators])

    def _stack(self, draws: list[Tensor]) -> Tensor:
        return torch.stack(draws).to(self._device)

"""Predictions of masked regions that need no network: averages, neighbours, linear regression on neighbours.

B windows, R regions, C features, M masked regions of all windows in order, N = 2 * REACH neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from denoisers.contract import RealRows, RowSet
from denoisers.layers.rows import masked_rows

Baseline = Callable[[Tensor, Tensor, Tensor], Tensor]
"""x (B, R, C), mask and present (B, R) bool -> (M, C); what x holds at masked regions is not looked at."""

REACH = 2
"""Neighbours on each side that the regression looks at."""
PENALTY = 1e-3
"""Of the regression's squared weights, in variances of its standardised inputs."""
FIT_RATIOS = (0.15, 0.3, 0.5, 0.7, 0.9)
"""Mask ratios of the windows that the regression is fitted on, in turn."""


@dataclass(frozen=True)
class Neighbours:
    """The nearest regions that are seen, of every masked region: left ones by distance, then right ones."""

    values: Tensor
    """(M, N, C); 0 where there is no such region."""
    exists: Tensor
    """(M, N) bool."""
    distance: Tensor
    """(M, N) int64 in regions; 0 where there is no such region."""


def neighbours(x: Tensor, mask: Tensor, present: Tensor, reach: int = REACH) -> Neighbours:
    """`reach` regions on each side of every masked one, masked regions and padding passed over."""
    seen = present & ~mask
    places = masked_rows(seen).index  # (B, seen at most): where the k-th seen region of a window is
    window, region = mask.nonzero(as_tuple=True)
    before = seen.cumsum(1)[window, region]  # seen regions to the left
    steps = torch.arange(reach, device=x.device)
    wanted = before[:, None] + torch.cat([-1 - steps, steps])  # (M, N): which seen region of its window
    exists = (wanted >= 0) & (wanted < seen.sum(1)[window, None])
    place = places[window[:, None], wanted.clamp(0, places.shape[1] - 1)]
    values = torch.where(exists[..., None], x[window[:, None], place], 0)
    return Neighbours(values, exists, (place - region[:, None]).abs() * exists)


@dataclass(frozen=True)
class MotifMean:
    """Every feature's mean over the training regions."""

    mean: Tensor
    """(C,) float64."""

    def __call__(self, x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
        return self.mean.expand(int(mask.sum()), -1)


@dataclass(frozen=True)
class Nearest:
    """The nearest region that is seen, the left one of two; `otherwise` (C,) where a window has none."""

    otherwise: Tensor

    def __call__(self, x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
        found = neighbours(x, mask, present, reach=1)
        (left, right), (to_left, to_right) = found.exists.unbind(1), found.distance.unbind(1)
        takes_left = left & (~right | (to_left <= to_right))
        nearest = torch.where(takes_left[:, None], found.values[:, 0], found.values[:, 1]).to(self.otherwise)
        return torch.where((left | right)[:, None], nearest, self.otherwise)


@dataclass(frozen=True)
class Ridge:
    """Linear in the features of the neighbours, in whether they exist, and in their distances."""

    weights: Tensor
    """(N * C + 2 * N, C) float64."""
    intercept: Tensor
    """(C,) float64."""

    def __call__(self, x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
        return _inputs(x, mask, present) @ self.weights + self.intercept


def _inputs(x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
    """(M, N * C + 2 * N) float64."""
    found = neighbours(x, mask, present)
    return torch.cat([found.values.flatten(1), found.exists, found.distance], dim=1).double()


@dataclass
class _Moments:
    """Sums over masked training regions (inputs z, targets y), and over all training regions: float64."""

    num: int
    z: Tensor
    y: Tensor
    zz: Tensor
    zy: Tensor
    num_regions: int
    regions: Tensor

    @classmethod
    def zeros(cls, features: int, device: torch.device) -> _Moments:
        inputs = 2 * REACH * (features + 2)
        z, y, zz, zy, regions = (
            torch.zeros(shape, dtype=torch.float64, device=device)
            for shape in ((inputs,), (features,), (inputs, inputs), (inputs, features), (features,))
        )
        return cls(0, z, y, zz, zy, 0, regions)

    def add(self, rows: RealRows, first: int) -> None:
        """Rows whose first one is the data set's number `first`."""
        x, present = rows.batch["regions"], rows.batch["present"]
        ratios = torch.tensor(FIT_RATIOS, device=x.device)
        ratio = ratios[(first + torch.arange(len(x), device=x.device)) % len(FIT_RATIOS)]
        mask = (rows.noise.uniform("baseline_mask", present.shape) < ratio[:, None]) & present
        z, y = _inputs(x, mask, present), x[mask].double()
        self.num += len(z)
        self.z += z.sum(0)
        self.y += y.sum(0)
        self.zz.addmm_(z.T, z)
        self.zy.addmm_(z.T, y)
        self.num_regions += int(present.sum())
        self.regions += x[present].sum(0, dtype=torch.float64)

    def motif_mean(self) -> Tensor:
        return self.regions / max(1, self.num_regions)

    def ridge(self) -> Ridge:
        """Minimises the squared error plus PENALTY times the squared weights of standardised inputs."""
        if not self.num:
            return Ridge(torch.zeros_like(self.zy), self.motif_mean())
        z, y = self.z / self.num, self.y / self.num
        covariance = self.zz / self.num - torch.outer(z, z)
        shared = self.zy / self.num - torch.outer(z, y)
        variance = covariance.diagonal()
        scale = torch.where(variance > 1e-12, variance, 1.0).sqrt()  # an input that never changes gets no weight
        penalty = PENALTY * torch.eye(len(z), dtype=z.dtype, device=z.device)
        weights = torch.linalg.solve(covariance / torch.outer(scale, scale) + penalty, shared / scale[:, None])
        weights = weights / scale[:, None]
        return Ridge(weights, y - z @ weights)


def fit_baselines(train: RowSet, size: int) -> dict[str, Baseline]:
    """`motif_mean`, `nearest` and `ridge`, from one pass over the rows, `size` at a time."""
    moments: _Moments | None = None
    first = 0
    for rows in train.batches(size):
        x = rows.batch["regions"]
        moments = moments or _Moments.zeros(x.shape[-1], x.device)
        moments.add(rows, first)
        first += len(x)
    assert moments is not None, "a run has training rows"
    mean = moments.motif_mean()
    return {"motif_mean": MotifMean(mean), "nearest": Nearest(mean), "ridge": moments.ridge()}

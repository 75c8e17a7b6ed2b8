"""Predictions of masked regions without a network: averages, neighbours, linear regression on neighbours.

B windows, R regions, C features, M masked regions of all windows in order, N = 2 * REACH neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from denoisers.contract import RealRows, RowSet
from denoisers.layers.rows import masked_rows

Imputer = Callable[[Tensor, Tensor, Tensor], Tensor]
"""x (B, R, C), mask and present (B, R) bool -> (M, C); the values of x at masked regions are unused."""

REACH = 2
"""Neighbours on each side that the regression uses."""
PENALTY = 1e-3
"""Penalty of the regression's squared weights, in variances of its standardised inputs."""
FIT_RATIOS = (0.15, 0.3, 0.5, 0.7, 0.9)
"""Mask ratios of the windows that the regression is fitted on, in turn."""


@dataclass(frozen=True)
class Neighbours:
    """Nearest visible regions of every masked region: left ones by distance, then right ones."""

    values: Tensor
    """(M, N, C); 0 where there is no such region."""
    exists: Tensor
    """(M, N) bool."""
    distance: Tensor
    """(M, N) int64 in regions; 0 where there is no such region."""


def neighbours(x: Tensor, mask: Tensor, present: Tensor, reach: int = REACH) -> Neighbours:
    """Find `reach` regions on each side of every masked one, skipping masked regions and padding."""
    visible = present & ~mask
    places = masked_rows(visible).index  # (B, most visible): index of the k-th visible region of a window
    window, region = mask.nonzero(as_tuple=True)
    before = visible.cumsum(1)[window, region]  # visible regions to the left
    steps = torch.arange(reach, device=x.device)
    rank = before[:, None] + torch.cat([-1 - steps, steps])  # (M, N): rank among the window's visible regions
    exists = (rank >= 0) & (rank < visible.sum(1)[window, None])
    place = places[window[:, None], rank.clamp(0, places.shape[1] - 1)]
    values = torch.where(exists[..., None], x[window[:, None], place], 0)
    return Neighbours(values, exists, (place - region[:, None]).abs() * exists)


@dataclass(frozen=True)
class MotifMean:
    """Prediction of every feature's mean over the training regions."""

    mean: Tensor
    """(C,) float64."""

    def __call__(self, x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
        return self.mean.expand(int(mask.sum()), -1)


@dataclass(frozen=True)
class Nearest:
    """Prediction of the nearest visible region, the left one of two; `otherwise` (C,) where a window has none."""

    otherwise: Tensor

    def __call__(self, x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
        near = neighbours(x, mask, present, reach=1)
        (left, right), (to_left, to_right) = near.exists.unbind(1), near.distance.unbind(1)
        takes_left = left & (~right | (to_left <= to_right))
        nearest = torch.where(takes_left[:, None], near.values[:, 0], near.values[:, 1]).to(self.otherwise)
        return torch.where((left | right)[:, None], nearest, self.otherwise)


@dataclass(frozen=True)
class Ridge:
    """Linear regression on the neighbours' features, existence and distances."""

    weights: Tensor
    """(N * C + 2 * N, C) float64."""
    intercept: Tensor
    """(C,) float64."""

    def __call__(self, x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
        return _inputs(x, mask, present) @ self.weights + self.intercept


def _inputs(x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
    """Inputs of the regression, (M, N * C + 2 * N) float64."""
    near = neighbours(x, mask, present)
    return torch.cat([near.values.flatten(1), near.exists, near.distance], dim=1).double()


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
        """Add rows, of which the first one has index `first` in the data set."""
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
        """Mean of every feature over the training regions."""
        return self.regions / max(1, self.num_regions)

    def ridge(self) -> Ridge:
        """Minimise the squared error plus PENALTY times the squared weights of standardised inputs."""
        if not self.num:
            return Ridge(torch.zeros_like(self.zy), self.motif_mean())
        z, y = self.z / self.num, self.y / self.num
        covariance = self.zz / self.num - torch.outer(z, z)
        shared = self.zy / self.num - torch.outer(z, y)
        variance = covariance.diagonal()
        scale = torch.where(variance > 1e-12, variance, 1.0).sqrt()  # a constant input gets no weight
        penalty = PENALTY * torch.eye(len(z), dtype=z.dtype, device=z.device)
        weights = torch.linalg.solve(covariance / torch.outer(scale, scale) + penalty, shared / scale[:, None])
        weights = weights / scale[:, None]
        return Ridge(weights, y - z @ weights)


def fit_baselines(train: RowSet, size: int) -> dict[str, Imputer]:
    """Fit `motif_mean`, `nearest` and `ridge` from one pass over the rows, `size` at a time."""
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

"""Agreement of predictions with measured values: Pearson's r, R^2 and mean squared error, from sums."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from torch import Tensor

TINY = 1e-12
"""Largest sum of squares that counts as 0: rounding of sums of numbers near 1."""


@dataclass(frozen=True)
class Agreement:
    """Sums over pairs (target x, prediction y), float64; tensors of one shape: (features,), say, or () for the total.

    Sums of parts add up to the whole's, so data sets of any size are summed a batch at a time.
    """

    count: Tensor
    x: Tensor
    xx: Tensor
    y: Tensor
    yy: Tensor
    xy: Tensor

    @classmethod
    def of(cls, target: Tensor, prediction: Tensor, counts: Tensor) -> Agreement:
        """Sum by feature, (F,): target and prediction (..., F), `counts` (...) bool is true for the rows to compare."""
        weight = counts.reshape(-1, 1).double()
        x = target.reshape(-1, target.shape[-1]).double() * weight
        y = prediction.reshape(-1, target.shape[-1]).double() * weight
        count = weight.sum(0).expand(x.shape[-1])
        return cls(count, x.sum(0), (x * x).sum(0), y.sum(0), (y * y).sum(0), (x * y).sum(0))

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def total(self) -> Agreement:
        """Sum over features: sums of shape ()."""
        return Agreement(*(each.sum() for each in astuple(self)))

    @property
    def squared_error(self) -> Tensor:
        """Squared errors, summed."""
        return self.xx - 2 * self.xy + self.yy

    @property
    def variation(self) -> Tensor:
        """Squared deviations of x from its mean, summed."""
        return self.xx - self.x**2 / self.count.clamp(min=1)

    def mse(self) -> Tensor:
        """Mean squared error; 0 where nothing was compared."""
        return self.squared_error / self.count.clamp(min=1)

    def r2(self) -> Tensor:
        """1 - squared error / squared deviation from the mean target; 0 where the target does not vary."""
        return _ratio(self.variation - self.squared_error, self.variation)

    def pearson(self) -> Tensor:
        """Pearson's correlation; 0 where either side does not vary."""
        count = self.count.clamp(min=1)
        y_variation = (self.yy - self.y**2 / count).clamp(min=0)
        return _ratio(self.xy - self.x * self.y / count, (self.variation.clamp(min=0) * y_variation).sqrt())

    def r2_within(self) -> Tensor:
        """R^2 against each feature's own mean, (F,) -> (): 1 - sum of squared errors / sum of squared deviations.

        A prediction of the features' means has R^2 0 here; over all entries together, `total().r2()`, it has more.
        """
        return _ratio(self.variation.sum() - self.squared_error.sum(), self.variation.sum())


def _ratio(top: Tensor, bottom: Tensor) -> Tensor:
    return torch.where(bottom > TINY, top / bottom.clamp(min=TINY), torch.zeros_like(top))

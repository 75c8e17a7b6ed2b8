"""Distributions of training times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from denoisers.contract.noise import NoiseSource
from denoisers.contract.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor


class TimeDensity(Spec):
    """Base of the distributions of training times. Subclasses add `kind: Literal[NAME] = NAME`.

    The family decides which end of [0, 1] is noise: t = 1 in `dit` and `unet`, t = 0 in `pixelhdm`.
    """

    kind: str

    def draw(self, noise_source: NoiseSource, num: int) -> Tensor:
        """Return training times within `bounds`, (num,) float32: drawn from the noise source under the name `time`."""
        raise NotImplementedError

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest time."""
        return (0.0, 1.0)

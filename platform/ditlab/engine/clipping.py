"""ZClip: adaptive clipping by statistics of earlier gradient norms (Kumar et al. 2025, arXiv:2504.02507).

Plain arithmetic on the norm as a number, so it has to be read from the device: one wait for the GPU a step, which
clipping at a fixed norm does without. A step whose gradient is not finite never comes here.
"""

import math
from collections.abc import Mapping

from ditlab.spec.optimisation.clipping import AdaptiveClip, RatioZClip, ZClip

PREFIX = "clip."


class NormStatistics:
    """Mean and variance of earlier gradient norms, and the limit that they set for the next one."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.variance = 0.0

    def limit(self, norm: float) -> float:
        """Return the norm to clip a gradient of this finite norm to, infinite for none; then count the norm."""
        raise NotImplementedError

    def state(self) -> dict[str, float]:
        """Return the numbers that the next limit depends on."""
        return {f"{PREFIX}{name}": float(value) for name, value in vars(self).items() if not name.startswith("_")}

    def load(self, scalars: Mapping[str, float]) -> None:
        """Load a saved state; statistics start over where there is none, as after a change of clipping."""
        self.count = int(scalars.get(f"{PREFIX}count", 0))
        self.mean = scalars.get(f"{PREFIX}mean", 0.0)
        self.variance = scalars.get(f"{PREFIX}variance", 0.0)


class ZScore(NormStatistics):
    """Published form of ZClip, with reciprocal clipping: the further out a norm, the closer to the mean its limit."""

    def __init__(self, spec: ZClip) -> None:
        super().__init__()
        self._spec = spec

    def limit(self, norm: float) -> float:
        spec = self._spec
        bound = math.inf if spec.max_norm is None else spec.max_norm
        if self.count < spec.warmup:
            # Running mean and population variance of the warm-up's norms (Welford 1962).
            self.count += 1
            away = norm - self.mean
            self.mean += away / self.count
            self.variance += (away * (norm - self.mean) - self.variance) / self.count
            return bound
        away, limit = norm - self.mean, math.inf
        if away > spec.z * math.sqrt(self.variance):
            # mean + z^2 sigma / ((norm - mean) / sigma), without a division by sigma.
            limit = self.mean + spec.z**2 * self.variance / away
        seen = min(norm, limit)
        self.mean += (1 - spec.decay) * (seen - self.mean)
        self.variance += (1 - spec.decay) * ((seen - self.mean) ** 2 - self.variance)
        return min(limit, bound)


class Ratio(NormStatistics):
    """Limit at a multiple of the moving average of clipped norms; the first norm starts the average, unclipped."""

    def __init__(self, spec: RatioZClip) -> None:
        super().__init__()
        self._spec = spec

    def limit(self, norm: float) -> float:
        limit = self._spec.ratio * self.mean if self.count else math.inf
        self.mean += (1 - self._spec.decay) * (min(norm, limit) - self.mean) if self.count else norm
        self.count = 1
        return limit


def statistics(spec: AdaptiveClip) -> NormStatistics:
    """Return fresh statistics for a clipping spec."""
    return ZScore(spec) if isinstance(spec, ZClip) else Ratio(spec)

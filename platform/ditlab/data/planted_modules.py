"""Generated regions of a genome with planted motif modules, and the best prediction that there is
of them.

Two hidden Markov chains run along each chromosome's peaks: domains (runs of DOMAIN_PEAKS on
average) and programs (runs of PROGRAM_PEAKS). A pair of a domain and a program has a module: the
set of features that are active where the two meet. Given the pair, the features of a region are
independent: each is 0, or with the pair's probability a magnitude whose law is the same everywhere.
Other regions therefore inform about a hidden one only through its pair, and forward-backward over
the pairs (Rabiner 1989, section III) gives the exact conditional expectation.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ditlab.data.analytic_targets import KeyedDraws
from ditlab.data.region_windows import make_peaks
from ditlab.spec.data import MotifsData

VERSION = 1
"""Version of the law below, part of a store's name: stores of another law are not used for this
one.
"""

DOMAIN_PEAKS = 12
"""Average peaks of a run of one domain."""
PROGRAM_PEAKS = 30
"""Average peaks of a run of one program."""
ACTIVE_SHARE = 0.4
"""Share of the domains that make a feature active with a program."""
ACTIVE = (0.3, 0.6)
"""Range of the probabilities that an active feature is on; each feature has its own."""
BACKGROUND = 0.01
"""Probability that an inactive feature is on."""
MAGNITUDE = (0.4, 1.0)
"""Range of the uniform magnitude of a feature that is on, without the low end."""
GAP = 3000
"""Mean of the exponential gaps between peaks, in base pairs."""
WIDTH = (300, 500)
"""Range of the width of peaks, in base pairs."""

_BLOCK = 4096
"""Peaks whose features are drawn at once: 1,000 features take 32 MiB of random words."""


@dataclass(frozen=True)
class PlantedModules:
    """Law of generated regions: draws of it, and its optimal predictor. Everything is a function of
    the spec alone.

    S = domains * programs pairs, pair s = domain * programs + program; C = motifs + 1 features,
    accessibility last.
    """

    spec: MotifsData

    @cached_property
    def on_probability(self) -> np.ndarray:
        """(S, C) float64: the probability that a feature is on in a pair.

        For every program each feature is active with equally many domains, so that a program alone
        carries no information about any feature: only the pair does.
        """
        domains = self.spec.domains
        programs = self.spec.programs
        features = self.spec.motifs + 1
        draws = _Draws(f"{self.spec.seed}/modules")
        order = draws.uniform((domains, programs, features)).argsort(axis=0).argsort(axis=0)
        active = order < max(1, round(domains * ACTIVE_SHARE))
        level = ACTIVE[0] + (ACTIVE[1] - ACTIVE[0]) * draws.uniform((features,))
        return np.where(active, level, BACKGROUND).reshape(domains * programs, features)

    @cached_property
    def transition(self) -> np.ndarray:
        """(S, S) float64: row s holds the probabilities of the next peak's pair. The uniform law is
        stationary.
        """
        return np.kron(
            _transitions(self.spec.domains, DOMAIN_PEAKS),
            _transitions(self.spec.programs, PROGRAM_PEAKS),
        )

    @cached_property
    def mean(self) -> np.ndarray:
        """(S, C) float64: a region's expected features given its pair."""
        return self.on_probability * (MAGNITUDE[0] + MAGNITUDE[1]) / 2

    def peaks(self, index: int) -> np.ndarray:
        """Draw a chromosome's peaks, (peaks,) of type `region_windows.PEAK`: gaps are exponential,
        widths uniform.
        """
        peaks = self.spec.peaks
        draws = _Draws(f"{self.spec.seed}/chromosome/{index}/peaks")
        gaps = np.ceil(-GAP * np.log1p(-draws.uniform((peaks,)))).astype(np.int64)
        widths = draws.integers(WIDTH[1] - WIDTH[0] + 1, (peaks,)) + WIDTH[0]
        end = np.cumsum(gaps + widths)
        return make_peaks(index, end - widths, end)

    def features(self, index: int) -> np.ndarray:
        """Draw a chromosome's features, (peaks, C) float32."""
        peaks = self.spec.peaks
        draws = _Draws(f"{self.spec.seed}/chromosome/{index}/features")
        states = draws.walk(self.spec.domains, DOMAIN_PEAKS, peaks) * self.spec.programs
        states += draws.walk(self.spec.programs, PROGRAM_PEAKS, peaks)
        values = np.empty((peaks, self.spec.motifs + 1), np.float32)
        for first in range(0, peaks, _BLOCK):
            block = values[first : first + _BLOCK]
            on = draws.uniform(block.shape) < self.on_probability[states[first : first + _BLOCK]]
            block[:] = on * (
                MAGNITUDE[1] - (MAGNITUDE[1] - MAGNITUDE[0]) * draws.uniform(block.shape)
            )
        return values

    def predict(
        self, x: np.ndarray, mask: np.ndarray, present: np.ndarray | None = None
    ) -> np.ndarray:
        """Return E[x | regions that are not masked] of every region, (B, R, C) float64: no
        predictor has a lower MSE.

        x (B, R, C): its values at masked regions are not used; mask (B, R) bool: True is hidden;
        present (B, R) bool: False is padding, None means no padding. Regions that are not masked
        are their own expectation; padding is 0.
        """
        if present is None:
            present = np.ones(mask.shape, bool)
        posterior = self.posterior(x, present & ~mask)
        predicted = posterior @ self.mean
        predicted[~mask] = x[~mask]
        predicted[~present] = 0
        return predicted

    def posterior(self, x: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Return the posterior of every region's pair given the seen regions, (B, R, S) float64;
        seen (B, R) bool.
        """
        on = self.on_probability
        # Magnitudes have one law in all pairs, so only whether a feature is on is informative.
        evidence = (x > 0).astype(np.float64) @ np.log(on / (1 - on)).T + np.log1p(-on).sum(axis=1)
        evidence[~seen] = 0
        likelihood = np.exp(evidence - evidence.max(axis=-1, keepdims=True))
        forward = np.empty_like(likelihood)
        backward = np.empty_like(likelihood)
        batch, regions, pairs = likelihood.shape
        before = np.full((batch, pairs), 1 / pairs)
        for region in range(regions):
            here = before * likelihood[:, region]
            forward[:, region] = here / here.sum(axis=-1, keepdims=True)
            before = forward[:, region] @ self.transition
        after = np.full((batch, pairs), 1 / pairs)
        for region in reversed(range(regions)):
            backward[:, region] = after
            here = after * likelihood[:, region]
            # Scaled to a sum of 1, every entry keeps at least the chance of both chains' leaving:
            # no underflow.
            after = (here / here.sum(axis=-1, keepdims=True)) @ self.transition.T
        joint = forward * backward
        return joint / joint.sum(axis=-1, keepdims=True)


def feature_names(motifs: int) -> tuple[str, ...]:
    """Return the names of the C features: `motif-001` and so on, `accessibility` last."""
    digits = max(3, len(str(motifs)))
    return (*(f"motif-{number:0{digits}d}" for number in range(1, motifs + 1)), "accessibility")


def _transitions(states: int, length: int) -> np.ndarray:
    """Return the transitions of a chain that stays for `length` on average, then goes to any other
    state alike.
    """
    return np.where(np.eye(states, dtype=bool), 1 - 1 / length, 1 / (length * (states - 1)))


class _Draws(KeyedDraws):
    """Draws of this version of the law."""

    def __init__(self, key: str) -> None:
        super().__init__(f"ditlab.motifs/{VERSION}/{key}")

    def walk(self, states: int, length: int, peaks: int) -> np.ndarray:
        """Draw the states of a chain of `_transitions` along the peaks, int64 (peaks,), from its
        stationary law.
        """
        steps = (self.uniform((peaks,)) < 1 / length) * (1 + self.integers(states - 1, (peaks,)))
        steps[0] = self.integers(states, (1,))[0]
        return np.cumsum(steps) % states

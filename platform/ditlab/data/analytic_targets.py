"""Generated data of analytic targets: points of a mixture of Gaussians, tokens of a Markov chain.

Everything is a function of the spec alone, the same on every machine. A law imports torch on use.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ditlab.data.permutations import keyed_words
from ditlab.spec.data import GaussianMixtureData, MarkovChainData

if TYPE_CHECKING:
    from ditlab_models.processes.analytic_targets import GaussianMixture, MarkovChain

VERSION = 1
"""Version of the laws below, part of a store's name: stores of another law are not used for this
one.
"""
HALF_WIDTH = 0.5
"""Largest coordinate of a mean. The rest of [-1, 1] is 8 standard deviations at the largest
`std`.
"""
UNIFORM_SHARE = 0.01
"""Share of every transition that is uniform, so that each token follows each."""


class KeyedDraws:
    """Random numbers that are a function of a text: Philox's raw words, which NumPy promises for
    good.
    """

    def __init__(self, key: str) -> None:
        self._words = keyed_words(key)

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw U[0, 1) float64: the 53 high bits of a word each."""
        words = self._words.random_raw(int(np.prod(shape)))
        return (words >> np.uint64(11)).reshape(shape) * 2.0**-53

    def integers(self, below: int, shape: tuple[int, ...]) -> np.ndarray:
        """Draw whole numbers in [0, below), int64."""
        return (self.uniform(shape) * below).astype(np.int64)

    def normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw N(0, 1) float64, within 8.3 of 0, by the inverse of its distribution function."""
        from scipy.special import ndtri

        return np.asarray(ndtri(self.uniform(shape) + 2.0**-54))


@lru_cache
def mixture_of(spec: GaussianMixtureData) -> GaussianMixture:
    """Return the law of the spec's points."""
    from ditlab_models.processes.analytic_targets import GaussianMixture

    draws = KeyedDraws(f"ditlab.gaussian_mixture/{VERSION}/{spec.seed}/means")
    return GaussianMixture(
        HALF_WIDTH * (2 * draws.uniform((spec.components, spec.dimensions)) - 1), spec.std
    )


def draw_points(spec: GaussianMixtureData) -> np.ndarray:
    """Draw the spec's samples, (num, points of a sample, dimensions) float32."""
    law = mixture_of(spec)
    draws = KeyedDraws(f"ditlab.gaussian_mixture/{VERSION}/{spec.seed}/points")
    means = law.means[draws.integers(spec.components, (spec.num, spec.regions or 1))]
    return (means + law.std * draws.normal(means.shape)).astype(np.float32)


@lru_cache
def chain_of(spec: MarkovChainData) -> MarkovChain:
    """Return the law of the spec's sequences."""
    from scipy.special import gammaincinv

    from ditlab_models.processes.analytic_targets import MarkovChain

    draws = KeyedDraws(f"ditlab.markov_chain/{VERSION}/{spec.seed}/transition")
    uniform = draws.uniform((spec.states, spec.states)) + 2.0**-54
    # A row of gamma variates over its sum is a draw of the Dirichlet distribution; the smallest
    # ones underflow to 0.
    rows = np.maximum(gammaincinv(spec.concentration, uniform), 1e-300)
    transition = (1 - UNIFORM_SHARE) * rows / rows.sum(
        1, keepdims=True
    ) + UNIFORM_SHARE / spec.states
    # The stationary distribution p is the solution of p (transition - I) = 0 with the sum 1.
    equations = np.vstack([transition.T - np.eye(spec.states), np.ones(spec.states)])
    initial = np.linalg.lstsq(equations, np.eye(spec.states + 1)[-1], rcond=None)[0]
    return MarkovChain(initial / initial.sum(), transition)


def draw_tokens(spec: MarkovChainData) -> np.ndarray:
    """Draw the spec's sequences, (num, length) uint8."""
    law = chain_of(spec)
    draws = KeyedDraws(f"ditlab.markov_chain/{VERSION}/{spec.seed}/tokens")
    uniform = draws.uniform((spec.length, spec.num))
    tokens = np.empty((spec.num, spec.length), np.uint8)
    probabilities = np.broadcast_to(law.initial, (spec.num, spec.states))
    for place in range(spec.length):
        # the last edge is 1 but for rounding
        below = probabilities.cumsum(1)[:, :-1] <= uniform[place][:, None]
        tokens[:, place] = below.sum(1)
        probabilities = law.transition[tokens[:, place]]
    return tokens

"""Denoising score entropy on the uniform graph (Lou et al. 2024, arXiv:2310.16834, algorithm 1).

With noisy tokens x, clean tokens x0, the network's log scores l (l_x = 0) and r of `uniform_graph`, a token's loss is

    1/V sum_{y != x} [ e^{l_y} - s_y l_y + s_y (ln s_y - 1) ],   s_y = q(y | x0)/q(x | x0),

in nats per unit of sigma, 0 where l = ln s and positive elsewhere. A token that has not moved has s_y = r for all y;
one that has moved has s_y = 1, and 1/r at x0. Sums over y thus need the mean of e^l, the mean of l and l at x0.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from denoisers.processes.discrete.uniform_graph import log_ratio, ratio

ScoreName = Literal["log", "softmax"]
"""Interpretation of a network's output l: `log`, log scores; `softmax`, softmax(l) in place of both e^l and l, as in
one published description: that loss is no divergence, goes below 0 and is not least at the true scores."""


class Coefficients(NamedTuple):
    """Coefficients of a token's loss, p - (every n + clean n_{x0}) + constant, each in the tokens' shape.

    p and n are sums over y != x, divided by V; n_{x0} is not divided.
    """

    every: Tensor
    """r where the token has not moved, else 1."""
    clean: Tensor
    """0 where the token has not moved, else 1/(e^sigma - 1)."""
    constant: Tensor


class ZeroScoreLosses(NamedTuple):
    """Losses of tokens that have moved and of those that have not, for a network that outputs 0."""

    unmoved: Tensor
    moved: Tensor


def coefficients(x: Tensor, x0: Tensor, sigma: Tensor, vocabulary: int) -> Coefficients:
    """Compute the coefficients of noisy tokens x and clean tokens x0 at noise sigma, which broadcasts against them."""
    sigma = sigma.expand(x.shape)
    r, log_r, grown = ratio(sigma, vocabulary), log_ratio(sigma, vocabulary), torch.expm1(sigma)
    stays = x == x0
    # for the token that has moved, ((-ln r - 1)/r - (V - 2))/V; 1/r = 1 + V/grown
    unmoved = (vocabulary - 1) / vocabulary * r * (log_r - 1)
    moved = (-log_r - 1) / grown + (-log_r - (vocabulary - 1)) / vocabulary
    return Coefficients(
        every=torch.where(stays, r, 1.0),
        clean=torch.where(stays, 0.0, 1 / grown),
        constant=torch.where(stays, unmoved, moved),
    )


def score_entropy(output: Tensor, x: Tensor, x0: Tensor, sigma: Tensor, score: ScoreName = "log") -> Tensor:
    """Loss of each token in nats per unit of sigma, (...): times d sigma/dt it is nats per unit of time.

    output: (..., V); its entry at the token itself counts as 0. x, x0: (...) int64. sigma broadcasts against x. In
    float32 or better. `chunked_score_entropy` gives the same without holding all of the output.
    """
    vocabulary = output.shape[-1]
    wide = torch.promote_types(output.dtype, torch.float32)
    every, clean, constant = coefficients(x, x0, sigma.to(wide), vocabulary)
    output = output.to(wide).scatter(-1, x[..., None], 0.0)
    if score == "softmax":
        positive = negative = output.softmax(-1)
    else:
        positive, negative = output.exp(), output
    p, n = (_mean_of_others(each, x) for each in (positive, negative))
    at_clean = negative.gather(-1, x0[..., None])[..., 0]
    return p - (every * n + clean * at_clean) + constant


def _mean_of_others(values: Tensor, x: Tensor) -> Tensor:
    """Sum over all tokens but x, divided by V."""
    return values.mean(-1) - values.gather(-1, x[..., None])[..., 0] / values.shape[-1]


def zero_score_entropy(sigma: Tensor, vocabulary: int) -> ZeroScoreLosses:
    """Losses of log scores that are all 0, closed forms: 0.999594 and 5.403052 at sigma = 1, V = 50257."""
    r, log_r = ratio(sigma, vocabulary), log_ratio(sigma, vocabulary)
    return ZeroScoreLosses(
        unmoved=(vocabulary - 1) / vocabulary * (1 + r * (log_r - 1)),
        moved=(vocabulary - 1) / vocabulary + ((-log_r - 1) / r - (vocabulary - 2)) / vocabulary,
    )


def expected_zero_score_entropy(sigma: Tensor, vocabulary: int) -> Tensor:
    """Mean over x of the losses of log scores that are all 0: (V - 1)/V e^-sigma ln(1/r).

    It is -d/d sigma of `kl_from_uniform`: such a network's reverse process leaves uniform tokens as they are.
    """
    return -(vocabulary - 1) / vocabulary * torch.exp(-sigma) * log_ratio(sigma, vocabulary)

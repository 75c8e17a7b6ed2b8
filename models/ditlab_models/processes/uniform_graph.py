"""The uniform discrete process (Austin et al. 2021, arXiv:2107.03006; Lou et al. 2024,
arXiv:2310.16834, section 5.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def move_probability(sigma: Tensor) -> Tensor:
    """Probability p_move that a token has jumped."""
    return -torch.expm1(-sigma)


def ratio(sigma: Tensor, vocabulary: int) -> Tensor:
    """Ratio r = q(any one other token)/q(own token), 1 - V/(e^sigma - 1 + V), with all digits at a
    small sigma.
    """
    grown = torch.expm1(sigma)
    return grown / (grown + vocabulary)


def log_ratio(sigma: Tensor, vocabulary: int) -> Tensor:
    """ln r, with all its digits where r is near 1 as well."""
    return -torch.log1p(vocabulary / torch.expm1(sigma))


def corrupt(x0: Tensor, sigma: Tensor, move: Tensor, jump: Tensor, vocabulary: int) -> Tensor:
    """Draw from q(x_t | x_0): x0 int64, sigma (broadcasts against x0), move and jump U[0, 1), all
    of x0's shape.
    """
    # in float32, 0.99999994 V may round to V
    token = (jump * vocabulary).long().clamp(max=vocabulary - 1)
    return torch.where(move < move_probability(sigma), token, x0)


def transition(x: Tensor, sigma: Tensor, vocabulary: int) -> Tensor:
    """Transition probabilities to every token after sigma more of noise, (..., V), from tokens x
    (...); symmetric.
    """
    other = (move_probability(sigma) / vocabulary).expand(x.shape)[..., None]
    return other.repeat_interleave(vocabulary, -1).scatter(
        -1, x[..., None], 1 - (vocabulary - 1) * other
    )


def reverse_rate(log_score: Tensor, x: Tensor) -> Tensor:
    """Rates of the reverse process per unit of sigma, (..., V), of log scores (..., V), 0 at x
    (...); a row sums to 0."""
    rate = (log_score.exp() / log_score.shape[-1]).scatter(-1, x[..., None], 0.0)
    return rate.scatter(-1, x[..., None], -rate.sum(-1, keepdim=True))


def posterior(log_score: Tensor, x: Tensor, step: Tensor) -> Tensor:
    """Probabilities of every token at noise sigma - step, (..., V), from log scores at sigma (Lou
    et al., theorem 4.2).

    Negative ones, of a network's inexact ratios, become 0 and the rest is normalised. log_score:
    (..., V), 0 at the token itself; x: (...); step: broadcasts against x.
    """
    vocabulary = log_score.shape[-1]
    step = step.expand(x.shape)[..., None]
    # e^step score - (e^step - 1) mean score; by what scores are above 1, as all are near 1 where a
    # step can be large
    above = log_score.expm1()
    staggered = 1 + above + step.expm1() * (above - above.mean(-1, keepdim=True))
    probability = (staggered * transition(x, step[..., 0], vocabulary)).clamp(min=0)
    return probability / probability.sum(-1, keepdim=True)


def kl_from_uniform(sigma: float, vocabulary: int) -> float:
    """KL(q(x_t | x_0) || uniform) in nats a token, the same for every x_0; ln V less the entropy of
    q(x_t | x_0).

    At sigma_max it is the prior's part of a likelihood bound: 3.3246 for sigma_max = 1 and V =
    50257.
    """
    other = -math.expm1(-sigma)  # V times the probability of any one other token
    own = vocabulary - (vocabulary - 1) * other
    moved = (vocabulary - 1) * other * math.log(other) if other else 0.0
    return (own * math.log(own) + moved) / vocabulary

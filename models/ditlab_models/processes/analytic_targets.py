"""Laws of generated data whose optimal denoisers have closed forms, so that a network's excess loss
is known.

B batch, T tokens of a sequence, V vocabulary, K components of a mixture, D dimensions. All is
computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ditlab_models.processes.uniform_graph import move_probability


@dataclass(frozen=True)
class GaussianMixture:
    """Points of K equally likely components, N(mean, std^2 I) each."""

    means: np.ndarray
    """(K, D)."""
    std: float

    def expectations(self, x: Tensor, signal: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return E[x0 | x] and E[e | x] of x = signal x0 + noise e, e ~ N(0, I): x (..., D), the
        shares (..., 1).

        Given its component, x0 and x are jointly Gaussian; the components' posterior is that of
        N(signal mean, (signal^2 std^2 + noise^2) I). Velocity e - x0 and any other linear function
        of both follow.
        """
        x = x.double()
        signal = signal.double()[..., None]
        noise = noise.double()[..., None]
        means = torch.from_numpy(self.means).to(x.device)  # (K, D)
        away = x[..., None, :] - signal * means  # (..., K, D)
        variance = (signal * self.std) ** 2 + noise**2
        posterior = (away.square().sum(-1, keepdim=True) / (-2 * variance)).softmax(-2)
        data = means + signal * self.std**2 / variance * away
        return (posterior * data).sum(-2), (posterior * noise / variance * away).sum(-2)


@dataclass(frozen=True)
class MarkovChain:
    """Sequences of a stationary Markov chain."""

    initial: np.ndarray
    """(V,): the stationary distribution."""
    transition: np.ndarray
    """(V, V): row v holds the probabilities of the token behind v; none of them is 0."""

    def log_scores(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return ln p_sigma(x with one token replaced) / p_sigma(x), (B, T, V), of tokens x (B, T)
        at noise (B, 1).

        Noisy tokens are observations of a hidden Markov chain: forward-backward (Rabiner 1989,
        section III) gives the law of each clean token given the other noisy ones, and noise on top
        that of the noisy token itself.
        """
        initial, transition = (
            torch.from_numpy(each).to(x.device) for each in (self.initial, self.transition)
        )
        vocabulary = len(self.initial)
        length = x.shape[1]
        moved = move_probability(sigma.double())  # (B, 1)
        seen = (
            functional.one_hot(x, vocabulary) * (1 - moved)[..., None]
            + (moved / vocabulary)[..., None]
        )
        # (B, V) by token
        before = [initial.expand(len(x), -1)]
        after = [torch.ones_like(seen[:, 0])]
        for token in range(length - 1):
            here = before[-1] * seen[:, token]
            there = after[-1] * seen[:, length - 1 - token]
            before.append(here / here.sum(1, keepdim=True) @ transition)
            after.append(there / there.sum(1, keepdim=True) @ transition.T)
        clean = torch.stack(before, 1) * torch.stack(after[::-1], 1)
        clean = clean / clean.sum(-1, keepdim=True)
        noisy = (clean * (1 - moved)[..., None] + (moved / vocabulary)[..., None]).log()
        return noisy - noisy.gather(-1, x[..., None])


def score_entropy_excess(log_score: Tensor, best: Tensor) -> Tensor:
    """Return the score entropy (Lou et al. 2024, arXiv:2310.16834, definition 3.1) of log scores
    against the true ones.

    log_score, best: (..., V), 0 at the token itself. Nats per unit of sigma, (...), as the loss of
    a token, whose expectation given the noisy tokens is above its least value by this.
    """
    return (log_score.exp() - best.exp() * (1 + log_score - best)).mean(-1)

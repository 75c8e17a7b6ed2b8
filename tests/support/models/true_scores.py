"""Networks with the true scores, in closed form, of a distribution over short sequences."""

import torch
from torch import Tensor, nn

from ditlab_models.processes.uniform_graph import log_ratio

PAIR = torch.tensor([[0.3, 0.02, 0.03], [0.05, 0.2, 0.05], [0.0, 0.05, 0.3]], dtype=torch.float64)
"""A law of two tokens that depend on each other."""
SUM = torch.full((3, 3, 3), 0.01, dtype=torch.float64)
"""One of three, not normalised: 98 times out of 100 the middle token is the sum of its neighbours,
modulo 3.
"""
for _left in range(3):
    for _right in range(3):
        SUM[_left, (_left + _right) % 3, _right] = 0.98


def noisy(clean, sigma):
    """The law at noise sigma of sequences whose clean law is (V, ..., V): each token stays or
    becomes uniform.
    """
    vocabulary, stays = clean.shape[0], torch.tensor(-sigma, dtype=clean.dtype).exp()
    kernel = stays * torch.eye(vocabulary, dtype=clean.dtype) + (1 - stays) / vocabulary
    for axis in range(clean.ndim):
        clean = torch.tensordot(clean, kernel, dims=([axis], [0])).movedim(-1, axis)
    return clean


def distance(law, other):
    """Total variation."""
    return float((law - other).abs().sum() / 2)


def every_sequence(vocabulary, length):
    """(V^L, L) int64, in the order of a flattened law."""
    return torch.cartesian_prod(*[torch.arange(vocabulary)] * length).view(-1, length)


class TrueScores(nn.Module):
    """log p_sigma(x with one token replaced) - log p_sigma(x), of a clean law (V, ..., V) with a
    dimension a token.

    Longer sequences hold several independent draws of the law, one behind the other.
    """

    def __init__(self, clean):
        super().__init__()
        self.clean = nn.Parameter(clean / clean.sum())
        self.sigmas: list[float] = []

    def forward(self, x, sigma):
        """(B, L), (B,) -> (B, L, V)."""
        assert sigma.unique().numel() == 1
        self.sigmas.append(float(sigma[0]))
        return self.scores(x.view(-1, self.clean.ndim), float(sigma[0])).view(*x.shape, -1)

    def scores(self, x, sigma):
        """(N, L) -> (N, L, V), L tokens being one draw."""
        return scores_of(self.clean, x, sigma)


class BlockScores(nn.Module):
    """True scores of a block given the clean blocks that were committed to a cache."""

    def __init__(self, clean):
        super().__init__()
        self.clean = nn.Parameter(clean / clean.sum())
        self.calls: list[tuple[str, int, float]] = []
        """(`evaluate` or `commit`, committed tokens before, noise) of each call."""
        self._committed: dict[object, Tensor] = {}

    def forward(self, x, sigma, cache=None, commit=False):
        before = self._committed.get(cache, x[:, :0])
        assert cache.length == before.shape[1]
        self.calls.append(("commit" if commit else "evaluate", before.shape[1], float(sigma[0])))
        if commit:
            self._committed[cache] = torch.cat((before, x), dim=1)
            cache.commit(x.shape[1])
            return None
        length = before.shape[1] + x.shape[1]
        law = (
            self.clean.sum(dim=tuple(range(length, self.clean.ndim)))
            if length < self.clean.ndim
            else self.clean
        )
        scores = torch.empty(*x.shape, self.clean.shape[0], dtype=law.dtype)
        for prefix in sorted({tuple(row) for row in before.tolist()}):
            rows = (before == torch.tensor(prefix, dtype=torch.int64)).all(dim=1)
            scores[rows] = scores_of(law[prefix], x[rows], float(sigma[0]))
        return scores


def scores_of(clean, x, sigma):
    """(B, L, V) of sequences x (B, L) at noise sigma; `clean` need not sum to 1."""
    law, vocabulary = noisy(clean, sigma).log(), clean.shape[0]
    scores = []
    for place in range(x.shape[1]):
        others = x[:, None].repeat(1, vocabulary, 1)  # (B, V, L)
        others[..., place] = torch.arange(vocabulary)
        scores.append(law[others.unbind(-1)] - law[x.unbind(-1)][:, None])
    return torch.stack(scores, dim=1)


def log_ratios(x, x0, sigma, vocabulary):
    """True log scores ln q(y | x0)/q(x | x0) of every y, (..., V), from noisy tokens x and clean
    ones x0 (...).
    """
    log_r = log_ratio(sigma, vocabulary).expand(x.shape)
    rest = torch.where(x == x0, log_r, torch.zeros_like(log_r))[..., None]
    scores = rest.repeat_interleave(vocabulary, -1)
    scores = scores.scatter(
        -1, x0[..., None], torch.where(x == x0, torch.zeros_like(log_r), -log_r)[..., None]
    )
    return scores.scatter(-1, x[..., None], 0.0)

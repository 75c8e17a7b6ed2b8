"""Score entropy of one chunk of tokens, and its gradient by the network's output, which overwrites the output.

n tokens of the chunk, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from denoisers.processes.discrete.fused_exp import exp_minus
from denoisers.processes.discrete.score_entropy import Coefficients


@dataclass(frozen=True)
class NoisyTokens:
    """Noisy and clean tokens with the coefficients of their losses: all N of a batch, or a chunk's n."""

    x: Tensor
    x0: Tensor
    coefficients: Coefficients
    weight: Tensor
    """Weight of each token's loss in the sum."""

    def chunk(self, rows: slice) -> NoisyTokens:
        """Return the tokens of some rows."""
        parts = Coefficients(*(each[rows] for each in self.coefficients))
        return NoisyTokens(self.x[rows], self.x0[rows], parts, self.weight[rows])


def log_chunk(output: Tensor, tokens: NoisyTokens, sums: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Compute losses (n,) and V times their gradients by the output (n, V), which is overwritten.

    `sums` (n,) are the outputs' sums over the vocabulary.
    """
    wide = tokens.weight.dtype
    x, x0 = tokens.x[:, None], tokens.x0[:, None]
    every, clean, constant = (each[:, None] for each in tokens.coefficients)
    vocabulary = output.shape[1]
    at_x, at_x0 = output.gather(1, x).to(wide), output.gather(1, x0).to(wide)
    output.scatter_(1, x, -torch.inf)
    total, by_output = exp_minus(output, every, with_gradient)
    negative = every / vocabulary * (sums[:, None] - at_x) + clean * at_x0.masked_fill(x == x0, 0)
    losses = total / vocabulary - negative + constant
    if by_output is not None:
        at_clean = at_x0.exp() - every - vocabulary * clean
        by_output.scatter_(1, x0, at_clean.to(by_output.dtype)).scatter_(1, x, 0)
    return losses[:, 0], by_output


def softmax_chunk(output: Tensor, tokens: NoisyTokens, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Do the same for s = softmax(l): p = (1 - s_x)/V, n = every p + clean s_{x0}; ds_k/dl_v = s_k ([k = v] - s_v)."""
    x, x0 = tokens.x[:, None], tokens.x0[:, None]
    every, clean, constant = (each[:, None] for each in tokens.coefficients)
    vocabulary = output.shape[1]
    s = output.scatter_(1, x, 0).to(tokens.weight.dtype)
    s.sub_(s.amax(1, keepdim=True)).exp_()
    s.div_(s.sum(1, keepdim=True))
    at_x, at_x0 = s.gather(1, x), s.gather(1, x0)
    losses = (1 - every) * (1 - at_x) / vocabulary - clean * at_x0 + constant
    if not with_gradient:
        return losses[:, 0], None
    by_clean = vocabulary * clean * at_x0
    s.mul_((1 - every) * at_x + by_clean)
    s.scatter_add_(1, x0, -by_clean).scatter_(1, x, 0)
    return losses[:, 0], s.to(output.dtype)

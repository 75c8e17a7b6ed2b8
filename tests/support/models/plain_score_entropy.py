"""Score entropy of a network's whole output, as it is written (Lou et al. 2024, arXiv:2310.16834,
algorithm 1).
"""

import torch
from torch import nn

from ditlab_models.dlm.spec import DLMSpec
from ditlab_models.processes.score_entropy import TokenLosses, noisy_tokens
from ditlab_models.tensors import wide_dtype
from support.models.draws import seeded

V, T = 11, 12
"""Tokens of the vocabulary and of a sequence."""
CLEAN = torch.tensor(
    [0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.03, 0.02, 0.007, 0.003], dtype=torch.float64
)
"""Law of tokens that are drawn one by one, (V,)."""
MODEL = DLMSpec(
    length=T, vocabulary=V, depth=1, num_heads=2, width=16, condition_width=8, time_width=8
)


class Scores(nn.Module):
    """A network whose output is a function of tokens and noise; records its inputs."""

    def __init__(self, output):
        super().__init__()
        self.output, self.calls = output, []

    def forward(self, x, sigma, targets, documents=None):
        self.calls.append((x, sigma, targets))
        output = self.output(x, targets.sigma.double())
        losses = score_entropy(output, x, targets.x0, targets.sigma.double(), targets.score)
        return TokenLosses((losses * targets.weight).sum(), losses.detach())


class AlwaysWrong(nn.Module):
    """A network whose loss is one number at every token and noise."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, x, sigma, targets, documents=None):
        losses = torch.full(x.shape, self.loss)
        return TokenLosses((losses * targets.weight).sum(), losses)


def zeros(x, sigma):
    """Log scores that are all 0."""
    return torch.zeros(*x.shape, V, dtype=torch.float64)


def marginal(sigma):
    """q_sigma of tokens drawn from CLEAN, (..., V)."""
    stays = torch.exp(-sigma)[..., None]
    return stays * CLEAN + (1 - stays) / V


def unigram(x, sigma):
    """The true scores of tokens that are drawn from CLEAN, one by one."""
    log_q = marginal(sigma).log()
    return log_q - log_q.gather(-1, x[..., None])


def draw_clean(num, seed=0):
    """Draw sequences (num, T) of tokens from CLEAN."""
    return torch.multinomial(CLEAN, num * T, replacement=True, generator=seeded(seed)).view(num, T)


def score_entropy(output, x, x0, sigma, score="log"):
    """Loss of each token in nats per unit of sigma, (...): times d sigma/dt it is nats per unit of
    time.

    output: (..., V); its entry at the token itself counts as 0. x, x0: (...) int64. In float32 or
    better.
    """
    vocabulary = output.shape[-1]
    wide = wide_dtype(output)
    _, _, every, clean, constant, _ = noisy_tokens(x, x0, sigma.to(wide), sigma, vocabulary)
    output = output.to(wide).scatter(-1, x[..., None], 0.0)
    if score == "softmax":
        positive = negative = output.softmax(-1)
    else:
        positive, negative = output.exp(), output
    # sums over all tokens but x, divided by V
    p, n = (
        each.mean(-1) - each.gather(-1, x[..., None])[..., 0] / vocabulary
        for each in (positive, negative)
    )
    at_clean = negative.gather(-1, x0[..., None])[..., 0]
    return p - (every * n + clean * at_clean) + constant

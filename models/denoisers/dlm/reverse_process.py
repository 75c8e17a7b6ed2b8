"""The reverse process of tokens: its passes over the network, and what is drawn from each (arXiv:2310.16834, sec. 4).

B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from denoisers.dlm.prompts import Given
from denoisers.dlm.spec import DLMObjectiveSpec, DLMSamplingSpec
from denoisers.processes.discrete.schedule import sigma_schedule
from denoisers.processes.discrete.score_entropy import ScoreName
from denoisers.processes.discrete.uniform_graph import posterior, reverse_rate
from denoisers.processes.sample_draws import SampleDraws

LAST_TIME = 1e-5
"""Where the passes' times end, as in the paper's public code."""
CHUNK_ENTRIES = 2**21
"""Chances that are worked out at once: 8 MiB of float32 a tensor, of which a few live at a time."""

Chances = Callable[[Tensor, Tensor], Tensor]
"""(N, V) of every token next, summing to any positive number, from the network's output (N, V) and tokens (N,)."""
Ask = Callable[[Tensor, float], Tensor]
"""The network's output (B, T, V) at tokens (B, T) and one noise level."""
Record = Callable[[Tensor, float], None]
"""Is told the tokens that a pass has drawn, and the noise that is then left."""


@dataclass(frozen=True)
class Pass:
    """One evaluation of the network and what is made of it."""

    sigma: float
    """Noise that the network is told."""
    left: float
    """Noise of what is drawn."""
    chances: Chances


def reverse_passes(spec: DLMSamplingSpec, objective: DLMObjectiveSpec) -> tuple[Pass, ...]:
    """The passes from t = 1 on: `spec.num_steps`, and the denoising one behind them if there is one.

    Times are even. Those of `euler` and `analytic` are where each of the steps to t = 1e-5 begins; `categorical`, which
    goes from guess to guess, is asked at t = 1e-5 as well and has no denoising step.
    """
    schedule, score, steps = sigma_schedule(objective.noise), objective.score, spec.num_steps
    if spec.solver == "categorical":
        levels = schedule.sigma(torch.linspace(1, LAST_TIME, steps, dtype=torch.float64)).tolist()
        return tuple(Pass(sigma, sigma, categorical_chances) for sigma in levels)
    times = torch.linspace(1, LAST_TIME, steps + 1, dtype=torch.float64)
    sigma, rate = schedule.sigma(times).tolist(), schedule.rate(times).tolist()
    passes = []
    for now, after, slope in zip(sigma[:-1], sigma[1:], rate[:-1], strict=True):
        if spec.solver == "euler":
            chances = euler_chances(slope * (1 - LAST_TIME) / steps, score)
        else:
            chances = analytic_chances(now - after, score)
        passes.append(Pass(now, after, chances))
    if spec.denoise:
        passes.append(Pass(sigma[-1], 0.0, analytic_chances(sigma[-1], score)))
    return tuple(passes)


def euler_chances(step: float, score: ScoreName) -> Chances:
    """One-hot + step times the reverse rate, 0 where that is negative; step = dt d sigma/dt."""

    def chances(output: Tensor, x: Tensor) -> Tensor:
        change = step * reverse_rate(log_scores(output, x, score), x)
        return change.scatter_add(-1, x[..., None], torch.ones_like(change[..., :1])).clamp(min=0)

    return chances


def analytic_chances(step: float, score: ScoreName) -> Chances:
    """Staggered scores times the transposed transition, from one noise level to the one `step` below."""

    def chances(output: Tensor, x: Tensor) -> Tensor:
        return posterior(log_scores(output, x, score), x, output.new_full((), step))

    return chances


def categorical_chances(output: Tensor, x: Tensor) -> Tensor:
    """softmax(output), whatever x: a heuristic, no reverse process.

    With log scores it is a token's law given all others, under the noise that the network is told: every token so
    forgets what it was, and all change at once, each by what the others were before. One alone would be a Gibbs step.
    What is drawn holds that noise; no step takes it away.
    """
    return output.softmax(-1)


def log_scores(output: Tensor, x: Tensor, score: ScoreName) -> Tensor:
    """Log scores (..., V), 0 at x (...), of the network's output: itself, or the log of its softmax."""
    return output if score == "log" else output.log_softmax(-1).scatter(-1, x[..., None], 0.0)


def take_noise_away(
    ask: Ask, x: Tensor, passes: Sequence[Pass], given: Given, draws: SampleDraws, record: Record
) -> Tensor:
    """Tokens (B, T) from noisy ones, by all passes. Given tokens, which x holds, stand before each and in the end."""
    for each in passes:
        uniform = draws.uniform(x.shape, torch.float64)
        # Nothing holds the last pass' (B, T, V) when the next one is asked for.
        x = given.put_into(draw_tokens(each.chances, ask(x, each.sigma), x, uniform))
        record(x, each.left)
    return x


def draw_tokens(chances: Chances, output: Tensor, x: Tensor, uniform: Tensor) -> Tensor:
    """A token (B, T) each, from the network's output (B, T, V), tokens x and U[0, 1), (B, T) each.

    By the inverse of the cumulative sum, in float64: of 50,257 tokens most have a chance of 1e-8 or less in a step, and
    float32 sums to 1 by steps of 6e-8. In chunks of tokens, so that nothing more of the size of `output` is held.
    """
    size = max(1, CHUNK_ENTRIES // output.shape[-1])
    chunks = zip(*(each.flatten(0, 1).split(size) for each in (output, x, uniform)), strict=True)
    drawn = [_inverse(chances(_wide(part), tokens), at) for part, tokens, at in chunks]
    return torch.cat(drawn).view_as(x)


def _wide(output: Tensor) -> Tensor:
    return output.to(torch.promote_types(output.dtype, torch.float32))


def _inverse(chances: Tensor, uniform: Tensor) -> Tensor:
    """The first token whose cumulative chance lies above uniform (N,), never one of chance 0: (N, V) -> (N,)."""
    summed = chances.cumsum(-1, dtype=torch.float64)
    token = torch.searchsorted(summed, (uniform * summed[:, -1])[:, None], right=True)[:, 0]
    return token.clamp(max=chances.shape[-1] - 1)  # chances that are NaN lie above nothing


def noise_tokens(draws: SampleDraws, num: int, length: int, vocabulary: int) -> Tensor:
    """Uniform tokens (num, length) int64."""
    return (draws.uniform((num, length), torch.float64) * vocabulary).long()


def told(network: nn.Module, num: int, sigma: float) -> Tensor:
    """One noise level for every sample, (num,), in float32 or the network's better dtype, on its device."""
    parameter = next(network.parameters())
    return torch.full((num,), sigma, dtype=torch.promote_types(parameter.dtype, torch.float32), device=parameter.device)

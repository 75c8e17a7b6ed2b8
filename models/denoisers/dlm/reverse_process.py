"""The reverse process of tokens: its steps, and the draw of tokens in each (arXiv:2310.16834, section 4).

B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from denoisers.dlm.prompts import Clamp
from denoisers.dlm.spec import DLMObjectiveSpec, DLMSamplingSpec
from denoisers.processes.draws import SampleDraws, check_noise_shape
from denoisers.processes.score_entropy import ScoreName
from denoisers.processes.uniform_graph import posterior, reverse_rate, sigma_schedule

LAST_TIME = 1e-5
"""Last time of the steps, as in the paper's public code."""
CHUNK_ENTRIES = 2**21
"""Probabilities that are computed at once: 8 MiB of float32 a tensor, of which a few live at a time."""

TransitionProbabilities = Callable[[Tensor, Tensor], Tensor]
"""Weights of every next token, (N, V), with any positive sum, from the network's output (N, V) and tokens (N,)."""
Predict = Callable[[Tensor, float], Tensor]
"""The network's output (B, T, V) at tokens (B, T) and one noise level."""
StepCallback = Callable[[Tensor, float], None]
"""Called after each step with its tokens (B, T) and the sigma that remains."""


@dataclass(frozen=True)
class ReverseStep:
    """One evaluation of the network, and the draw of tokens from its output."""

    sigma: float
    """Noise level of the network's evaluation."""
    sigma_after: float
    """Noise level of the drawn tokens."""
    probabilities: TransitionProbabilities


def reverse_steps(spec: DLMSamplingSpec, objective: DLMObjectiveSpec) -> tuple[ReverseStep, ...]:
    """Build the steps from t = 1 on: `spec.num_steps`, and the denoising one behind them if `spec.denoise`.

    Times are evenly spaced. `euler` and `analytic` evaluate the network at the beginning of each step to t = 1e-5;
    `categorical`, which draws guess after guess, does so at t = 1e-5 as well and has no denoising step.
    """
    schedule, score, num_steps = sigma_schedule(objective.noise), objective.score, spec.num_steps
    if spec.solver == "categorical":
        levels = schedule.sigma(torch.linspace(1, LAST_TIME, num_steps, dtype=torch.float64)).tolist()
        return tuple(ReverseStep(sigma, sigma, categorical_probabilities) for sigma in levels)
    times = torch.linspace(1, LAST_TIME, num_steps + 1, dtype=torch.float64)
    sigma, rate = schedule.sigma(times).tolist(), schedule.rate(times).tolist()
    steps = []
    for now, after, slope in zip(sigma[:-1], sigma[1:], rate[:-1], strict=True):
        if spec.solver == "euler":
            probabilities = euler_probabilities(slope * (1 - LAST_TIME) / num_steps, score)
        else:
            probabilities = analytic_probabilities(now - after, score)
        steps.append(ReverseStep(now, after, probabilities))
    if spec.denoise:
        steps.append(ReverseStep(sigma[-1], 0.0, analytic_probabilities(sigma[-1], score)))
    return tuple(steps)


def euler_probabilities(step: float, score: ScoreName) -> TransitionProbabilities:
    """One-hot + step times the reverse rate, 0 where that is negative; step = dt d sigma/dt."""

    def probabilities(output: Tensor, x: Tensor) -> Tensor:
        change = step * reverse_rate(log_scores(output, x, score), x)
        return change.scatter_add(-1, x[..., None], torch.ones_like(change[..., :1])).clamp(min=0)

    return probabilities


def analytic_probabilities(step: float, score: ScoreName) -> TransitionProbabilities:
    """Staggered scores times the transposed transition, from one noise level to the one `step` below."""

    def probabilities(output: Tensor, x: Tensor) -> Tensor:
        return posterior(log_scores(output, x, score), x, output.new_full((), step))

    return probabilities


def categorical_probabilities(output: Tensor, x: Tensor) -> Tensor:
    """softmax(output), whatever x: a heuristic, no reverse process.

    With log scores it is a token's law given all others, at the noise level of the evaluation: all tokens are redrawn
    at once, each given the others' previous values. One alone would be a Gibbs step. The drawn tokens hold that noise;
    no step removes it.
    """
    return output.softmax(-1)


def log_scores(output: Tensor, x: Tensor, score: ScoreName) -> Tensor:
    """Log scores (..., V), 0 at x (...), of the network's output: itself, or the log of its softmax."""
    return output if score == "log" else output.log_softmax(-1).scatter(-1, x[..., None], 0.0)


def denoise(
    predict: Predict, x: Tensor, steps: Sequence[ReverseStep], clamp: Clamp, draws: SampleDraws, record: StepCallback
) -> Tensor:
    """Denoise tokens (B, T) by all steps. Clamped tokens, which x holds, are put back after each step."""
    for step in steps:
        uniform = draws.uniform(x.shape, torch.float64)
        # Nothing holds the last step's (B, T, V) when the next one is computed.
        x = clamp.apply(draw_tokens(step.probabilities, predict(x, step.sigma), x, uniform))
        record(x, step.sigma_after)
    return x


def draw_tokens(probabilities: TransitionProbabilities, output: Tensor, x: Tensor, uniform: Tensor) -> Tensor:
    """Draw tokens (B, T) from the network's output (B, T, V), tokens x and U[0, 1), (B, T) each.

    By the inverse of the cumulative sum, in float64: of 50,257 tokens most have a probability of 1e-8 or less in a
    step, and float32 sums to 1 by steps of 6e-8. In chunks of tokens, so that no second tensor as large as `output` is
    held.
    """
    size = max(1, CHUNK_ENTRIES // output.shape[-1])
    chunks = zip(*(each.flatten(0, 1).split(size) for each in (output, x, uniform)), strict=True)
    drawn = [_invert_cumulative(probabilities(_wide(part), tokens), at) for part, tokens, at in chunks]
    return torch.cat(drawn).view_as(x)


def _wide(output: Tensor) -> Tensor:
    return output.to(torch.promote_types(output.dtype, torch.float32))


def _invert_cumulative(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Find the first token whose cumulative probability lies above uniform (N,), never one of probability 0."""
    summed = probabilities.cumsum(-1, dtype=torch.float64)
    token = torch.searchsorted(summed, (uniform * summed[:, -1])[:, None], right=True)[:, 0]
    return token.clamp(max=probabilities.shape[-1] - 1)  # NaN lies above nothing


def uniform_tokens(draws: SampleDraws, num: int, length: int, vocabulary: int) -> Tensor:
    """Draw uniform tokens (num, length) int64."""
    return (draws.uniform((num, length), torch.float64) * vocabulary).long()


def starting_tokens(noise: Tensor, like: Tensor, vocabulary: int) -> Tensor:
    """Return given tokens on the device of `like`, tokens of the same shape.

    Raises ValueError for another shape and for tokens that the vocabulary does not have.
    """
    check_noise_shape(noise, like.shape)
    if noise.dtype != torch.int64 or not bool(((noise >= 0) & (noise < vocabulary)).all()):
        held = f"{noise.dtype}".removeprefix("torch.")
        raise ValueError(
            f"noise must hold tokens from 0 to {vocabulary - 1} as int64 (model.vocabulary={vocabulary}), and holds "
            f"{held} from {noise.min().item():g} to {noise.max().item():g}; draw it with torch.randint."
        )
    return noise.to(like.device)


def constant_sigma(network: nn.Module, num: int, sigma: float) -> Tensor:
    """One sigma for every sample, (num,), in float32 or the network's better dtype, on its device."""
    parameter = next(network.parameters())
    return torch.full((num,), sigma, dtype=torch.promote_types(parameter.dtype, torch.float32), device=parameter.device)

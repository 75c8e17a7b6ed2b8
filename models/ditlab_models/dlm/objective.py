"""The language model's objective: score entropy, and a bound on the likelihood of held-out text.

B batch, T tokens of a sequence, N times of a sequence (1, or its blocks in a block-causal network),
V vocabulary. All in nats a token.

The bound. Let x_s be a token at the least noise s = sigma_min, x_T one at sigma_max, p the
sampler's process (uniform at sigma_max, then the reverse rates that the network's scores give)
followed by a last draw p(x_0 | x_s). Then

    -ln p(x_0) <= KL(q(path | x_0) || p(path)) + E[-ln p(x_0 | x_s)],
    KL(q(path | x_0) || p(path)) = integral over t in [0, 1] of d sigma/dt E[loss] + KL(q(x_T | x_0)
        || uniform).

The last draw, needed as sigma_min > 0, is taken to be p(x_0 | x_s) = q(x_s | x_0), which sums to 1
over x_0 as well, as q is symmetric. Its part is the entropy of q(x_s | x_0), a constant. All log
scores 0 then give ln V exactly, whatever the schedule. A last draw by the network's scores would
cost infinitely much where they make a probability negative.

In a block-causal network the bound of each block is conditional on the true blocks before it; their
sum bounds the whole sequence. Where attention stays within documents (`data.packing: masked`) it is
conditional on where these end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ditlab_models.contract import Batch, NoiseSource, TextCodec
from ditlab_models.dlm.figures import figure_makers
from ditlab_models.dlm.network import NoiseLevels, TokenNoise, by_token
from ditlab_models.dlm.spec import DLMObjectiveSpec, DLMSpec
from ditlab_models.figure_makers import FigureDrawer
from ditlab_models.processes.analytic_targets import MarkovChain, score_entropy_excess
from ditlab_models.processes.score_entropy import TokenLosses
from ditlab_models.processes.specs import NUM_QUARTERS, quarter_names
from ditlab_models.processes.uniform_graph import corrupt, kl_from_uniform

QUARTERS = quarter_names("score_entropy")
BOUND = ("bound", "perplexity", "bits_per_token", "bits_per_byte")


class DLMObjective(FigureDrawer):
    """Score entropy of noised tokens, and its integral over all noise."""

    def __init__(
        self, spec: DLMObjectiveSpec, model: DLMSpec, text: TextCodec | None = None
    ) -> None:
        self.weights = {**spec.weights.model_dump(), "unweighted": 0.0}
        end = None
        if text and text.packing == "masked":
            end = text.end
        self._noise = TokenNoise(spec.noise, model.vocabulary, model.block_size, spec.score, end)
        self._time_min = spec.time_min
        self._time = spec.time
        self._bytes_per_token = text.bytes_per_token if text else None
        self.figure_makers = figure_makers(self._noise, spec.noise.kind, text)

    def loss(
        self, network: nn.Module, batch: Batch, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        """Compute `score_entropy`, times d sigma/dt, and `unweighted`, detached. Draws `time`,
        `move` and `jump`.

        t lies in [time_min, 1], one for each sample or block; losses count by the inverse of their
        times' density.
        """
        x0 = batch["tokens"]
        times = self._time.draw(noise_source, self._noise.time_shape(x0))
        levels = self._noise.at_time(self._time_min + (1 - self._time_min) * times.s, times.weight)
        losses = self._losses(network, x0, levels, noise_source, "")
        if times.weight is None:
            unweighted = losses.per_token
        else:
            unweighted = losses.per_token * by_token(times.weight, x0)
        return {"score_entropy": losses.total, "unweighted": unweighted.mean()}

    @torch.no_grad()
    def metrics(
        self, network: nn.Module, batch: Batch, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        """Compute both components as means over t in [0, 1], and `score_entropy_t0` (least noise)
        to `_t3` by quarter.

        `score_entropy` is the integral over sigma of the bound. Every sample is seen at two
        antithetic noise levels in each quarter, in which u = arctan(sqrt(sigma)) is uniform: about
        half the standard deviation of uniform times. Costs eight forward passes.
        """
        x0 = batch["tokens"]
        quarters = []
        for quarter in range(NUM_QUARTERS):
            pair = []
            for suffix, levels in self._held_out_levels(x0, noise_source, quarter):
                per_token = self._losses(network, x0, levels, noise_source, suffix).per_token
                weights = (
                    by_token(each, x0) for each in (levels.weight, levels.weight / levels.rate)
                )
                pair.append(torch.stack([(per_token * weight).mean(1) for weight in weights]))
            quarters.append(torch.stack(pair).mean(0))
        weighted, unweighted = torch.stack(quarters).mean(0)
        by_quarter = {name: values[0] for name, values in zip(QUARTERS, quarters, strict=True)}
        return {"score_entropy": weighted, "unweighted": unweighted, **by_quarter}

    def knows_optimum(self, law: Any) -> bool:
        """Return True for a Markov chain, whole sequences of which share a time, and log scores."""
        whole = self._noise.block_size is None and self._noise.score == "log"
        return isinstance(law, MarkovChain) and whole and self._noise.document_end is None

    @torch.no_grad()
    def excess_loss(
        self, network: nn.Module, law: MarkovChain, batch: Batch, noise_source: NoiseSource
    ) -> Tensor:
        """Compute the integral over sigma of the score entropy above that of the true scores, nats
        a token, (B,).
        """
        x0 = batch["tokens"]
        parts = []
        for quarter in range(NUM_QUARTERS):
            for suffix, levels in self._held_out_levels(x0, noise_source, quarter):
                move, jump = (
                    noise_source.uniform(name + suffix, x0.shape) for name in ("move", "jump")
                )
                x = corrupt(x0, by_token(levels.sigma, x0), move, jump, self._noise.vocabulary)
                excess = score_entropy_excess(
                    network(x, levels.sigma).double(), law.log_scores(x, levels.sigma)
                )
                parts.append((excess * levels.weight).mean(1))
        return torch.stack(parts).mean(0)

    def _held_out_levels(
        self, x0: Tensor, noise_source: NoiseSource, quarter: int
    ) -> Iterator[tuple[str, NoiseLevels]]:
        """Yield two antithetic noise levels in a quarter of the times, with the suffix of their
        draws' names.
        """
        uniform = noise_source.uniform(f"time_t{quarter}", self._noise.time_shape(x0))
        for side, u in enumerate((uniform, 1 - uniform)):
            yield (
                f"_t{quarter}_{side}",
                self._noise.within(quarter / NUM_QUARTERS, (quarter + 1) / NUM_QUARTERS, u),
            )

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return `metrics`, `bound` in nats a token, `perplexity` = e^bound and `bits_per_token` =
        bound / ln 2.

        `bits_per_byte` is included where the bytes of a token are known. With `score: softmax`
        there is no bound.
        """
        if self._noise.score == "softmax":
            return dict(means)
        bound = means["score_entropy"] + self.bound_constant
        if bound < math.log(torch.finfo(torch.float64).max):
            perplexity = math.exp(bound)
        else:
            perplexity = math.inf
        summary = {
            **means,
            "bound": bound,
            "perplexity": perplexity,
            "bits_per_token": bound / math.log(2),
        }
        if self._bytes_per_token:
            summary["bits_per_byte"] = summary["bits_per_token"] / self._bytes_per_token
        return summary

    @property
    def bound_constant(self) -> float:
        """The bound less the integral: the KL of the prior and the last draw's entropy."""
        schedule = self._noise.schedule
        vocabulary = self._noise.vocabulary
        last_draw = math.log(vocabulary) - kl_from_uniform(schedule.sigma_min, vocabulary)
        return kl_from_uniform(schedule.sigma_max, vocabulary) + last_draw

    def metric_names(self) -> Sequence[str]:
        """Return the names of `summary`."""
        names = ("score_entropy", "unweighted", *QUARTERS)
        return names if self._noise.score == "softmax" else (*names, *BOUND)

    def _losses(
        self,
        network: nn.Module,
        x0: Tensor,
        levels: NoiseLevels,
        noise_source: NoiseSource,
        suffix: str,
    ) -> TokenLosses:
        """Compute losses at these levels, noised by the draws `move` and `jump` with this
        suffix.
        """
        move, jump = (noise_source.uniform(name + suffix, x0.shape) for name in ("move", "jump"))
        return self._noise.losses(network, x0, levels, move, jump)

"""Evaluation of held-out text: the network's likelihood bound beside baselines that need no network.

All likelihoods are of the same rows, each by itself: a row's first token has no context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.contract import EvaluationResult, RowSet, TextCodec
from denoisers.dlm.evaluation.baselines import fit_baselines, nats_per_token
from denoisers.dlm.evaluation.figures import evaluation_figures
from denoisers.dlm.evaluation.known_scores import KnownScores
from denoisers.dlm.evaluation.tables import LikelihoodMeasurements, evaluation_metrics, evaluation_tables
from denoisers.dlm.objective import DLMObjective
from denoisers.dlm.spec import DLMObjectiveSpec, DLMSpec
from denoisers.processes.discrete.chunked_score_entropy import LossTargets, TokenLosses
from denoisers.processes.discrete.schedule import SigmaSchedule, sigma_schedule

NUM_TIMES = 16
"""Equal parts of t in the figure."""


@dataclass(frozen=True)
class DLMEvaluator:
    """The bound on held-out text beside bigram, unigram and uniform (`denoisers.contract.Evaluator`)."""

    objective: DLMObjectiveSpec
    model: DLMSpec
    text: TextCodec | None

    @torch.no_grad()
    def evaluate(
        self, network: nn.Module, train: RowSet, held_out: RowSet, references: Mapping[str, Any], batch_size: int
    ) -> EvaluationResult:
        """Return tables `likelihood` and `bound_in_nats`, figure `bound`; with `score: softmax` the first alone.

        The best prediction of text is unknown: `references` are unused.
        """
        vocabulary = self.model.vocabulary
        schedule = sigma_schedule(self.objective.noise)
        objective = DLMObjective(self.objective, self.model, self.text)
        baselines = fit_baselines(train, vocabulary, batch_size)
        nats = nats_per_token({"bigram": baselines.bigram, "unigram": baselines.unigram}, held_out, batch_size)
        means = _measure(network, objective, schedule, held_out, vocabulary, batch_size)
        measurements = LikelihoodMeasurements(
            summary=objective.summary(means.metrics),
            losses=means.losses,
            exact={**nats, "uniform": math.log(vocabulary)},
            known={
                "unigram_scores": KnownScores(baselines.unigram.probabilities, means.frequencies),
                "zero_scores": KnownScores(np.full(vocabulary, 1 / vocabulary), means.frequencies),
            },
            schedule=schedule,
            vocabulary=vocabulary,
            bytes_per_token=self.text.bytes_per_token if self.text else None,
        )
        return EvaluationResult(
            evaluation_metrics(measurements), evaluation_tables(measurements), evaluation_figures(measurements)
        )


class _ByTime(nn.Module):
    """The network, with a record of its losses' share of the bound's integral, by equal parts of t.

    The objective's metrics evaluate the network at noise levels of all t, and their mean over evaluations is the
    integral.
    """

    def __init__(self, network: nn.Module, schedule: SigmaSchedule) -> None:
        super().__init__()
        self._network, self._schedule = network, schedule
        self._sums, self._rows = np.zeros(NUM_TIMES), 0

    def forward(self, x: Tensor, sigma: Tensor, targets: LossTargets, documents: Tensor | None = None) -> TokenLosses:
        losses: TokenLosses = self._network(x, sigma, targets, documents=documents)
        part = (self._schedule.time(targets.sigma) * NUM_TIMES).long().clamp(0, NUM_TIMES - 1)
        weighted = len(x) * losses.per_token * targets.weight
        self._sums += np.bincount(part.cpu().numpy().ravel(), weighted.cpu().numpy().ravel(), NUM_TIMES)
        self._rows += len(x)
        return losses

    def losses(self) -> tuple[float, ...]:
        """Return the integral over each part of t, a mean over rows."""
        return tuple((self._sums / self._rows).tolist())


@dataclass(frozen=True)
class _Means:
    """Means over all held-out rows."""

    metrics: dict[str, float]
    """The objective's metrics."""
    losses: tuple[float, ...]
    """Parts of the bound's integral, by equal parts of t."""
    frequencies: np.ndarray
    """(V,): the tokens' shares of the rows."""


def _measure(
    network: nn.Module, objective: DLMObjective, schedule: SigmaSchedule, rows: RowSet, vocabulary: int, size: int
) -> _Means:
    """Compute the means of metrics, losses and token counts over rows, `size` at a time."""
    sums: dict[str, float] = {}
    counts = np.zeros(vocabulary, np.int64)
    by_time = _ByTime(network, schedule)
    for part in rows.batches(size):
        tokens: Tensor = part.batch["tokens"]
        for name, value in objective.metrics(by_time, part.batch, part.noise).items():
            sums[name] = sums.get(name, 0.0) + len(tokens) * float(value)
        counts += np.bincount(tokens.cpu().numpy().ravel(), minlength=vocabulary)
    means = {name: total / rows.num for name, total in sums.items()}
    return _Means(means, by_time.losses(), counts / counts.sum())

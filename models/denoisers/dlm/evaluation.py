"""Evaluation of language models on held-out text: the bound beside baselines without a network, in nats a token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.contract import EvaluationResult, RowSet, TextCodec
from denoisers.dlm.objective import QUARTERS, DLMObjective
from denoisers.dlm.spec import DLMObjectiveSpec, DLMSpec
from denoisers.figures import Curve, Figure, Lines
from denoisers.processes.draws import NUM_QUARTERS
from denoisers.processes.score_entropy import LossTargets, TokenLosses
from denoisers.processes.uniform_graph import SigmaSchedule, kl_from_uniform, sigma_schedule

NUM_TIMES = 16
"""Equal parts of t in the figure."""
LIKELIHOODS = ("bits_per_byte", "bits_per_token", "nats_per_token", "perplexity")
"""Likelihoods by unit; `bits_per_byte` only if the bytes of a token are known."""
NO_BOUND = "no bound (softmax)"
Table = dict[str, np.ndarray]
BUFFERED_PAIRS = 2**22
"""Pairs that are buffered, 8 bytes each, before they are merged into the counts."""


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

        Metrics are `bound` (nats a token), `bits_per_token` ... of the model, `baseline/bigram/...` of others.
        """
        vocabulary, schedule = self.model.vocabulary, sigma_schedule(self.objective.noise)
        objective = DLMObjective(self.objective, self.model, self.text)
        baselines = fit_baselines(train, vocabulary, batch_size)
        sums: dict[str, float] = {}
        counts, by_time, evaluations = np.zeros(vocabulary, np.int64), np.zeros(NUM_TIMES), 0

        def record(x: Tensor, sigma: Tensor, targets: LossTargets, documents: Tensor | None) -> TokenLosses:
            # Metrics evaluate the network at noise levels of all t; their mean over evaluations is the integral.
            nonlocal evaluations
            losses: TokenLosses = network(x, sigma, targets, documents=documents)
            part = (schedule.time(targets.sigma) * NUM_TIMES).long().clamp(0, NUM_TIMES - 1)
            weighted = len(x) * losses.per_token * targets.weight
            by_time[:] += np.bincount(part.cpu().numpy().ravel(), weighted.cpu().numpy().ravel(), NUM_TIMES)
            evaluations += len(x)
            return losses

        for part in held_out.batches(batch_size):
            tokens: Tensor = part.batch["tokens"]
            for name, value in objective.metrics(cast(nn.Module, record), part.batch, part.noise).items():
                sums[name] = sums.get(name, 0.0) + len(tokens) * float(value)
            counts += np.bincount(tokens.cpu().numpy().ravel(), minlength=vocabulary)
        summary = objective.summary({name: total / held_out.num for name, total in sums.items()})
        pairs_first: dict[str, Bigram | Unigram] = {"bigram": baselines.bigram, "unigram": baselines.unigram}
        exact = nats_per_token(pairs_first, held_out, batch_size) | {"uniform": math.log(vocabulary)}
        bytes_per_token = self.text.bytes_per_token if self.text else None
        likelihoods: dict[str, dict[str, float]] = {"model": {}}
        if "bound" in summary:
            own = {figure: summary[figure] for figure in LIKELIHOODS if figure in summary}
            likelihoods["model"] = {**own, "nats_per_token": summary["bound"]}
        for name, nats in exact.items():
            bits = nats / math.log(2)
            per_byte = {"bits_per_byte": bits / bytes_per_token} if bytes_per_token else {}
            per_token = {"bits_per_token": bits, "nats_per_token": nats, "perplexity": math.exp(nats)}
            likelihoods[name] = per_byte | per_token
        metrics = {
            f"baseline/{name}/{figure}" if name != "model" else figure.replace("nats_per_token", "bound"): value
            for name, figures in likelihoods.items()
            for figure, value in figures.items()
        }
        kind = "upper bound" if "bound" in summary else NO_BOUND
        table: Table = {"predictor": np.array(list(likelihoods)), "kind": np.array([kind, *["exact"] * 3])}
        for figure in likelihoods["uniform"]:
            values = [each.get(figure, math.nan) for each in likelihoods.values()]
            table[figure.replace("_per_", " a ")] = np.array(values)
        if "bound" not in summary:
            return EvaluationResult(metrics, {"likelihood": table}, {})
        frequencies = counts / counts.sum()
        known = {
            "unigram_scores": KnownScores(baselines.unigram.probabilities, frequencies),
            "zero_scores": KnownScores(np.full(vocabulary, 1 / vocabulary), frequencies),
        }
        tables = {"likelihood": table, "bound_in_nats": parts_table(summary, known, schedule, vocabulary)}
        model_losses = (by_time / evaluations).tolist()
        figure_of_bound = draw_bound(summary, model_losses, exact, known, schedule, bytes_per_token)
        return EvaluationResult(metrics, tables, {"bound": figure_of_bound})


def parts_table(
    summary: Mapping[str, float], known: Mapping[str, KnownScores], schedule: SigmaSchedule, vocabulary: int
) -> Table:
    """Make a row for each part of the bound (last draw, loss by quarter of t, prior) in nats a token, and their sum."""
    prior = kl_from_uniform(schedule.sigma_max, vocabulary)
    last_draw = summary["bound"] - summary["score_entropy"] - prior
    losses = {"model": [summary[name] / NUM_QUARTERS for name in QUARTERS]}
    losses |= {name: list(scores.losses(schedule, NUM_QUARTERS)) for name, scores in known.items()}
    edges = noise_levels(schedule, NUM_QUARTERS)
    quarters = [f"t {quarter / NUM_QUARTERS:g} to {(quarter + 1) / NUM_QUARTERS:g}" for quarter in range(NUM_QUARTERS)]
    table = {
        "part": np.array(["last draw", *quarters, "prior", "bound"]),
        "sigma from": np.array([0.0, *edges, 0.0]),
        "sigma to": np.array([*edges, math.inf, math.inf]),
    }
    for name, each in losses.items():
        parts = [last_draw, *each, prior]
        table[name.replace("_", " ")] = np.array([*parts, sum(parts)])
    return table


@dataclass(frozen=True)
class KnownScores:
    """The true scores of text whose tokens are drawn independently from `probabilities`, on another text.

    With uniform probabilities these are the all-zero log scores of an untrained network.
    """

    probabilities: np.ndarray
    """(V,) float64, none of them 0."""
    frequencies: np.ndarray
    """(V,) float64: the tokens' shares of the text that is evaluated."""

    def kl(self, sigma: float) -> float:
        """Mean over the text's tokens x0 of KL(q_sigma(x | x0) || q_sigma(x)), q_sigma(x) from `probabilities`."""
        vocabulary = len(self.probabilities)
        stays, spread = math.exp(-sigma), -math.expm1(-sigma) / vocabulary
        entropy = math.log(vocabulary) - kl_from_uniform(sigma, vocabulary)
        cross = -(stays * self.frequencies + spread) @ np.log(stays * self.probabilities + spread)
        return float(cross) - entropy

    def losses(self, schedule: SigmaSchedule, num: int) -> tuple[float, ...]:
        """Integrals of the loss over sigma, by `num` equal parts of t."""
        kl = [self.kl(sigma) for sigma in noise_levels(schedule, num)]
        return tuple(low - high for low, high in pairwise(kl))


def noise_levels(schedule: SigmaSchedule, num: int) -> list[float]:
    """Sigmas at t = 0, 1/num, ..., 1."""
    return [schedule.sigma_at(part / num) for part in range(num + 1)]


@dataclass(frozen=True)
class Unigram:
    """A distribution of independent tokens."""

    probabilities: np.ndarray
    """(V,); none is 0."""

    def log_probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """Compute ln p, (B, T)."""
        return np.log(self.probabilities)[tokens]


@dataclass(frozen=True)
class Bigram:
    """A distribution of tokens given the token before; `first` is that of a row's first token."""

    first: Unigram
    codes: np.ndarray
    """(P + 1,) int64, ascending: context * V + token of the pairs in training, then V * V."""
    pair_probabilities: np.ndarray
    """(P + 1,): a pair's discounted share of its context; 0 at the end."""
    backoff: np.ndarray
    """(V,): each context's weight of `lower`; 1 for contexts without a successor in training."""
    lower: Unigram

    def log_probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """Compute ln p, (B, T)."""
        context, token = tokens[:, :-1], tokens[:, 1:]
        code = context * len(self.backoff) + token
        index = np.searchsorted(self.codes, code)
        pair = np.where(self.codes[index] == code, self.pair_probabilities[index], 0.0)
        rest = np.log(pair + self.backoff[context] * self.lower.probabilities[token])
        return np.concatenate((self.first.log_probabilities(tokens[:, :1]), rest), axis=1)


class Baselines(NamedTuple):
    """The baselines of held-out text."""

    unigram: Unigram
    bigram: Bigram


def fit_baselines(train: RowSet, vocabulary: int, size: int) -> Baselines:
    """Fit both from one pass over the rows' `tokens` (int64), `size` rows at a time.

    The bigram is interpolated, modified Kneser-Ney (Chen and Goodman 1999, section 3). Memory grows with the different
    pairs.
    """
    tokens = np.zeros(vocabulary, np.int64)
    codes = counts = np.zeros(0, np.int64)
    buffer: list[np.ndarray] = []
    for rows in train.batches(size):
        batch = rows.batch["tokens"].cpu().numpy()
        tokens += np.bincount(batch.ravel(), minlength=vocabulary)
        buffer.append((batch[:, :-1] * vocabulary + batch[:, 1:]).ravel())
        if sum(map(len, buffer)) >= max(BUFFERED_PAIRS, len(codes)):
            codes, counts = _merge_pairs(codes, counts, buffer)
            buffer = []
    assert tokens.any(), "a run has training rows"
    unigram = _unigram(tokens)
    return Baselines(unigram, _bigram(unigram, *_merge_pairs(codes, counts, buffer)))


def _merge_pairs(codes: np.ndarray, counts: np.ndarray, more: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Count further pairs: ascending codes of all pairs, and how often each occurs."""
    every, place = np.unique(np.concatenate((codes, *more)), return_inverse=True)
    weights = np.ones(len(place), np.int64)
    weights[: len(counts)] = counts
    return every, np.bincount(place, weights, len(every)).astype(np.int64)


def nats_per_token(baselines: Mapping[str, Unigram | Bigram], rows: RowSet, size: int) -> dict[str, float]:
    """Compute the mean negative log likelihood over all tokens of the rows, by baseline."""
    sums, num = dict.fromkeys(baselines, 0.0), 0
    for part in rows.batches(size):
        tokens = part.batch["tokens"].cpu().numpy()
        num += tokens.size
        for name, baseline in baselines.items():
            sums[name] -= float(baseline.log_probabilities(tokens).sum())
    return {name: total / num for name, total in sums.items()}


def _unigram(counts: np.ndarray) -> Unigram:
    """Interpolate counts (V,) with uniform by Witten and Bell's weight: one more for every different token."""
    different = np.count_nonzero(counts)
    return Unigram((counts + different / len(counts)) / (counts.sum() + different))


def _bigram(unigram: Unigram, codes: np.ndarray, counts: np.ndarray) -> Bigram:
    """Interpolate the counts of pairs, discounted by Chen and Goodman's equation 26, with those of their second
    tokens."""
    vocabulary = len(unigram.probabilities)
    ends = np.bincount(codes % vocabulary, minlength=vocabulary)  # different pairs that a token ends
    lower = _unigram(ends) if len(codes) else unigram
    once, twice, *_ = num = [int(np.count_nonzero(counts == times)) for times in (1, 2, 3, 4)]
    share = once / (once + 2 * twice) if once else 0.0
    discounts = []
    for times in (1, 2, 3):
        here, more = num[times - 1 : times + 1]
        estimate = times - (times + 1) * share * more / here if here else 0.0
        discounts.append(estimate if 0 < estimate < times else times / 2)
    context = codes // vocabulary
    total = np.bincount(context, counts, vocabulary)
    discount = np.array(discounts)[np.minimum(counts, 3) - 1]
    backoff = np.bincount(context, discount, vocabulary)
    backoff = np.divide(backoff, total, out=np.ones(vocabulary), where=total > 0)
    pairs = np.subtract(counts, discount, out=discount)
    pairs /= total[context]
    return Bigram(unigram, np.append(codes, vocabulary**2), np.append(pairs, 0.0), backoff, lower)


def draw_bound(
    summary: Mapping[str, float],
    model_losses: Sequence[float],
    exact: Mapping[str, float],
    known: Mapping[str, KnownScores],
    schedule: SigmaSchedule,
    bytes_per_token: float | None,
) -> Figure:
    """Draw the loss times d sigma/dt by t, and its integral from the prior's part at t = 1 to the bound at t = 0."""
    unit, scale = ("bits a byte", 1 / (math.log(2) * bytes_per_token)) if bytes_per_token else ("nats a token", 1.0)
    num = len(model_losses)
    losses: dict[str, Sequence[float]] = {"model": model_losses}
    losses |= {name: scores.losses(schedule, num) for name, scores in known.items()}
    rest = summary["bound"] - summary["score_entropy"]
    edges = np.linspace(0, 1, num + 1)
    by_time, sums = [], []
    for name, by_part in losses.items():
        label, each = name.replace("_", " "), scale * np.array(by_part)
        by_time.append(Curve(np.repeat(edges, 2)[1:-1], np.repeat(num * each, 2), label))
        sums.append(Curve(edges, scale * rest + np.append(each[::-1].cumsum()[::-1], 0.0), label))
    for name in ("unigram", "bigram"):  # uniform's level is the end of the zero scores' integral
        sums.append(Curve(np.array([0.0, 1.0]), np.full(2, scale * exact[name]), name))
    time = f"t (sigma {schedule.sigma_min:g} at 0, {schedule.sigma_max:g} at 1)"
    panels = [
        Lines(by_time, "Loss times d sigma/dt", time, f"{unit} per unit of t"),
        Lines(sums, "Bound at t = 0, added up from t = 1", time, unit),
    ]
    levels = ", ".join(f"{name} {scale * nats:.3f}" for name, nats in exact.items())
    return Figure(panels, title=f"Held-out text, {unit}: model at most {scale * summary['bound']:.3f}, {levels}")

"""Evaluation of language models on held-out text: the bound beside baselines without a network, in
nats a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from ditlab_models.contract import EvaluationResult, RowSet, Samples, TextCodec
from ditlab_models.dlm.objective import QUARTERS, DLMObjective
from ditlab_models.dlm.spec import DLMObjectiveSpec, DLMSpec
from ditlab_models.figures import Curve, Figure, Lines
from ditlab_models.intervals import Estimate, mean_estimate
from ditlab_models.processes.draws import batch_means
from ditlab_models.processes.score_entropy import LossTargets, TokenLosses
from ditlab_models.processes.specs import NUM_QUARTERS, TokenNoiseSchedule
from ditlab_models.processes.uniform_graph import kl_from_uniform
from ditlab_models.tensors import to_numpy

NUM_TIMES = 16
"""Equal parts of t in the figure."""
LIKELIHOODS = ("bits_per_byte", "bits_per_token", "nats_per_token", "perplexity")
"""Likelihoods by unit; `bits_per_byte` only if the bytes of a token are known."""
NO_BOUND = "no bound (softmax)"
Table = dict[str, np.ndarray]
BUFFERED_PAIRS = 2**22
"""Pairs that are buffered, 8 bytes each, before they are merged into the counts."""
MOST_COMPARED = 4096
"""Most sequences whose distinct n-grams are counted, and compared with those of as many held-out
ones.
"""
INTERVALS = ("bigram_perplexity", "token_entropy")
"""Metrics of samples with a 95 % interval."""
DISTINCT = ("distinct_1", "distinct_2", "distinct_3")
"""Different n-grams of all sequences together over all n-grams (Li et al. 2016, arXiv:1510.03055,
section 5.2).
"""


@dataclass(frozen=True)
class DLMEvaluator:
    """The bound on held-out text beside bigram, unigram and uniform
    (`ditlab_models.contract.Evaluator`).
    """

    objective: DLMObjectiveSpec
    model: DLMSpec
    text: TextCodec | None
    sample_metrics = (
        "bigram_perplexity",
        "token_entropy",
        "distinct_1",
        "distinct_2",
        "distinct_3",
        "bigram_perplexity_low",
        "bigram_perplexity_high",
        "bigram_perplexity_df",
        "token_entropy_low",
        "token_entropy_high",
        "token_entropy_df",
        "bigram_perplexity_held_out",
        "token_entropy_held_out",
        "distinct_1_held_out",
        "distinct_2_held_out",
        "distinct_3_held_out",
        "token_entropy_held_out_low",
        "token_entropy_held_out_high",
        "token_entropy_held_out_df",
    )
    """Metrics of drawn text, the ends of their intervals, and the values of held-out text."""

    @torch.no_grad()
    def evaluate(
        self,
        network: nn.Module,
        train: RowSet,
        held_out: RowSet,
        references: Mapping[str, Any],
        batch_size: int,
    ) -> EvaluationResult:
        """Return tables `likelihood` and `bound_in_nats`, figure `bound`; with `score: softmax` the
        first alone.

        Metrics are `bound` (nats a token), `bits_per_token` ... of the model, with the ends of its
        95 % interval over held-out rows (`bound_low`, `bound_high` ...), and `baseline/bigram/...`
        of others.
        """
        vocabulary = self.model.vocabulary
        schedule = self.objective.noise
        objective = DLMObjective(self.objective, self.model, self.text)
        baselines = fit_baselines(train, vocabulary, batch_size)
        measured = measure_rows(network, objective, schedule, held_out, vocabulary, batch_size)
        summary = objective.summary(measured.means)
        exact = nats_per_token(baselines, held_out, batch_size) | {"uniform": math.log(vocabulary)}
        bytes_per_token = self.text.bytes_per_token if self.text else None
        likelihoods = {"model": _own_likelihoods(summary)}
        likelihoods |= {name: _likelihoods(nats, bytes_per_token) for name, nats in exact.items()}
        metrics = _likelihood_metrics(likelihoods)
        if "bound" not in summary:
            table = _likelihood_table(likelihoods, NO_BOUND)
            return EvaluationResult(metrics, {"likelihood": table}, {})
        bound = mean_estimate(objective.bound_constant + measured.integrals)
        metrics |= bound_ends(bound, bytes_per_token)
        frequencies = measured.counts / measured.counts.sum()
        known = {
            "unigram_scores": baselines.unigram,
            "zero_scores": np.full(vocabulary, 1 / vocabulary),
        }

        def losses_between(sigmas: Sequence[float]) -> dict[str, list[float]]:
            return {name: known_losses(each, frequencies, sigmas) for name, each in known.items()}

        by_quarter = losses_between(noise_levels(schedule, NUM_QUARTERS))
        tables = {
            "likelihood": _likelihood_table(likelihoods, "upper bound"),
            "bound_in_nats": parts_table(summary, by_quarter, schedule, vocabulary),
        }
        by_time = {"model": measured.by_time, **losses_between(noise_levels(schedule, NUM_TIMES))}
        figure_of_bound = draw_bound(summary, by_time, exact, schedule, bytes_per_token)
        return EvaluationResult(metrics, tables, {"bound": figure_of_bound})

    def measure_samples(
        self, train: RowSet, held_out: RowSet, batch_size: int
    ) -> Callable[[Samples], dict[str, float]]:
        """Return the measure of drawn text: `bigram_perplexity` under the bigram of the training
        text, `token_entropy`, in nats, of a sequence's own tokens, and the shares of DISTINCT
        n-grams.

        They belong together: text that repeats itself has a low perplexity and a low entropy (Zheng
        et al. 2024, arXiv:2409.02908, section 5). Held-out rows are cut to the samples' length, and
        as many of them as there are samples have their n-grams counted, as both figures depend on
        the length, and `distinct` on the number.
        """
        bigram = fit_baselines(train, self.model.vocabulary, batch_size)

        def of_text(batches: Iterable[np.ndarray]) -> dict[str, Estimate]:
            nats = list[np.ndarray]()
            entropies = list[float]()
            for tokens in batches:
                nats.append(-bigram.log_probabilities(tokens).mean(1))
                entropies += map(token_entropy, tokens)
            perplexity = mean_estimate(np.concatenate(nats)).exp()
            return dict(
                zip(INTERVALS, (perplexity, mean_estimate(np.array(entropies))), strict=True)
            )

        def cut(length: int) -> Iterable[np.ndarray]:
            return (
                to_numpy(part.batch["tokens"][:, :length]) for part in held_out.batches(batch_size)
            )

        @cache
        def of_real(length: int, num: int) -> tuple[dict[str, Estimate], list[float]]:
            rows = np.stack(list(islice(chain.from_iterable(cut(length)), num)))
            return of_text(cut(length)), [distinct(rows, n) for n in (1, 2, 3)]

        def measure(samples: Samples) -> dict[str, float]:
            tokens = samples.values.numpy()
            num = min(len(tokens), held_out.num, MOST_COMPARED)
            real, distinct_real = of_real(tokens.shape[1], num)
            found = dict[str, float]()
            for name, estimate in of_text([tokens]).items():
                found |= estimate.named(name)
            for n, name, of_held_out in zip((1, 2, 3), DISTINCT, distinct_real, strict=True):
                found[name] = distinct(tokens[:num], n)
                found[f"{name}_held_out"] = of_held_out
            found["bigram_perplexity_held_out"] = real["bigram_perplexity"].value
            found |= real["token_entropy"].named("token_entropy_held_out")
            return {name: found[name] for name in self.sample_metrics if name in found}

        return measure


class MeasuredRows(NamedTuple):
    """The model's losses on held-out rows, and their tokens."""

    means: dict[str, float]
    """Means of the objective's metrics over rows."""
    integrals: np.ndarray
    """(rows,): the integral over sigma of each row's loss, nats a token."""
    by_time: list[float]
    """(NUM_TIMES,): parts of the mean integral."""
    counts: np.ndarray
    """(V,) int64: number of each token."""


def measure_rows(
    network: nn.Module,
    objective: DLMObjective,
    schedule: TokenNoiseSchedule,
    held_out: RowSet,
    vocabulary: int,
    batch_size: int,
) -> MeasuredRows:
    """Evaluate the network at noise levels of all t: the mean over evaluations is the integral."""
    sums: dict[str, float] = {}
    integrals: list[np.ndarray] = []
    counts = np.zeros(vocabulary, np.int64)
    by_time = np.zeros(NUM_TIMES)
    evaluations = 0

    def record(
        x: Tensor, sigma: Tensor, targets: LossTargets, documents: Tensor | None
    ) -> TokenLosses:
        nonlocal evaluations
        losses: TokenLosses = network(x, sigma, targets, documents=documents)
        part = (schedule.time(targets.sigma) * NUM_TIMES).long().clamp(0, NUM_TIMES - 1)
        weighted = len(x) * losses.per_token * targets.weight
        by_time[:] += np.bincount(to_numpy(part).ravel(), to_numpy(weighted).ravel(), NUM_TIMES)
        evaluations += len(x)
        return losses

    for part in held_out.batches(batch_size):
        tokens: Tensor = part.batch["tokens"]
        of_rows = objective.metrics(cast(nn.Module, record), part.batch, part.noise)
        integrals.append(to_numpy(of_rows["score_entropy"].double()))
        for name, value in batch_means(of_rows).items():
            sums[name] = sums.get(name, 0.0) + len(tokens) * value
        counts += np.bincount(to_numpy(tokens).ravel(), minlength=vocabulary)
    means = {name: total / held_out.num for name, total in sums.items()}
    by_part = (by_time / evaluations).tolist()
    return MeasuredRows(means, np.concatenate(integrals), by_part, counts)


def _likelihood_metrics(likelihoods: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Name the model's likelihoods `bound`, `bits_per_token` ..., others `baseline/NAME/...`."""
    metrics = {}
    for name, figures in likelihoods.items():
        for figure, value in figures.items():
            key = f"baseline/{name}/{figure}"
            if name == "model":
                key = figure.replace("nats_per_token", "bound")
            metrics[key] = value
    return metrics


def _own_likelihoods(summary: Mapping[str, float]) -> dict[str, float]:
    """Return the model's likelihoods by unit; none without a bound."""
    if "bound" not in summary:
        return {}
    own = {figure: summary[figure] for figure in LIKELIHOODS if figure in summary}
    return {**own, "nats_per_token": summary["bound"]}


def _likelihoods(nats: float, bytes_per_token: float | None) -> dict[str, float]:
    """Return a likelihood in nats a token by unit."""
    bits = nats / math.log(2)
    units = {"bits_per_token": bits, "nats_per_token": nats, "perplexity": math.exp(nats)}
    if bytes_per_token:
        return {"bits_per_byte": bits / bytes_per_token, **units}
    return units


def _likelihood_table(likelihoods: Mapping[str, Mapping[str, float]], kind: str) -> Table:
    """Return the likelihoods of predictors for people; `kind`: what the model's are."""
    table: Table = {
        "predictor": np.array(list(likelihoods)),
        "kind": np.array([kind, *["exact"] * 3]),
    }
    for figure in likelihoods["uniform"]:
        values = [each.get(figure, math.nan) for each in likelihoods.values()]
        table[figure.replace("_per_", " a ")] = np.array(values)
    return table


def bound_ends(bound: Estimate, bytes_per_token: float | None) -> dict[str, float]:
    """Return the ends of the bound's interval under the names and in the units of its figures."""
    bits = bound.over(math.log(2))
    units = {"bound": bound, "bits_per_token": bits, "perplexity": bound.exp()}
    if bytes_per_token:
        units["bits_per_byte"] = bits.over(bytes_per_token)
    ends = dict[str, float]()
    for name, each in units.items():
        ends |= each.named(name)
    return {name: end for name, end in ends.items() if name not in units}


def token_entropy(tokens: np.ndarray) -> float:
    """Compute the entropy, in nats, of the shares of a sequence's own tokens (T,)."""
    shares = np.unique(tokens, return_counts=True)[1] / len(tokens)
    return float(-(shares * np.log(shares)).sum())


def distinct(tokens: np.ndarray, n: int) -> float:
    """Compute the share of different n-grams among all of sequences (B, T); NaN where T < n."""
    if tokens.shape[1] < n:
        return math.nan
    base = int(tokens.max()) + 1
    num = tokens.shape[1] - n + 1
    codes = np.zeros((len(tokens), num), np.int64)  # of trigrams below 2**21 different tokens
    for place in range(n):
        codes = codes * base + tokens[:, place : place + num]
    return len(np.unique(codes)) / codes.size


def parts_table(
    summary: Mapping[str, float],
    known: Mapping[str, Sequence[float]],
    schedule: TokenNoiseSchedule,
    vocabulary: int,
) -> Table:
    """Make a row for each part of the bound (last draw, loss by quarter of t, prior) in nats a
    token, and their sum.
    """
    prior = kl_from_uniform(schedule.sigma_max, vocabulary)
    last_draw = summary["bound"] - summary["score_entropy"] - prior
    edges = noise_levels(schedule, NUM_QUARTERS)
    quarters = [
        f"t {quarter / NUM_QUARTERS:g} to {(quarter + 1) / NUM_QUARTERS:g}"
        for quarter in range(NUM_QUARTERS)
    ]
    table = {
        "part": np.array(["last draw", *quarters, "prior", "bound"]),
        "sigma from": np.array([0.0, *edges, 0.0]),
        "sigma to": np.array([*edges, math.inf, math.inf]),
    }
    for name, losses in {
        "model": [summary[name] / NUM_QUARTERS for name in QUARTERS],
        **known,
    }.items():
        parts = [last_draw, *losses, prior]
        table[name.replace("_", " ")] = np.array([*parts, sum(parts)])
    return table


def known_losses(
    probabilities: np.ndarray, frequencies: np.ndarray, sigmas: Sequence[float]
) -> list[float]:
    """Compute the loss's integrals over sigma, from each of `sigmas` to the next, of scores that
    are known.

    They are the true scores of text whose tokens are drawn independently from `probabilities` (V,),
    none of them 0, on a text whose tokens have the shares `frequencies` (V,), float64 both. Uniform
    ones are the all-zero log scores of an untrained network. An integral is the decrease of the
    mean over tokens x0 of KL(q_sigma(x | x0) || q_sigma(x)).
    """
    vocabulary = len(probabilities)
    kl = []
    for sigma in sigmas:
        stays = math.exp(-sigma)
        spread = -math.expm1(-sigma) / vocabulary
        entropy = math.log(vocabulary) - kl_from_uniform(sigma, vocabulary)
        kl.append(
            float(-(stays * frequencies + spread) @ np.log(stays * probabilities + spread))
            - entropy
        )
    return [low - high for low, high in pairwise(kl)]


def noise_levels(schedule: TokenNoiseSchedule, num: int) -> list[float]:
    """Compute sigmas at t = 0, 1/num, ..., 1."""
    return [schedule.sigma_at(part / num) for part in range(num + 1)]


@dataclass(frozen=True)
class Bigram:
    """A distribution of tokens given the token before, with that of independent tokens."""

    unigram: np.ndarray
    """(V,), none of them 0: independent tokens, and a row's first token."""
    codes: np.ndarray
    """(P + 1,) int64, ascending: context * V + token of the pairs in training, then V * V."""
    pair_probabilities: np.ndarray
    """(P + 1,): a pair's discounted share of its context; 0 at the end."""
    backoff: np.ndarray
    """(V,): each context's weight of `lower`; 1 for contexts without a successor in training."""
    lower: np.ndarray
    """(V,), none of them 0."""

    def log_probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """Compute ln p, (B, T)."""
        context = tokens[:, :-1]
        token = tokens[:, 1:]
        code = context * len(self.backoff) + token
        index = np.searchsorted(self.codes, code)
        pair = np.where(self.codes[index] == code, self.pair_probabilities[index], 0.0)
        rest = np.log(pair + self.backoff[context] * self.lower[token])
        return np.concatenate((np.log(self.unigram)[tokens[:, :1]], rest), axis=1)


def fit_baselines(train: RowSet, vocabulary: int, size: int) -> Bigram:
    """Fit unigram and bigram from one pass over the rows' `tokens` (int64), `size` rows at a time.

    The bigram is interpolated, modified Kneser-Ney (Chen and Goodman 1999, Computer Speech and
    Language 13, section 3). Memory grows with the different pairs.
    """
    tokens = np.zeros(vocabulary, np.int64)
    codes = counts = np.zeros(0, np.int64)
    buffer: list[np.ndarray] = []
    for rows in train.batches(size):
        batch = to_numpy(rows.batch["tokens"])
        tokens += np.bincount(batch.ravel(), minlength=vocabulary)
        buffer.append((batch[:, :-1] * vocabulary + batch[:, 1:]).ravel())
        if sum(map(len, buffer)) >= max(BUFFERED_PAIRS, len(codes)):
            codes, counts = _merge_pairs(codes, counts, buffer)
            buffer = []
    assert tokens.any(), "a run has training rows"
    codes, counts = _merge_pairs(codes, counts, buffer)
    # The discounted counts of pairs are interpolated with those of second tokens.
    unigram = _unigram(tokens)
    # different pairs that a token ends
    ends = np.bincount(codes % vocabulary, minlength=vocabulary)
    lower = _unigram(ends) if len(codes) else unigram
    context = codes // vocabulary
    total = np.bincount(context, counts, vocabulary)
    discount = _discounts(counts)[np.minimum(counts, 3) - 1]
    backoff = np.bincount(context, discount, vocabulary)
    backoff = np.divide(backoff, total, out=np.ones(vocabulary), where=total > 0)
    pairs = np.subtract(counts, discount, out=discount)
    pairs /= total[context]
    return Bigram(unigram, np.append(codes, vocabulary**2), np.append(pairs, 0.0), backoff, lower)


def _discounts(counts: np.ndarray) -> np.ndarray:
    """Compute the discounts of pairs that occur once, twice and more often (Chen and Goodman's
    equation 26); half of the count where the counts give none.
    """
    num = [int(np.count_nonzero(counts == times)) for times in (1, 2, 3, 4)]
    once = num[0]
    twice = num[1]
    discounts = []
    for times in (1, 2, 3):
        here, more = num[times - 1 : times + 1]
        estimate = 0.0
        if here and once:
            share = once / (once + 2 * twice)
            estimate = times - (times + 1) * share * more / here
        if not 0 < estimate < times:
            estimate = times / 2
        discounts.append(estimate)
    return np.array(discounts)


def _merge_pairs(
    codes: np.ndarray, counts: np.ndarray, more: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Count further pairs: ascending codes of all pairs, and how often each occurs."""
    every, place = np.unique(np.concatenate((codes, *more)), return_inverse=True)
    weights = np.ones(len(place), np.int64)
    weights[: len(counts)] = counts
    return every, np.bincount(place, weights, len(every)).astype(np.int64)


def _unigram(counts: np.ndarray) -> np.ndarray:
    """Interpolate counts (V,) with uniform by Witten and Bell's weight: one more for every
    different token.
    """
    different = np.count_nonzero(counts)
    shares: np.ndarray = (counts + different / len(counts)) / (counts.sum() + different)
    return shares


def nats_per_token(baselines: Bigram, rows: RowSet, size: int) -> dict[str, float]:
    """Compute the mean negative log likelihood over all tokens of the rows, by `bigram` and by
    `unigram`.
    """
    bigram = unigram = 0.0
    num = 0
    for part in rows.batches(size):
        tokens = to_numpy(part.batch["tokens"])
        num += tokens.size
        bigram -= float(baselines.log_probabilities(tokens).sum())
        unigram -= float(np.log(baselines.unigram)[tokens].sum())
    return {"bigram": bigram / num, "unigram": unigram / num}


def draw_bound(
    summary: Mapping[str, float],
    losses: Mapping[str, Sequence[float]],
    exact: Mapping[str, float],
    schedule: TokenNoiseSchedule,
    bytes_per_token: float | None,
) -> Figure:
    """Draw the loss times d sigma/dt by t, and its integral from the prior's part at t = 1 to the
    bound at t = 0.
    """
    unit = "nats a token"
    scale = 1.0
    if bytes_per_token:
        unit = "bits a byte"
        scale = 1 / (math.log(2) * bytes_per_token)
    rest = summary["bound"] - summary["score_entropy"]
    edges = np.linspace(0, 1, NUM_TIMES + 1)
    by_time = []
    sums = []
    for name, by_part in losses.items():
        label = name.replace("_", " ")
        each = scale * np.array(by_part)
        by_time.append(Curve(np.repeat(edges, 2)[1:-1], np.repeat(NUM_TIMES * each, 2), label))
        sums.append(Curve(edges, scale * rest + np.append(each[::-1].cumsum()[::-1], 0.0), label))
    for name in ("unigram", "bigram"):  # uniform's level is the end of the zero scores' integral
        sums.append(Curve(np.array([0.0, 1.0]), np.full(2, scale * exact[name]), name))
    time = f"t (sigma {schedule.sigma_min:g} at 0, {schedule.sigma_max:g} at 1)"
    panels = [
        Lines(by_time, "Loss times d sigma/dt", time, f"{unit} per unit of t"),
        Lines(sums, "Bound at t = 0, added up from t = 1", time, unit),
    ]
    levels = ", ".join(f"{name} {scale * nats:.3f}" for name, nats in exact.items())
    return Figure(
        panels,
        title=f"Held-out text, {unit}: model at most {scale * summary['bound']:.3f}, {levels}",
    )

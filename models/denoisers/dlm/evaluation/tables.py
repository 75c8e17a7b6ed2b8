"""What was measured of held-out text, as tables and as named numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from denoisers.dlm.evaluation.known_scores import KnownScores, noise_levels
from denoisers.dlm.objective import NUM_QUARTERS
from denoisers.processes.discrete.schedule import SigmaSchedule
from denoisers.processes.discrete.uniform_graph import kl_from_uniform

FIGURES = ("bits_per_byte", "bits_per_token", "nats_per_token", "perplexity")
"""`bits_per_byte` only where the bytes of a token are known."""
NO_BOUND = "no bound (softmax)"

Table = dict[str, np.ndarray]


@dataclass(frozen=True)
class Parts:
    """A bound is the sum of these, in nats a token."""

    last_draw: float
    """The clean token, given the one at sigma_min."""
    losses: tuple[float, ...]
    """Integral of the loss over sigma, by quarter of t."""
    prior: float
    """What the sampler's uniform start has wrong at sigma_max."""

    def values(self) -> list[float]:
        """All of them, from the least noise to the most, and their sum."""
        found = [self.last_draw, *self.losses, self.prior]
        return [*found, sum(found)]


@dataclass(frozen=True)
class Measurements:
    """A network and what it is compared with, on the same held-out rows."""

    summary: Mapping[str, float]
    """The objective's, of the network; without `bound` where its score has none."""
    losses: tuple[float, ...]
    """What its losses add to the integral in the bound, by equal parts of t."""
    exact: Mapping[str, float]
    """Nats a token of `bigram`, `unigram` and `uniform`."""
    known: Mapping[str, KnownScores]
    """Scores whose loss is known without a network."""
    schedule: SigmaSchedule
    vocabulary: int
    bytes_per_token: float | None

    @property
    def has_bound(self) -> bool:
        return "bound" in self.summary

    def parts(self) -> dict[str, Parts]:
        """Of `model` and of each of `known`; only where there is a bound."""
        integral, prior = self.summary["score_entropy"], kl_from_uniform(self.schedule.sigma_max, self.vocabulary)
        last_draw = self.summary["bound"] - integral - prior
        quarters = [self.summary[f"score_entropy_t{quarter}"] / NUM_QUARTERS for quarter in range(NUM_QUARTERS)]
        losses = {"model": tuple(quarters)}
        losses |= {name: scores.losses(self.schedule, NUM_QUARTERS) for name, scores in self.known.items()}
        return {name: Parts(last_draw, each, prior) for name, each in losses.items()}

    def likelihoods(self) -> dict[str, dict[str, float]]:
        """FIGURES of `model`, where it has a bound, and of the others."""
        found = {}
        if self.has_bound:
            own = {figure: self.summary[figure] for figure in FIGURES if figure in self.summary}
            found["model"] = {**own, "nats_per_token": self.summary["bound"]}
        return found | {name: self._figures(nats) for name, nats in self.exact.items()}

    def _figures(self, nats: float) -> dict[str, float]:
        bits = nats / math.log(2)
        per_byte = {"bits_per_byte": bits / self.bytes_per_token} if self.bytes_per_token else {}
        return {**per_byte, "bits_per_token": bits, "nats_per_token": nats, "perplexity": math.exp(nats)}


def assessment_metrics(found: Measurements) -> dict[str, float]:
    """`bound` (nats a token), `bits_per_token` and so on of the model, `baseline/bigram/bits_per_token` and so on."""
    metrics: dict[str, float] = {}
    for name, figures in found.likelihoods().items():
        if name == "model":
            metrics |= {"bound" if figure == "nats_per_token" else figure: value for figure, value in figures.items()}
        else:
            metrics |= {f"baseline/{name}/{figure}": value for figure, value in figures.items()}
    return metrics


def assessment_tables(found: Measurements) -> dict[str, Table]:
    """`likelihood`, a row a predictor, and `bound_in_nats`, a row a part of the bound (nats a token)."""
    tables = {"likelihood": _likelihood_table(found)}
    if found.has_bound:
        tables["bound_in_nats"] = _parts_table(found)
    return tables


def _likelihood_table(found: Measurements) -> Table:
    """NaN, and NO_BOUND, for a model that has none."""
    rows: dict[str, dict[str, float]] = {"model": {}, **found.likelihoods()}
    figures = [figure for figure in FIGURES if figure in rows["uniform"]]
    kinds = ["upper bound" if found.has_bound else NO_BOUND, *["exact"] * len(found.exact)]
    table = {"predictor": np.array(list(rows)), "kind": np.array(kinds)}
    return table | {
        figure.replace("_per_", " a "): np.array([row.get(figure, math.nan) for row in rows.values()])
        for figure in figures
    }


def _parts_table(found: Measurements) -> Table:
    edges = noise_levels(found.schedule, NUM_QUARTERS)
    quarters = [f"t {quarter / NUM_QUARTERS:g} to {(quarter + 1) / NUM_QUARTERS:g}" for quarter in range(NUM_QUARTERS)]
    table = {
        "part": np.array(["last draw", *quarters, "prior", "bound"]),
        "sigma from": np.array([0.0, *edges, 0.0]),
        "sigma to": np.array([*edges, math.inf, math.inf]),
    }
    return table | {name.replace("_", " "): np.array(parts.values()) for name, parts in found.parts().items()}

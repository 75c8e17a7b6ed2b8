"""Measurements of held-out text, as tables and as named metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from denoisers.dlm.evaluation.known_scores import KnownScores, noise_levels
from denoisers.processes.discrete.schedule import SigmaSchedule
from denoisers.processes.discrete.uniform_graph import kl_from_uniform
from denoisers.processes.time_quarters import NUM_QUARTERS

LIKELIHOODS = ("bits_per_byte", "bits_per_token", "nats_per_token", "perplexity")
"""Likelihoods by unit; `bits_per_byte` only if the bytes of a token are known."""
NO_BOUND = "no bound (softmax)"

Table = dict[str, np.ndarray]


@dataclass(frozen=True)
class BoundParts:
    """The parts of a bound, in nats a token; the bound is their sum."""

    last_draw: float
    """Cost of the clean token, given the one at sigma_min."""
    losses: tuple[float, ...]
    """Integral of the loss over sigma, by quarter of t."""
    prior: float
    """Error of the sampler's uniform start at sigma_max."""

    def values(self) -> list[float]:
        """Return all parts, from the least noise to the most, and their sum."""
        parts = [self.last_draw, *self.losses, self.prior]
        return [*parts, sum(parts)]


@dataclass(frozen=True)
class LikelihoodMeasurements:
    """Likelihoods of a network and of its baselines, on the same held-out rows."""

    summary: Mapping[str, float]
    """The objective's summary of the network; without `bound` for a score that has none."""
    losses: tuple[float, ...]
    """Parts of the network's integral in the bound, by equal parts of t."""
    exact: Mapping[str, float]
    """Nats a token of `bigram`, `unigram` and `uniform`."""
    known: Mapping[str, KnownScores]
    """Scores whose loss has a closed form."""
    schedule: SigmaSchedule
    vocabulary: int
    bytes_per_token: float | None

    @property
    def has_bound(self) -> bool:
        """True if the network's score has a bound."""
        return "bound" in self.summary

    def parts(self) -> dict[str, BoundParts]:
        """Return the parts of the bound of `model` and of each of `known`; only valid with a bound."""
        integral, prior = self.summary["score_entropy"], kl_from_uniform(self.schedule.sigma_max, self.vocabulary)
        last_draw = self.summary["bound"] - integral - prior
        quarters = [self.summary[f"score_entropy_t{quarter}"] / NUM_QUARTERS for quarter in range(NUM_QUARTERS)]
        losses = {"model": tuple(quarters)}
        losses |= {name: scores.losses(self.schedule, NUM_QUARTERS) for name, scores in self.known.items()}
        return {name: BoundParts(last_draw, each, prior) for name, each in losses.items()}

    def likelihoods(self) -> dict[str, dict[str, float]]:
        """Return the LIKELIHOODS of `model`, if it has a bound, and of the baselines."""
        likelihoods = {}
        if self.has_bound:
            own = {figure: self.summary[figure] for figure in LIKELIHOODS if figure in self.summary}
            likelihoods["model"] = {**own, "nats_per_token": self.summary["bound"]}
        return likelihoods | {name: self._in_units(nats) for name, nats in self.exact.items()}

    def _in_units(self, nats: float) -> dict[str, float]:
        bits = nats / math.log(2)
        per_byte = {"bits_per_byte": bits / self.bytes_per_token} if self.bytes_per_token else {}
        return {**per_byte, "bits_per_token": bits, "nats_per_token": nats, "perplexity": math.exp(nats)}


def evaluation_metrics(measurements: LikelihoodMeasurements) -> dict[str, float]:
    """Name the metrics: `bound` (nats a token), `bits_per_token` ... of the model, `baseline/bigram/...` of others."""
    metrics: dict[str, float] = {}
    for name, figures in measurements.likelihoods().items():
        if name == "model":
            metrics |= {"bound" if figure == "nats_per_token" else figure: value for figure, value in figures.items()}
        else:
            metrics |= {f"baseline/{name}/{figure}": value for figure, value in figures.items()}
    return metrics


def evaluation_tables(measurements: LikelihoodMeasurements) -> dict[str, Table]:
    """Make `likelihood`, a row for each predictor, and `bound_in_nats`, a row for each part of the bound."""
    tables = {"likelihood": _likelihood_table(measurements)}
    if measurements.has_bound:
        tables["bound_in_nats"] = _parts_table(measurements)
    return tables


def _likelihood_table(measurements: LikelihoodMeasurements) -> Table:
    """Likelihoods by predictor; NaN, and NO_BOUND, for a model without a bound."""
    rows: dict[str, dict[str, float]] = {"model": {}, **measurements.likelihoods()}
    figures = [figure for figure in LIKELIHOODS if figure in rows["uniform"]]
    kinds = ["upper bound" if measurements.has_bound else NO_BOUND, *["exact"] * len(measurements.exact)]
    table = {"predictor": np.array(list(rows)), "kind": np.array(kinds)}
    return table | {
        figure.replace("_per_", " a "): np.array([row.get(figure, math.nan) for row in rows.values()])
        for figure in figures
    }


def _parts_table(measurements: LikelihoodMeasurements) -> Table:
    edges = noise_levels(measurements.schedule, NUM_QUARTERS)
    quarters = [f"t {quarter / NUM_QUARTERS:g} to {(quarter + 1) / NUM_QUARTERS:g}" for quarter in range(NUM_QUARTERS)]
    table = {
        "part": np.array(["last draw", *quarters, "prior", "bound"]),
        "sigma from": np.array([0.0, *edges, 0.0]),
        "sigma to": np.array([*edges, math.inf, math.inf]),
    }
    return table | {name.replace("_", " "): np.array(parts.values()) for name, parts in measurements.parts().items()}

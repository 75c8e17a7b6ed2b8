"""Evaluation of predicted regions at several mask ratios: the network beside baselines that need none.

All predictors get the same masks. B windows, R regions, F features, M masked regions of a batch of windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.contract import EvaluationResult, RealRows, RowSet
from denoisers.region.agreement import Agreement
from denoisers.region.evaluation.baselines import Imputer, fit_baselines
from denoisers.region.evaluation.figures import evaluation_figures
from denoisers.region.evaluation.tables import (
    RATIOS,
    ImputationMeasurements,
    RatioMeasurement,
    evaluation_metrics,
    evaluation_tables,
)
from denoisers.region.figures import ONE_PREDICTION
from denoisers.region.objective import draw_masks
from denoisers.region.prediction import predict, present_or_none
from denoisers.region.spec import RegionObjectiveSpec, RegionSpec

Predictor = Callable[[RealRows, Tensor], Tensor]
"""Rows and a mask (B, R) bool -> features of the masked regions, (M, F)."""

MAX_BATCH_VALUES = 2**21
"""Most feature values of a batch of windows: the regression's inputs are then at most 80 MiB in float64."""


@dataclass(frozen=True)
class RegionEvaluator:
    """Pearson's r, R^2 and squared error of masked regions over whole data sets (`denoisers.contract.Evaluator`)."""

    objective: RegionObjectiveSpec
    model: RegionSpec

    @torch.no_grad()
    def evaluate(
        self, network: nn.Module, train: RowSet, held_out: RowSet, references: Mapping[str, Any], batch_size: int
    ) -> EvaluationResult:
        """Return tables `r2`, `r2_within` (predictors by mask ratios), `by_ratio`, `by_motif` and `by_chromosome`.

        `references`: by name, x (B, R, F), mask, present (B, R) -> expected features (B, R, F), NumPy arrays all.
        """
        size = max(1, min(batch_size, MAX_BATCH_VALUES // (self.model.num_regions * self.model.num_features)))
        baselines = fit_baselines(train, size)
        predictors: dict[str, Predictor] = {"model": self._network_predictor(network)}
        predictors |= {name: _baseline_predictor(baseline) for name, baseline in baselines.items()}
        predictors |= {name: _reference_predictor(reference) for name, reference in references.items()}
        names: tuple[str, ...] = ()
        sums = {name: {ratio: dict[str, Agreement]() for ratio in RATIOS} for name in predictors}
        for rows in held_out.batches(size):
            names = names or _feature_names(rows)
            for ratio, mask in zip(RATIOS, draw_masks(rows.batch, rows.noise, RATIOS), strict=True):
                for name, predictor in predictors.items():
                    _add(sums[name][ratio], rows, mask, predictor(rows, mask))
        by_predictor = {
            name: {ratio: RatioMeasurement(groups) for ratio, groups in by_ratio.items()}
            for name, by_ratio in sums.items()
        }
        remark = ONE_PREDICTION if self.model.predicts_one_thing else ""
        measurements = ImputationMeasurements(by_predictor, names, tuple(baselines), tuple(references), remark)
        return EvaluationResult(
            evaluation_metrics(measurements), evaluation_tables(measurements), evaluation_figures(measurements)
        )

    def _network_predictor(self, network: nn.Module) -> Predictor:
        def predictor(rows: RealRows, mask: Tensor) -> Tensor:
            x, present = rows.batch["regions"], present_or_none(rows.batch["present"])
            return predict(network, self.model, self.objective.noise.steps, x, mask, present, rows.noise)[mask]

        return predictor


def _baseline_predictor(baseline: Imputer) -> Predictor:
    return lambda rows, mask: baseline(rows.batch["regions"], mask, rows.batch["present"])


def _reference_predictor(reference: Any) -> Predictor:
    def predictor(rows: RealRows, mask: Tensor) -> Tensor:
        x, present = rows.batch["regions"], rows.batch["present"]
        expected = reference(*(each.cpu().numpy() for each in (x, mask, present)))
        return torch.from_numpy(expected).to(mask.device)[mask]

    return predictor


def _add(groups: dict[str, Agreement], rows: RealRows, mask: Tensor, prediction: Tensor) -> None:
    """Add predictions (M, F) to the sums of their windows' chromosomes."""
    target, window = rows.batch["regions"][mask], mask.nonzero()[:, 0]
    # Windows of a store without chromosomes are all of one.
    chromosome = rows.columns.get("chromosome", np.full(len(mask), "all")).astype(str)
    for name in np.unique(chromosome):
        here = torch.from_numpy(chromosome == name).to(window.device)[window]
        counts = torch.ones(int(here.sum()), dtype=torch.bool, device=here.device)
        sums = Agreement.of(target[here], prediction[here], counts)
        groups[str(name)] = groups[str(name)] + sums if str(name) in groups else sums


def _feature_names(rows: RealRows) -> tuple[str, ...]:
    return tuple(rows.names.get("regions") or (f"feature_{i}" for i in range(rows.batch["regions"].shape[-1])))

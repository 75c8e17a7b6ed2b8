"""A family's own measures of a trained network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from denoisers.contract.rows import RowSet

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from denoisers.figures import Figure


@dataclass(frozen=True)
class EvaluationResult:
    """The metrics, tables and figures of a trained network."""

    metrics: dict[str, float]
    """Metrics by name, for the run's record."""
    tables: dict[str, dict[str, np.ndarray]]
    """Tables by name: columns of equal length."""
    figures: dict[str, Figure]
    """Figures by name."""


class Evaluator(Protocol):
    """Measures a trained network over whole data sets, beside baselines that need no training."""

    def evaluate(
        self, network: nn.Module, train: RowSet, held_out: RowSet, references: Mapping[str, Any], batch_size: int
    ) -> EvaluationResult:
        """Evaluate on `held_out`. Baselines are fitted on `train`; `references` are known properties of the data by
        name, such as the optimum of generated data."""
        ...

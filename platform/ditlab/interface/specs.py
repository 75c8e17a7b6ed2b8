"""Loading specs, and counting what they describe. Imports torch on use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ditlab.spec.experiment import Experiment
from ditlab.spec.loading import load_experiment
from ditlab.spec.sweep.loading import load_sweep as read_sweep
from ditlab.spec.sweep.space import check_sweep
from ditlab.spec.sweep.spec import Sweep

if TYPE_CHECKING:
    from denoisers.parameter_counts import ParameterCount
    from denoisers.shape_trace import ShapeRow


def load(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Load an experiment's YAML with its parents (`extends`) and `overrides` (`optimizer.lr=1e-4`), and validate it.

    Raises UserError, naming file and field, for anything wrong in them.
    """
    return load_experiment(Path(path), overrides)


def load_sweep(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """Load a sweep's YAML with its base and `overrides` (`trials=4`), and check every axis against the experiment.

    Raises UserError, naming file and field, for anything wrong in them.
    """
    sweep = read_sweep(Path(path), overrides)
    check_sweep(sweep, str(path))
    return sweep


def count_parameters(spec: Experiment) -> ParameterCount:
    """Count an experiment's parameters by component, on the meta device: no memory is taken, whatever the size.

    Raises UserError for a network or objective that cannot be built.
    """
    from ditlab.analysis.parameters import experiment_parameters

    return experiment_parameters(spec)


def trace_shapes(spec: Experiment, batch: int = 1) -> list[ShapeRow]:
    """Trace the forward pass of `batch` samples on the meta device: every module's input and output shapes."""
    from ditlab.analysis.parameters import experiment_shapes

    return experiment_shapes(spec, batch)

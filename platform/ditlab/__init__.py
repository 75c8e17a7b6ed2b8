"""DiTLab: one typed experiment spec for diffusion models, on a laptop and on a GPU cluster.

This module is the Python interface. Every name is imported on first use, so `import ditlab` imports
neither torch nor Ray. Remarks and warnings go to the logger `ditlab`, and nowhere unless the
program sets up logging.
"""

import importlib
import logging
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ditlab.api.analysis import evaluate_averages, figures, load_export
    from ditlab.api.run import Run, find_runs, open_run
    from ditlab.api.specs import count_parameters, load, load_sweep, quick, trace_shapes
    from ditlab.api.sweeps import plan_sweep, tune
    from ditlab.api.training import GroupResult, TrainingResult, plan_training, train, train_seeds
    from ditlab.errors import RunFailed, UserError
    from ditlab.spec.experiment import Experiment
    from ditlab.spec.sweep import Sweep

__version__ = "0.1.0.dev0"

# tqdm's, in a notebook without ipywidgets, as MLflow or Ray import it: its bars are lines of text
# there, and ours none
warnings.filterwarnings("ignore", "IProgress not found")

__all__ = [
    "Experiment",
    "GroupResult",
    "Run",
    "RunFailed",
    "Sweep",
    "TrainingResult",
    "UserError",
    "__version__",
    "count_parameters",
    "evaluate_averages",
    "figures",
    "find_runs",
    "load",
    "load_export",
    "load_sweep",
    "open_run",
    "plan_sweep",
    "plan_training",
    "quick",
    "trace_shapes",
    "train",
    "train_seeds",
    "tune",
]

_NAMES = {
    "ditlab.api.analysis": ("evaluate_averages", "figures", "load_export"),
    "ditlab.api.run": ("Run", "find_runs", "open_run"),
    "ditlab.api.specs": ("count_parameters", "load", "load_sweep", "quick", "trace_shapes"),
    "ditlab.api.sweeps": ("plan_sweep", "tune"),
    "ditlab.api.training": (
        "GroupResult",
        "TrainingResult",
        "plan_training",
        "train",
        "train_seeds",
    ),
    "ditlab.errors": ("RunFailed", "UserError"),
    "ditlab.spec.experiment": ("Experiment",),
    "ditlab.spec.sweep": ("Sweep",),
}
"""Names by their module."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
"""Module of each name."""

logging.getLogger("ditlab").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found = getattr(importlib.import_module(_MODULES[name]), name)
    elif name.startswith("_"):  # asked for by notebooks and copies, and never a part
        raise AttributeError(f"module 'ditlab' has no attribute {name!r}")
    else:
        found = _added(name)
    globals()[name] = found
    return found


def _added(name: str) -> Any:
    """Return a function that an add-on or another package brings. Raises AttributeError for an
    unknown name.
    """
    from ditlab.parts import absent_part, load_part, named

    target = named("functions").get(name)
    if target is None:
        raise AttributeError(
            absent_part("function", name) or f"module 'ditlab' has no attribute {name!r}"
        )
    return load_part("function", name, target)


def __dir__() -> list[str]:
    from ditlab.parts import named

    return sorted([*__all__, *named("functions")])

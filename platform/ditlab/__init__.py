"""DiTLab: one typed experiment spec for diffusion models, on a laptop and on a GPU cluster.

This module is the Python interface. Every name is imported on first use, so `import ditlab` imports neither torch nor
Ray. Remarks and warnings go to the logger `ditlab`, and nowhere unless the program sets up logging.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ditlab.errors import RunFailed, UserError
    from ditlab.interface.analysis import compare, evaluate_averages, figures, load_export
    from ditlab.interface.proving import prove
    from ditlab.interface.removal import remove_runs
    from ditlab.interface.replaying import replay
    from ditlab.interface.run import Run, find_runs, open_run
    from ditlab.interface.specs import count_parameters, load, load_sweep, quick, trace_shapes
    from ditlab.interface.sweeps import plan_sweep, tune
    from ditlab.interface.training import TrainingResult, plan_training, train
    from ditlab.interface.verifying import verify
    from ditlab.spec.experiment import Experiment
    from ditlab.spec.sweep.spec import Sweep

__version__ = "0.1.0"

__all__ = [
    "Experiment",
    "Run",
    "RunFailed",
    "Sweep",
    "TrainingResult",
    "UserError",
    "__version__",
    "compare",
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
    "prove",
    "quick",
    "remove_runs",
    "replay",
    "trace_shapes",
    "train",
    "tune",
    "verify",
]

_MODULES = {
    "Experiment": "ditlab.spec.experiment",
    "Run": "ditlab.interface.run",
    "RunFailed": "ditlab.errors",
    "Sweep": "ditlab.spec.sweep.spec",
    "TrainingResult": "ditlab.interface.training",
    "UserError": "ditlab.errors",
    "compare": "ditlab.interface.analysis",
    "count_parameters": "ditlab.interface.specs",
    "evaluate_averages": "ditlab.interface.analysis",
    "figures": "ditlab.interface.analysis",
    "find_runs": "ditlab.interface.run",
    "load": "ditlab.interface.specs",
    "load_export": "ditlab.interface.analysis",
    "load_sweep": "ditlab.interface.specs",
    "open_run": "ditlab.interface.run",
    "plan_sweep": "ditlab.interface.sweeps",
    "plan_training": "ditlab.interface.training",
    "prove": "ditlab.interface.proving",
    "quick": "ditlab.interface.specs",
    "remove_runs": "ditlab.interface.removal",
    "replay": "ditlab.interface.replaying",
    "trace_shapes": "ditlab.interface.specs",
    "train": "ditlab.interface.training",
    "tune": "ditlab.interface.sweeps",
    "verify": "ditlab.interface.verifying",
}
"""Module of each name."""

logging.getLogger("ditlab").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'ditlab' has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__

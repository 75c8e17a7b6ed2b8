"""DiTLab: one typed experiment spec for diffusion models, on a laptop and on a GPU cluster.

The Python interface. Every name is imported on first use, so `import ditlab` takes milliseconds.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ditlab.errors import RunFailed, UserError
    from ditlab.interface.analysis import compare, figures, load_export
    from ditlab.interface.run import Run, find_runs, open_run
    from ditlab.interface.specs import count_parameters, load, load_sweep, trace_shapes

__version__ = "0.1.0"

__all__ = [
    "Run",
    "RunFailed",
    "UserError",
    "__version__",
    "compare",
    "count_parameters",
    "figures",
    "find_runs",
    "load",
    "load_export",
    "load_sweep",
    "open_run",
    "trace_shapes",
]

_MODULES = {
    "RunFailed": "ditlab.errors",
    "UserError": "ditlab.errors",
    "Run": "ditlab.interface.run",
    "compare": "ditlab.interface.analysis",
    "count_parameters": "ditlab.interface.specs",
    "figures": "ditlab.interface.analysis",
    "find_runs": "ditlab.interface.run",
    "load": "ditlab.interface.specs",
    "load_export": "ditlab.interface.analysis",
    "load_sweep": "ditlab.interface.specs",
    "open_run": "ditlab.interface.run",
    "trace_shapes": "ditlab.interface.specs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'ditlab' has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__

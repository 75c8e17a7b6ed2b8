"""Bytecode of the processes that tests start: what lies beside a module is used, all else is kept
for one session.

Every Python imports this file as it starts, where its folder is on PYTHONPATH. PYTHONPYCACHEPREFIX
alone would have each session compile torch, Ray and MLflow again, for 9 s in each of its processes
that begin at once.
"""

import os
import sys
from importlib import _bootstrap_external

_in_session = _bootstrap_external.cache_from_source


def _place(path: str, *arguments: object, **options: object) -> str:
    """Return the file of a module's bytecode: beside the module where it is there, else in
    PYTHONPYCACHEPREFIX.
    """
    folder, name = os.path.split(path)
    module = name.removesuffix(".py")
    beside = os.path.join(folder, "__pycache__", f"{module}.{sys.implementation.cache_tag}.pyc")  # noqa: PTH118
    if os.path.exists(beside):  # noqa: PTH110  pathlib is an import of every process
        return beside
    return _in_session(path, *arguments, **options)


if sys.pycache_prefix:
    _bootstrap_external.cache_from_source = _place

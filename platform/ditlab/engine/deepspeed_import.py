"""The import of DeepSpeed, without MLflow and a compiled Muon, which it loads and this engine never uses: 4 s of 9.

Every module that needs DeepSpeed calls `import_deepspeed` first. Touches DeepSpeed's private names;
`tests/ditlab/engine` fails when they move.
"""

import importlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def import_deepspeed() -> Any:
    """Import DeepSpeed without MLflow, which its autotuner takes if it is there, and without torch's compiler."""
    if "deepspeed.runtime.zero.muon.muon_optimizer" in sys.modules:
        return sys.modules["deepspeed"]
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "warning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _hidden("mlflow"):
            deepspeed = importlib.import_module("deepspeed")
        _import_muon()
    return deepspeed


def _import_muon() -> None:
    """Import DeepSpeed's Muon, whose class its ZeRO asks for, with kernels left uncompiled: nobody calls them."""
    compiler: Any = importlib.import_module("deepspeed.runtime.compiler")
    compile_of, compiler.compile = compiler.compile, lambda: compiler.dummy_decorator
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    finally:
        compiler.compile = compile_of


class _HiddenPackage(MetaPathFinder):
    """Finder under which a package is not installed, for the imports of one thread."""

    def __init__(self, name: str) -> None:
        self._name, self._thread = name, threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for the package; leave all others to the next finder."""
        if fullname == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Hide a package from this thread's imports; another thread may import it meanwhile."""
    finder = _HiddenPackage(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)

"""The command `ditlab` up to the first optimiser step, in a process of its own that ends there.

    python tests/support/trainings/first_step.py train SPEC --local ...

Standard output gets a line of JSON: the names of all modules that are imported by then. With `FIRST_STEP` in the
environment, any process that imports this file as `sitecustomize` writes the time of its first step there instead, and
goes on.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

STEPPING = "ditlab.training.stepping"


class FirstStep(MetaPathFinder):
    """Finder that puts a function before the first step, once the module with the step is imported."""

    def __init__(self, reached: Callable[[], None]) -> None:
        self._reached = reached

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != STEPPING:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None and spec.loader is not None
        execute, reached = spec.loader.exec_module, self._reached

        def execute_and_hook(module: ModuleType) -> None:
            execute(module)
            stepper: Any = vars(module)["Stepper"]
            step = stepper.step

            def first(*arguments: Any) -> None:
                stepper.step = step
                reached()
                step(*arguments)

            stepper.step = first

        spec.loader.exec_module = execute_and_hook  # type: ignore[method-assign]
        return spec


def _print_modules() -> None:
    print(json.dumps(sorted(sys.modules)), flush=True)
    os._exit(0)


def _write_time() -> None:
    Path(os.environ["FIRST_STEP"]).write_text(str(time.time()))


if "FIRST_STEP" in os.environ:
    sys.meta_path.insert(0, FirstStep(_write_time))
elif __name__ == "__main__":
    sys.meta_path.insert(0, FirstStep(_print_modules))
    from ditlab.cli.main import main
    from ditlab.tracking import system_metrics

    system_metrics._LONGEST = 600.0  # MLflow waits for the first step, however slow the machine is
    main()

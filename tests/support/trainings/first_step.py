"""The command `ditlab` up to the first optimiser step, or the first draw, in a process of its own
that ends there.

    python tests/support/trainings/first_step.py train SPEC --local ...
    python tests/support/trainings/first_step.py sample RUN ...

Standard output gets a line of JSON: the names of all modules that are imported by then. With
`FIRST_STEP` in the environment, any process that imports this file as `sitecustomize` writes the
time of its first step there instead, and goes on.
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

MOMENTS = {
    "train": ("ditlab.training.stepping", "Stepper", "step"),
    "sample": ("ditlab.quality.sample_quality", "", "draw_reported"),
}
"""Module, class (empty for none) and function with which a command's first step begins."""


class FirstStep(MetaPathFinder):
    """Finder that puts a function before the first step, once the module with the step is
    imported.
    """

    def __init__(self, reached: Callable[[], None], command: str = "train") -> None:
        self._reached = reached
        self._module, self._class, self._function = MOMENTS[command]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None and spec.loader is not None
        execute, reached = spec.loader.exec_module, self._reached

        def execute_and_hook(module: ModuleType) -> None:
            execute(module)
            owner: Any = vars(module)[self._class] if self._class else module
            step = getattr(owner, self._function)

            def first(*arguments: Any, **named: Any) -> Any:
                setattr(owner, self._function, step)
                reached()
                return step(*arguments, **named)

            setattr(owner, self._function, first)

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
    sys.meta_path.insert(0, FirstStep(_print_modules, sys.argv[1]))
    from ditlab.cli.main import main
    from ditlab.tracking import system_metrics

    system_metrics._LONGEST = 600.0  # MLflow waits for the first step, however slow the machine is
    main()

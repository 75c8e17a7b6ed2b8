"""Runs the command line as a person would, in this process or in one of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Said:
    """What a command left: its exit code and its two streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The object on the last line of standard output."""
        last = json.loads(self.out.splitlines()[-1])
        assert isinstance(last, dict)
        return last


def run_process(*arguments: str | Path, home: Path, cwd: Path | None = None, **environment: str) -> Said:
    """`python -m ditlab ARGUMENTS` in a process of its own."""
    command = [sys.executable, "-m", "ditlab", *map(str, arguments)]
    variables: Mapping[str, str] = {**os.environ, "DITLAB_HOME": str(home), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=cwd, timeout=200, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


def run_here(capfd: Any, monkeypatch: Any, *arguments: str | Path) -> Said:
    """`ditlab ARGUMENTS` in this process, whose imports are paid for already."""
    from ditlab.cli.main import main

    monkeypatch.setattr(sys, "argv", ["ditlab", *map(str, arguments)])
    capfd.readouterr()
    code: Any = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    out, err = capfd.readouterr()
    return Said(int(code or 0), out, err)

"""Runs of the command line, in this process or in one of its own."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from support.results import check_result


@dataclass(frozen=True)
class Said:
    """The exit code and the two streams of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The object on the last line of standard output."""
        last = json.loads(self.out.splitlines()[-1])
        assert isinstance(last, dict)
        return last

    def ok(self) -> "Said":
        """Assert that the command succeeded."""
        assert self.code == 0, self.err
        return self

    def refused(self, *words: str) -> "Said":
        """Assert that the command was refused in one sentence, which holds these words; it printed
        nothing, or under `--json` the error's object.
        """
        assert self.code == 2 and (not self.out or self.json["exit_code"] == 2), self
        assert self.err.startswith("ditlab: ") and self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err and all(each in self.err for each in words), self.err
        return self


def run_process(
    *arguments: str | Path,
    home: Path,
    cwd: Path | None = None,
    timeout: float = 200,
    **environment: str,
) -> Said:
    """Run `python -m ditlab ARGUMENTS` in a process of its own: slow, for tests about processes."""
    done = subprocess.run(
        _command(arguments),
        capture_output=True,
        text=True,
        env=_variables(home, environment),
        cwd=cwd,
        timeout=timeout,
        check=False,
    )
    if "--json" in arguments:
        check_result(arguments, done.stdout)
    return Said(done.returncode, done.stdout, done.stderr)


def start_process(
    *arguments: str | Path, home: Path, cwd: Path | None = None, **environment: str
) -> subprocess.Popen[str]:
    """Start `python -m ditlab ARGUMENTS` in a session of its own."""
    return subprocess.Popen(
        _command(arguments),
        env=_variables(home, environment),
        cwd=cwd,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _command(arguments: Sequence[str | Path]) -> list[str]:
    return [sys.executable, "-m", "ditlab", *map(str, arguments)]


def _variables(home: Path, environment: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "DITLAB_HOME": str(home), "OMP_NUM_THREADS": "1", **environment}


def run_here(capfd: Any, monkeypatch: Any, *arguments: object) -> Said:
    """Run `ditlab ARGUMENTS` in this process, whose imports are paid for already."""
    monkeypatch.setattr(sys, "argv", ["ditlab", *map(str, arguments)])
    capfd.readouterr()
    code = _exit_code()
    out, err = capfd.readouterr()
    return Said(code, out, err)


def run_inside(*arguments: object, home: Path, cwd: Path | None = None) -> Said:
    """Run `ditlab ARGUMENTS` in this process, for fixtures that outlive a test; the environment is
    put back after.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, {"DITLAB_HOME": str(home)}),
        mock.patch.object(sys, "argv", ["ditlab", *map(str, arguments)]),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = _exit_code()
    return Said(code, out.getvalue(), err.getvalue())


def _exit_code() -> int:
    from ditlab.cli.main import main

    code: Any = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    return int(code or 0)

"""Processes forked from one that has imported torch, MLflow and DiTLab: a fresh interpreter takes
seconds for them.
"""

import os
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection

from support.trainings.groups import warm_processes


class Forked:
    """Python code that runs as a process, with what tests use of `subprocess.Popen`: text pipes,
    `kill`, `wait`.
    """

    def __init__(self, code: str, *arguments: str) -> None:
        """Start it, with `sys.argv[1:]` and the environment of this process as it is now."""
        context = warm_processes()
        (their_in, to_it), (from_it, their_out), (errors, their_err) = (
            context.Pipe(duplex=False) for _ in range(3)
        )
        theirs = (their_in, their_out, their_err)
        self._process = context.Process(
            target=_run, args=(code, arguments, dict(os.environ), *theirs), daemon=True
        )
        self._process.start()
        for end in theirs:
            end.close()
        self.stdin = os.fdopen(_taken(to_it), "w")
        self.stdout, self.stderr = (os.fdopen(_taken(end)) for end in (from_it, errors))

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.join(20)

    def wait(self, seconds: float) -> int | None:
        """Exit code; None where it goes on for longer."""
        self._process.join(seconds)
        return self._process.exitcode

    def go(self) -> None:
        """Send it the line that it waits for."""
        self.stdin.write("go\n")
        self.stdin.flush()


def _taken(end: Connection) -> int:
    number = os.dup(end.fileno())
    end.close()
    return number


def _run(
    code: str,
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
    source: Connection,
    out: Connection,
    errors: Connection,
) -> None:
    for end, number in ((source, 0), (out, 1), (errors, 2)):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, closefd=False)  # noqa: SIM115  (of this process until its end)
        for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    exec(code, {"__name__": "__main__"})

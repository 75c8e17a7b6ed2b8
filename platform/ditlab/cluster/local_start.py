"""Start of a Ray instance on this machine, tried again where other work keeps it from starting in Ray's own time."""

import os
import re
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

from ditlab.errors import RunFailed, UserError, first_line

WAIT_VARIABLE = "DITLAB_RAY_WAIT"
"""Environment variable with the seconds for which a slow start is tried again; 0: once."""
WAIT = 300.0  # seconds, where the variable is not set
_PAUSE = 2.0  # seconds between two attempts
_KILL_TIMEOUT = 10.0  # seconds for processes of a failed attempt

# Ray gives each of its processes a fixed time, mostly 30 s, and raises errors of four types, told apart by their words.
_SLOW = re.compile(r"timed? ?out|overloaded|failed to (?:start|connect to) gcs|did not start|not ready", re.IGNORECASE)


def start_local_ray(ray: Any, settings: dict[str, Any], warn: Callable[[str], None]) -> None:
    """Start Ray on this machine, again for up to DITLAB_RAY_WAIT seconds where it does not start in time.

    Raises UserError for a wrong DITLAB_RAY_WAIT, and RunFailed where Ray does not start.
    """
    import psutil

    wait, before = start_wait(), set(psutil.Process().children())
    start_with_patience(lambda: ray.init(**settings), lambda: _end_attempt(ray, before), wait, warn)


def start_wait() -> float:
    """Seconds for which a slow start is tried again. Raises UserError where the variable holds no number."""
    text = os.environ.get(WAIT_VARIABLE, "")
    try:
        seconds = float(text) if text else WAIT
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UserError(f"{WAIT_VARIABLE}={text} is no time in seconds; set a number such as {WAIT:.0f}, or unset it.")
    return seconds


def start_with_patience(
    start: Callable[[], object],
    clean: Callable[[], None],
    wait: float,
    warn: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Call `start` until it succeeds, for up to `wait` seconds after its first slow end; `clean` follows each failure.

    Raises RunFailed where it fails for another reason than slowness, or the time is over.
    """
    began = clock()
    while True:
        try:
            start()
            return
        except Exception as error:
            # Ray raises bare Exceptions, and errors of its C++ part: all of them mean that nothing was started.
            clean()
            reason, passed = first_line(error), clock() - began
            if not _SLOW.search(str(error)):
                raise RunFailed(
                    f"Ray cannot be started on this machine ({reason}); `ditlab doctor` shows what is missing, and "
                    "`ditlab train --local` trains without Ray."
                ) from error
            if passed >= wait:
                raise RunFailed(
                    f"Ray did not start on this machine within {passed:.0f} s ({reason}); end other work, give it more "
                    f"time ({WAIT_VARIABLE}={wait:.0f} seconds now), or train without it: `ditlab train --local`."
                ) from error
            warn(
                f"Ray has not started after {passed:.0f} s, as this machine is busy; trying again for up to "
                f"{wait - passed:.0f} s more ({WAIT_VARIABLE}={wait:.0f})."
            )
            pause(_PAUSE)


def _end_attempt(ray: Any, before: Set[Any]) -> None:
    """End what a failed start leaves: Ray's own processes would run on until this process ends."""
    import psutil

    ray.shutdown()
    package = str(Path(ray.__file__).parent)
    left = [child for child in psutil.Process().children() if child not in before and _is_of(package, child)]
    for child in left:
        child.terminate()
    _, alive = psutil.wait_procs(left, _KILL_TIMEOUT)
    for child in alive:
        child.kill()


def _is_of(package: str, process: Any) -> bool:
    """Return True for a process whose program or script lies in a package's folder."""
    import psutil

    try:
        return any(part.startswith(package) for part in process.cmdline())
    except psutil.Error:
        return False

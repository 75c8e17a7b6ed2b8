"""Prints the seconds that commands take to their first result, over those of `import torch`.

    python benchmarks/runs/command_start_up.py [--rounds N]

Processes take turns, each on the files that the ones before have warmed: one imports torch and
ends, the other runs a command to its end, `ui` to the first answer with its page, `sample` to its
first draw. The home holds one run of one step. Nothing is asserted.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import beside
from benchmarks.runs.start_up import FIRST_STEP, SHORT, SPEC, run

SWEEP = SPEC.with_name("sweep_schedule.yaml")
TORCH = "import torch"
DEEPSPEED = "import torch, deepspeed"
LONGEST_WAIT = 600.0
"""Seconds in which the page must be there."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    os.environ["DITLAB_HOME"] = tempfile.mkdtemp(prefix="ditlab-start-up-")
    changes = [word for change in SHORT for word in ("--set", change)]
    run([*ditlab("train", str(SPEC)), "--local", "--no-figures", *changes])
    first_draw = [sys.executable, str(FIRST_STEP), "sample", "digits-dit"]
    rows: list[tuple[str, Callable[[], object], str, float]] = [
        ("validate", partial(run, ditlab("validate", str(SPEC))), TORCH, 1.0),
        ("show", partial(run, ditlab("show", str(SPEC))), TORCH, 1.0),
        ("runs", partial(run, ditlab("runs")), TORCH, 1.0),
        ("plan", partial(run, ditlab("plan", str(SPEC))), TORCH, 6.0),
        ("tune --dry-run", partial(run, ditlab("tune", str(SWEEP), "--dry-run")), TORCH, 3.5),
        ("first page of ui", first_page, TORCH, 5.0),
        ("first draw of sample", partial(run, first_draw), DEEPSPEED, 1.25),
    ]
    for name, command, imports, at_most in rows:
        # without Python's own tidying up
        baseline = partial(run, [sys.executable, "-c", f"{imports}; import os; os._exit(0)"])
        beside(name, imports, command, baseline, at_most=at_most, rounds=rounds)


def ditlab(*arguments: str) -> list[str]:
    """Return the command line of the command `ditlab`."""
    return [sys.executable, "-m", "ditlab", *arguments]


def first_page() -> None:
    """Serve the home until its page is there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        ditlab("ui", "--port", str(port)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for_page(f"http://127.0.0.1:{port}/")
    finally:
        process.terminate()
        process.wait()


def wait_for_page(url: str) -> None:
    """Wait for an answer of a server. Raises TimeoutError."""
    deadline = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.02)
    raise TimeoutError(f"{url} did not answer in {LONGEST_WAIT:g} s")


if __name__ == "__main__":
    main()

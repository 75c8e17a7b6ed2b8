"""Prints the seconds of `sample`, `evaluate` and `figures` beside a busy process, over the best
number of threads by hand.

    python benchmarks/runs/commands_beside_work.py [SPEC] [--rounds N] [--set KEY=VALUE]

Whole commands take turns, each beside a process that keeps a core busy: as the command decides by
itself, and with one thread and with one for each core, the faster of which is the best by hand.
They read a run of one step that was trained with one thread for each core; what `evaluate` by hand
reads was trained with the number that it takes, since its figures depend on it. The load of others
that a row names has the busy process in it; run it on a machine that is idle else. Nothing is
asserted.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Timed, report_beside, timed
from benchmarks.runs.beside_work import busy_process
from benchmarks.runs.command_start_up import ditlab
from benchmarks.runs.start_up import SHORT, SPEC, run

CORES = len(os.sched_getaffinity(0))
LONGEST = 600.0
"""Seconds within which a command must have ended."""
WITHOUT_A_LOOK_AT_OTHERS = """
from ditlab.runs import cores
cores.beside_others = lambda share, workers=1: None
from ditlab.cli.main import main
main()
"""
"""Program of a command that takes as many threads as torch does."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("spec", nargs="?", type=Path, default=Path(SPEC))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--set", action="append", default=[], help="change of the spec")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with it
    with tempfile.TemporaryDirectory(prefix="ditlab-beside-") as home:
        os.environ["DITLAB_HOME"] = home
        os.environ.pop("OMP_NUM_THREADS", None)
        for threads in (1, CORES):
            train(options.spec, threads, options.set)
        for command in ("sample", "evaluate", "figures"):
            report_command(command, options.rounds)


def train(spec: Path, threads: int, changes: Sequence[str]) -> None:
    """Train the run that a command with so many threads reads."""
    number = f"resources.cpus_per_worker={threads}"
    all_changes = [*SHORT, *changes, f"name={run_name(threads)}", number]
    words = [word for change in all_changes for word in ("--set", change)]
    run([*ditlab("train", str(spec)), "--local", "--no-figures", *words])


def run_name(threads: int) -> str:
    """Return the name of the run that was trained with so many threads."""
    return f"threads-{threads}"


def report_command(command: str, rounds: int) -> None:
    """Report a command's seconds over those of the best number of threads by hand."""
    ours: list[Timed] = []
    by_hand: list[Timed] = []
    numbers = sorted({1, CORES})
    for number in range(rounds):
        sides = [None, *numbers]
        if number % 2:
            sides.reverse()
        took = {threads: timed_command(command, threads) for threads in sides}
        ours.append(took[None])
        by_hand.append(min((took[each] for each in numbers), key=lambda each: each.seconds))
    row = f"{command} beside a busy process"
    report_beside(row, "best of one and all cores by hand", ours, by_hand, at_most=1.2)


def timed_command(command: str, threads: int | None) -> Timed:
    """Run a command beside a busy process, with so many threads (None: as many as it takes)."""
    words = [command, run_name(threads or CORES)]
    work = partial(run, ditlab(*words))
    if threads:
        by_hand = [sys.executable, "-c", WITHOUT_A_LOOK_AT_OTHERS, *words]
        work = partial(run, by_hand, OMP_NUM_THREADS=str(threads))
    with busy_process(LONGEST):
        took = timed(work)
    print(f"  {command}, {threads or 'own'} threads: {took.seconds:5.1f} s", flush=True)
    return took


if __name__ == "__main__":
    main()

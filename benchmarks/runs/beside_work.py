"""Prints how fast training is beside other work: beside a busy process, and two trainings at once.

    python benchmarks/runs/beside_work.py [SPEC] [--rounds N] [--seconds S] [--ray]

Every round trains in turns, each side a command of its own, from whose journal the rate is read,
start left out:

- beside a process that keeps a core busy: as the run decides by itself, and with
  `resources.cpus_per_worker` of one and of all cores, the faster of which is the best setting found
  by hand;
- alone, and two at once, whose rates within the time that both train are added.

With `--ray`, on Ray instead of `--local`. The load of others that a row names has the busy process
in it; run it on a machine that is idle else. Nothing is asserted.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, Timed, report_beside, timed
from support.clusters.faults import journal_of, processes_of, wait_until

SPEC = Path(__file__).parents[2] / "experiments" / "digits" / "dit.yaml"
BATCH = 32
CHANGES = (
    f"batch.size={BATCH}",
    "training.steps=1000000",
    "evaluation.every=null",
    "evaluation.samples=0",
    "checkpoint.every=null",
    "tracking.report=false",
    "tracking.system_metrics=false",
)
LONGEST = 180.0
"""Seconds within which a run must have begun to train."""
LOOP = (
    "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < "
    "end: pass"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("spec", nargs="?", type=Path, default=SPEC)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10.0, help="of training, a side and round")
    parser.add_argument("--ray", action="store_true", help="train on Ray")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with it
    train = partial(timed_training, options.spec, options.seconds, options.ray)
    busy: dict[str, list[Timed]] = {"ours": [], "by hand": []}
    both: dict[str, list[Timed]] = {"two": [], "alone": []}
    for number in range(options.rounds):
        for side in (list(busy) + list(both))[:: 1 - 2 * (number % 2)]:
            if side in both:
                both[side].append(train(2 if side == "two" else 1))
                continue
            with busy_process(4 * (LONGEST + options.seconds)):
                found = [
                    train(1, cores)
                    for cores in ([None] if side == "ours" else sorted({1, os.cpu_count() or 1}))
                ]
            busy[side].append(min(found, key=lambda each: each.seconds))
    where = ", Ray" if options.ray else ""
    for row, peer, (ours, theirs), least in (
        ("training beside a busy process", "best of one and all cores by hand", busy.values(), 0.8),
        ("two trainings at once", "one alone", both.values(), 0.9),
    ):
        measured = Measured(samples_per_second=1 / statistics.median(each.seconds for each in ours))
        report_beside(row + where, peer, ours, theirs, at_least=least, measured=measured)


@contextmanager
def busy_process(seconds: float) -> Iterator[None]:
    """Keep a core busy during the block, at most so many seconds."""
    process = subprocess.Popen([sys.executable, "-c", LOOP, str(seconds)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def timed_training(
    spec: Path, seconds: float, ray: bool, num: int, cores: int | None = None
) -> Timed:
    """Train `num` times at once: seconds of a sample of all, and what else it took, start
    included.
    """
    rates: list[float] = []
    took = timed(lambda: rates.append(rate_of_trainings(spec, seconds, ray, num, cores)))
    print(f"  {num} at once, {cores or 'own'} cores: {rates[0]:7.1f} samples/s", flush=True)
    return took._replace(seconds=1 / rates[0])


def rate_of_trainings(spec: Path, seconds: float, ray: bool, num: int, cores: int | None) -> float:
    """Samples a second of `num` trainings, within the time in which all train."""
    changes = [*CHANGES, *([f"resources.cpus_per_worker={cores}"] if cores else [])]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        words = [word for change in changes for word in ("--set", change)] + (
            [] if ray else ["--local"]
        )
        names = [f"beside-{number}" for number in range(num)]
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "ditlab",
                    "train",
                    str(spec),
                    "--no-figures",
                    *words,
                    "--set",
                    f"name={name}",
                ],
                env=environment | {"DITLAB_HOME": folder},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for name in names
        ]

        def shared_steps() -> list[list[float]]:
            """Times of each training's steps from the begin of the last to train; none where one
            has not begun.
            """
            steps = [step_times(home, name)[1:] for name in names]  # the first step is a warm-up
            if not all(steps):
                return []
            begin, end = max(each[0] for each in steps), min(each[-1] for each in steps)
            return [[at for at in each if begin <= at <= end] for each in steps]

        try:
            deadline, steps = time.monotonic() + LONGEST + seconds, shared_steps()
            while not steps or any(len(each) < 3 or each[-1] - each[0] < seconds for each in steps):
                assert all(process.poll() is None for process in processes), "a training has ended"
                assert time.monotonic() < deadline, f"{seconds:g} s of {num} trainings: not in time"
                time.sleep(0.5)  # seldom: a look takes from the cores that train
                steps = shared_steps()
            return sum(BATCH * (len(each) - 1) / (each[-1] - each[0]) for each in steps)
        finally:
            for process in processes:
                process.kill()
                process.wait()
            wait_until(lambda: processes_of(home) == [], 60, "the end of all processes")


def step_times(home: Path, name: str) -> list[float]:
    """Seconds at which a run logged its steps."""
    lines = [
        line
        for line in journal_of(home, name).splitlines()
        if '"train/loss"' in line and line.endswith("}")
    ]
    return [json.loads(line)["time"] / 1000 for line in lines]


if __name__ == "__main__":
    main()

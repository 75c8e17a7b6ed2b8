"""Time from the kill of a worker to the next step, over a start of the whole command from the same
checkpoint.

    python benchmarks/runs/recovery_time.py [--rounds 4] [--workers 1]

Both take turns on one run: a worker is killed (kill -9) and replaced by the command itself; then
the command is killed and started anew with --resume. Each time runs to the first step that the
journal did not have. The start is what a person would pay who did the same by hand and at once:
process, Ray, imports, checkpoint. Nothing is asserted here.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report
from ditlab.spec.yaml_text import dump_yaml
from support.clusters.faults import journal_of, processes_of, wait_until, worker_processes
from support.trainings.workers import tiny

NAME = "recovery"


def num_logged(home: Path) -> int:
    return journal_of(home, NAME).count('"kind":"metrics"')


def until_next_step(home: Path, began: float, logged: int) -> float:
    wait_until(lambda: num_logged(home) > logged, 180, "the next step")
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    ratios, recoveries, starts = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        home, spec = Path(folder, "home"), Path(folder, "spec.yaml")
        checkpoint = {"every": 5, "keep": 2}
        resources = {"workers": options.workers, "max_failures": 100}
        spec.write_text(
            dump_yaml(
                tiny(
                    name=NAME, training__steps=10**6, checkpoint=checkpoint, resources=resources
                ).to_dict()
            )
        )
        environment = {**os.environ, "DITLAB_HOME": str(home), "OMP_NUM_THREADS": "1"}

        def start(*more: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "ditlab", "train", str(spec), *more]
            return subprocess.Popen(
                command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )

        process = start()
        try:
            for number in range(options.rounds + 1):
                goal = num_logged(home) + 50
                wait_until(lambda goal=goal: num_logged(home) > goal, 180, "fifty steps")
                (victim, *_) = worker_processes(psutil.Process(process.pid))
                victim.kill()
                began, logged = time.perf_counter(), num_logged(home)
                recovery = until_next_step(home, began, logged)
                goal = num_logged(home) + 50
                wait_until(lambda goal=goal: num_logged(home) > goal, 180, "fifty more steps")
                process.kill()
                process.wait(10)
                wait_until(lambda: processes_of(home) == [], 60, "the end of all processes")
                logged, began = num_logged(home), time.perf_counter()
                process = start("--resume", NAME)
                startup = until_next_step(home, began, logged)
                print(f"  recovery {recovery:5.2f} s   start {startup:5.2f} s", flush=True)
                if number:  # the first round warms the disk's cache
                    recoveries.append(recovery)
                    starts.append(startup)
                    ratios.append(recovery / startup)
        finally:
            process.kill()
            process.wait(10)
            wait_until(lambda: processes_of(home) == [], 60, "the end of all processes")
    print(
        f"recovery {statistics.median(recoveries):.2f} s, start {statistics.median(starts):.2f} s"
    )
    seconds = Measured(seconds=statistics.median(recoveries))
    report("recovery over a start", ratios, seconds, note="target at most 1.2")


if __name__ == "__main__":
    main()

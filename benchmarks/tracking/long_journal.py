"""Processor time to open a long run's journal, for a resume and for a comparison, to list runs, and
to ask them in SQL.

    python benchmarks/tracking/long_journal.py [--steps 1000000] [--runs 5000] [--points
        1000000] [--rounds 3]

A journal of so many steps is written as training writes it, six metrics a step, held-out metrics
every 1,000. So many runs are listed by `ditlab runs`, in a process of its own. A home of ten runs
with so many points is asked by `ditlab runs query`, first and again. Processor seconds; nothing is
asserted here.
"""

import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report
from ditlab.home import Home, RunFolder
from ditlab.tracking.history import metric_history
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import create_run, update_record
from ditlab_addons.compare.comparison import RunCurve, smoothed, training_seconds

BUDGET = 10_000
"""The default of `tracking.budget`."""


def write(folder: RunFolder, num_steps: int) -> None:
    journal = JournalWriter(folder, budget=BUDGET)
    journal.append("start", run_id=folder.run_id, name="long", experiment="benchmark", family="dit")
    for step in range(1, num_steps + 1):
        loss = 1 / math.sqrt(step) + 0.01 * math.sin(step * 12.9898)
        names = ("loss", "velocity", "grad_norm", "lr", "samples_per_second", "skipped")
        values = (
            loss,
            loss,
            abs(math.sin(step)),
            1e-4 * (1 - step / num_steps),
            1400 + math.cos(step),
            0.0,
        )
        journal.log_metrics(
            step, {f"train/{name}": value for name, value in zip(names, values, strict=True)}
        )
        if step % 1000 == 0:
            journal.log_metrics(step, {"eval/velocity": loss})
    journal.close()


def open_for_resume(folder: RunFolder) -> None:
    JournalWriter(folder, budget=BUDGET).close()


def open_for_comparison(folder: RunFolder) -> None:
    history = metric_history(folder)
    speed = history["train/samples_per_second"]
    for series in (history["train/loss"], history["eval/velocity"]):
        spent = training_seconds(series.steps, speed.steps, speed.values, 128)
        smoothed(RunCurve(series.steps.astype(float), spent, series.values))


def command(home: Home, *arguments: str) -> float:
    """Processor seconds of a command in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    variables = {**os.environ, "DITLAB_HOME": str(home.root)}
    subprocess.run(
        [sys.executable, "-m", "ditlab", *arguments], env=variables, check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds(work: Callable[[], None]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        home = Home(Path(place)).ensure()
        long = create_run(home, "long", family="dit", spec_hash="")
        write(long, options.steps)
        for number in range(options.runs - 1):
            folder = home.run(f"{number:08x}")
            folder.path.mkdir()
            os.link(long.record, folder.record)
        asked = Home(Path(place) / "asked").ensure()
        for number in range(10):
            folder = create_run(asked, f"run-{number}", family="dit", spec_hash="")
            write(folder, options.points // 60)
            update_record(folder, status="finished")
        question = (
            "runs",
            "query",
            "SELECT metric, count(*), avg(value) FROM metrics GROUP BY metric",
        )
        took: dict[str, list[float]] = {
            f"first query of {options.points:,} points": [command(asked, *question)]
        }
        for _ in range(options.rounds):
            for name, work in {
                "resume": open_for_resume,
                "comparison": open_for_comparison,
            }.items():
                took.setdefault(name, []).append(seconds(lambda work=work: work(long)))
            took.setdefault(f"ditlab runs of {options.runs:,}", []).append(command(home, "runs"))
            took.setdefault(f"next query of {options.points:,} points", []).append(
                command(asked, *question)
            )
        size = long.journal.stat().st_size
    print(f"{options.steps:,} steps, {size / 1e6:.0f} MB")
    for name, found in took.items():
        print(f"{name}: {statistics.median(found):.2f} s")
    resumed = statistics.median(took["resume"])
    report(
        "seconds to open a journal for a resume, a million steps",
        [resumed / options.steps * 1e6],
        Measured(resumed),
    )


if __name__ == "__main__":
    main()

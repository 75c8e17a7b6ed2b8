"""Cost of a sweep of many trials: rounds of its driver, its resume, its report, MLflow's pages;
real trials on request

    python benchmarks/sweeps/many_trials.py [--trials 3000] [--few 300] [--rounds 5] [--pages
        3]
    python benchmarks/sweeps/many_trials.py --ends 300 [--trials 3000]
    python benchmarks/sweeps/many_trials.py --ray 3000 [--plain N]

Trials of six steps are written as such trials leave them, without training. A round of the driver
is its look at the trials and its table: processor seconds once `few` trials have ended and the
others wait, and once all but `few` have. The resume is all that a killed sweep does before its
trials go on, but for the start of Ray; the report comes with the end of the sweep's run in MLflow.
Pages are opened in a headless Chromium without a cache, with one run of a trial in MLflow's
database for each trial: the first is sent there, the others are copies of its rows.

`--ends N` runs N real trials on Ray with none before them, and N with all others written before
them: processor seconds of the driver for a trial, late over early, beside wall time. Plain Tune's
own growth is not in it, as a resumed sweep gives Tune the trials that are left. `--ray N` runs N
trials on Ray, and as many of plain Tune beside them: processor seconds of the driver's process for
a trial, in the last tenth of the trials over the first. `--plain` is another number of trials for
plain Tune, 0 measures ours alone. `--pages 0` opens none. Nothing is asserted here.
"""

import argparse
import json
import os
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing, redirect_stderr
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

import psutil
from mlflow import MlflowClient

from benchmarks.rounds import Measured, report
from benchmarks.runs.sweep_cost import ENVIRONMENT, PLAIN
from ditlab.cli.sweeps.commands import SweepTable
from ditlab.home import Home
from ditlab.reports.sweep_records import Trial
from ditlab.spec.sweep import build_sweep
from ditlab.spec.yaml_text import dump_yaml
from ditlab.sweeps.prepare import local_nodes, prepare_sweep
from ditlab.sweeps.progress import PROGRESS, SweepProgress, SweepTrials
from ditlab.sweeps.results import ParentRun, finish_sweep
from ditlab.sweeps.start import StartedSweep, create_sweep, find_stored_sweep, resume_sweep
from ditlab.tracking.history import DEVICES_TAG
from ditlab.tracking.journal import encode_record
from ditlab.tracking.mlflow_runs import PARENT_TAG
from ditlab.tracking.names import flatten
from ditlab.tracking.records import FORMAT, RunRecord
from ditlab_addons.housekeeping.sync import sync
from support.chromium import chromium, visit
from support.served import served

METRIC, STEPS = "eval/velocity", 6
NUM_POLLS = 100
SAMPLE_INTERVAL = 0.2  # seconds between looks at the driver of real trials
WITHIN = {"resume": 30.0, "report": 60.0, "page": 5.0}
"""Seconds that are promised for 3,000 trials."""
COPIED = ("runs", "tags", "params", "metrics", "latest_metrics")
"""Tables of MLflow's database that hold a run."""


def trivial(trials: int) -> dict[str, Any]:
    """Six steps of a tiny network, over four axes."""
    return {
        "name": "trivial",
        "base": {
            "name": "trivial",
            "model": {
                "family": "dit",
                "image_size": 8,
                "patch_size": 4,
                "width": 32,
                "depth": 2,
                "num_heads": 2,
            },
            "batch": {"size": 32},
            "training": {"steps": STEPS},
            "checkpoint": {"every": None},
            "evaluation": {"every": STEPS, "samples": 0, "limit": 64},
            "tracking": {"system_metrics": False},
        },
        "space": {
            "optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-2},
            "optimizer.weight_decay": {"kind": "uniform", "low": 0.0, "high": 0.1},
            "training.ema.decay": {"kind": "uniform", "low": 0.9, "high": 0.99},
            "schedule.kind": {"kind": "choice", "values": ["constant", "warmup_cosine"]},
        },
        "metric": METRIC,
        "trials": trials,
        "concurrent": 1,
    }


class MemoryChannel:
    """Channel of a sweep in this process: one trial says how far it is."""

    def __init__(self, running: int) -> None:
        self.values: dict[str, Any] = {
            f"{PROGRESS}{running}": {"step": 3, "metrics": {"train/loss": 1.0}}
        }

    def get(self, topic: str) -> Any:
        return self.values.get(topic)

    def topics(self) -> list[str]:
        return list(self.values)

    def remove(self, topic: str) -> None:
        del self.values[topic]


def write_trial(
    started: StartedSweep, trial: Trial, parameters: Mapping[str, str], status: Any = "finished"
) -> None:
    """Write the record and the journal that a trial of six steps leaves."""
    folder, begin = started.home.run(trial.run_id), 1_800_000_000_000 + trial.number * 2000
    folder.path.mkdir(exist_ok=True)
    when, name, sweep = (
        "2027-01-15T08:00:00.000+00:00",
        f"trivial-{trial.number:03d}",
        started.folder.sweep_id,
    )
    record = RunRecord(
        trial.run_id,
        name,
        "dit",
        "",
        when,
        when,
        status,
        STEPS,
        STEPS,
        parent=sweep,
        trial=trial.number,
    )
    values = {
        key: value for key, value in asdict(record).items() if key not in ("start", "plugins")
    }
    folder.record.write_text(json.dumps({"format": FORMAT, **values}))
    tags = {
        "ditlab.run": trial.run_id,
        PARENT_TAG: sweep,
        "ditlab.trial": str(trial.number),
        DEVICES_TAG: "1 core",
    }
    experiment = started.prepared.base.tracking.experiment
    start = {
        "run_id": trial.run_id,
        "name": name,
        "experiment": experiment,
        "family": "dit",
        "parent": sweep,
    }
    lines = [
        encode_record("start", {"time": begin, **start}),
        encode_record("params", {"time": begin, "values": parameters}),
        encode_record("tags", {"time": begin, "values": tags}),
    ]
    rate = float(trial.values["optimizer.lr"])
    for step in range(STEPS + 1):
        loss = 1.0 + abs(rate * 1e3 - 2) / (step + 1) + (trial.number % 7) / 50
        names = ("loss", "velocity", "grad_norm", "lr", "samples_per_second", "skipped")
        points = {f"train/{name}": loss for name in names} | (
            {METRIC: loss} if step in (0, STEPS) else {}
        )
        lines.append(
            encode_record("metrics", {"time": begin + 100 * step, "step": step, "values": points})
        )
    if status == "finished":
        lines.append(encode_record("end", {"time": begin + 1000, "status": "finished"}))
    folder.journal.write_bytes(b"".join(lines))


def poll_seconds(started: StartedSweep, num_ended: int, rounds: int) -> list[float]:
    """Processor seconds of a round once so many trials have ended, one trains, and the others
    wait.
    """
    parameters = flatten(started.prepared.base.to_dict())
    for trial in started.past[: num_ended + 1]:
        if not started.home.run(trial.run_id).path.exists() or trial.number == num_ended:
            write_trial(
                started, trial, parameters, "running" if trial.number == num_ended else "finished"
            )
    trials, table = SweepTrials(started, MemoryChannel(num_ended), print), SweepTable()
    found = []
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        for number in range(rounds + 1):
            begin = time.process_time()
            for _ in range(NUM_POLLS if number else 1):  # the first one reads all that has ended
                read = trials.read()
                leader = trials.leader.number if trials.leader else None
                table.update(
                    SweepProgress("0", started.sweep, read, leader, started.num_trials, frozenset())
                )
                table.describe()
            found.append((time.process_time() - begin) / NUM_POLLS)
    write_trial(started, started.past[num_ended], parameters)
    return found[1:]


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def resume(started: StartedSweep) -> StartedSweep:
    """Read the sweep as `ditlab tune --resume` does, up to the first round."""
    stored = find_stored_sweep(started.home, started.folder.sweep_id, None)
    prepared = prepare_sweep(
        stored.sweep, "trivial", local_nodes(), remote=False, stored=stored.stored
    )
    again = resume_sweep(prepared, stored.folder)
    SweepTrials(again, MemoryChannel(-1), print).read()
    return again


def copy_runs(database: Path, parent: str, child: str, num: int) -> None:
    """Copy the rows of a trial's run in MLflow's database, so that the sweep's run has `num`
    children.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        for table in COPIED:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            chosen = ", ".join("?" if column == "run_uuid" else column for column in columns)
            copy = (
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {chosen} FROM {table} "
                "WHERE run_uuid = ?"
            )
            connection.executemany(copy, ((f"{number:032x}", child) for number in range(1, num)))
        query = "SELECT count(*) FROM tags WHERE key = 'mlflow.parentRunId' AND value = ?"
        (found,) = connection.execute(query, (parent,)).fetchone()
        assert found == num, f"{found} of {num} runs have their parent"


def page_seconds(started: StartedSweep, parent: str, rounds: int) -> dict[str, float]:
    """Median seconds in which MLflow opens the list of its runs, and the sweep's run."""
    home = started.home
    sync(home.run(started.past[0].run_id), None, home, print)
    client = MlflowClient(f"sqlite:///{home.mlflow_database}")
    experiment = client.get_run(parent).info.experiment_id
    (child,) = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent}'")
    copy_runs(home.mlflow_database, parent, child.info.run_id, started.num_trials)
    found = {}
    with served(home.root) as server, chromium() as browser:
        waits: dict[str, tuple[str, Callable[[Any], Any]]] = {
            "list of runs": (
                f"{server.url}/#/experiments/{experiment}/runs",
                lambda page: page.get_by_role("link", name=re.compile("^trivial")).first,
            ),
            "sweep's run": (
                f"{server.url}/#/experiments/{experiment}/runs/{parent}",
                lambda page: page.get_by_text(f"a sweep of {started.num_trials} trials").first,
            ),
        }
        for name, (address, element) in waits.items():
            took = []
            for _ in range(rounds):
                begin = time.perf_counter()
                with visit(browser, address) as one:
                    element(one.page).wait_for(timeout=60_000)
                    took.append(time.perf_counter() - begin)
            found[name] = statistics.median(took)
    return found


def measure_written(num: int, few: int, rounds: int, page_rounds: int) -> None:
    """Measure a sweep whose trials were written without training."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder, "home"))
        os.environ["DITLAB_HOME"] = str(home.root)
        sweep = build_sweep(trivial(num), "trivial")
        started = create_sweep(prepare_sweep(sweep, "trivial", local_nodes(), remote=False))
        early, late = (poll_seconds(started, ended, rounds) for ended in (few, num - few))
        report(
            f"a round of the driver: {num - few:,} trials ended over {few:,} ended",
            [after / before for before, after in zip(early, late, strict=True)],
            Measured(statistics.median(late)),
        )
        poll_seconds(started, num - 1, 1)  # all have ended
        took, again = seconds(lambda: resume(started))
        report(
            f"resume of {num:,} trials over {WITHIN['resume']:g} s",
            [took / WITHIN["resume"]],
            Measured(took),
        )
        with ParentRun(again.folder, again.home, again.sweep, again.prepared.base) as parent:
            took, _ = seconds(lambda: finish_sweep(again, "finished", 1.0, parent, print))
            report(
                f"report of {num:,} trials over {WITHIN['report']:g} s",
                [took / WITHIN["report"]],
                Measured(took),
            )
        if page_rounds:
            client = MlflowClient(f"sqlite:///{home.mlflow_database}")
            experiments = [experiment.experiment_id for experiment in client.search_experiments()]
            (run,) = client.search_runs(
                experiments, f"tags.`ditlab.run` = '{again.folder.sweep_id}'"
            )
            for name, median in page_seconds(again, run.info.run_id, page_rounds).items():
                title = f"MLflow's {name} with {num:,} trials over {WITHIN['page']:g} s"
                report(title, [median / WITHIN["page"]], Measured(median))


def processor_by_trial(
    command: list[str], environment: Mapping[str, str], begun: Callable[[], int]
) -> list[float]:
    """Run a driver; return the processor seconds of its process at each number of trials that have
    begun.
    """
    found: list[float] = []
    with subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.DEVNULL
    ) as driver:
        process = psutil.Process(driver.pid)
        while driver.poll() is None:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                break
            found += [times.user + times.system] * (begun() - len(found))
            time.sleep(SAMPLE_INTERVAL)
    if driver.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {driver.returncode}")
    return found


def driver_of_trials(total: int, ended: int, num: int) -> tuple[float, float]:
    """Processor and wall seconds of the driver for each of `num` real trials after one, with so
    many written before.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder, "home"))
        os.environ["DITLAB_HOME"] = str(home.root)
        started = create_sweep(
            prepare_sweep(
                build_sweep(trivial(total), "trivial"), "trivial", local_nodes(), remote=False
            )
        )
        parameters = flatten(started.prepared.base.to_dict())
        for trial in started.past[:ended]:
            write_trial(started, trial, parameters)
        command = [sys.executable, "-m", "ditlab", "tune", "--resume", started.folder.sweep_id]
        found: list[tuple[float, float]] = []
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as driver:
            process = psutil.Process(driver.pid)
            while driver.poll() is None:
                times, begun = (
                    process.cpu_times(),
                    num_entries(home.root / "train", "*", -1 - ended),
                )
                found += [(times.user + times.system, time.monotonic())] * (begun - len(found))
                if len(found) > num:
                    driver.send_signal(
                        signal.SIGTERM
                    )  # SIGINT stays ignored where it was, as in the background of a shell
                    break
                time.sleep(SAMPLE_INTERVAL)
        assert len(found) > num, f"{len(found)} of {num} trials began"
        return (found[num][0] - found[0][0]) / num, (found[num][1] - found[0][1]) / num


def measure_ends(total: int, num: int) -> None:
    """Measure real trials of a sweep that has just begun, and of one that is nearly over."""
    (early, early_wall), (late, late_wall) = (
        driver_of_trials(total, ended, num) for ended in (0, total - num - 1)
    )
    print(
        f"wall seconds a trial: {early_wall:.2f} early, {late_wall:.2f} late; processor "
        f"{early:.4f} and {late:.4f}"
    )
    report(
        f"driver of a real trial: {total - num:,} trials ended over none",
        [late / early],
        Measured(late),
    )


def num_entries(folder: Path, pattern: str, more: int) -> int:
    """Number of a folder's entries, and `more`."""
    return max(0, len(list(folder.glob(pattern))) + more)


def measure_on_ray(num: int, num_plain: int) -> None:
    """Measure real trials, ours and those of plain Tune."""
    growth, each = [], 0.0
    for is_ours, trials in ((True, num), (False, num_plain)):
        if not trials:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if is_ours:
                path, runs = folder / "sweep.yaml", folder / "home" / "train"
                path.write_text(dump_yaml(trivial(trials)))
                command = [sys.executable, "-m", "ditlab", "tune", str(path)]
                variables = {"DITLAB_HOME": str(folder / "home")}
                count = partial(num_entries, runs, "*", -1)  # the sweep is a run itself
            else:
                command, variables = [sys.executable, str(PLAIN), name, str(trials)], ENVIRONMENT
                count = partial(num_entries, folder, "trial-*", 0)
            used = processor_by_trial(command, variables, count)
        tenth = max(1, len(used) // 10)
        first, last = used[tenth] - used[0], used[-1] - used[-1 - tenth]
        growth.append(last / first)
        each = last / tenth if is_ours else each
        print(
            f"{'ditlab tune' if is_ours else 'plain Tune'}: {len(used)} trials, processor "
            f"seconds of the driver {first:.2f} for the first {tenth} after one, {last:.2f} "
            f"for the last {tenth}",
            flush=True,
        )
    if len(growth) == 2:
        title = f"growth of the driver over {num} trials, over plain Tune's over {num_plain}"
        report(title, [growth[0] / growth[1]], Measured(each))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--few", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pages", type=int, default=3, help="rounds of MLflow's pages")
    parser.add_argument(
        "--ray",
        type=int,
        default=0,
        help="trials that are trained on Ray; nothing else is measured",
    )
    parser.add_argument(
        "--ends",
        type=int,
        default=0,
        help="real trials at the begin and at the end of --trials alone",
    )
    parser.add_argument(
        "--plain", type=int, help="trials of plain Tune beside --ray; as many if left out"
    )
    options = parser.parse_args()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    if options.ends:
        measure_ends(options.trials, options.ends)
    elif options.ray:
        measure_on_ray(options.ray, options.ray if options.plain is None else options.plain)
    else:
        measure_written(options.trials, options.few, options.rounds, options.pages)


if __name__ == "__main__":
    main()

"""Processes and steps of a run, for tests that break things."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import mlflow
import psutil

from ditlab.home import Home
from ditlab.tracking.history import JournalFacts
from ditlab.tracking.journal import read_content
from support.trainings.timings import TIMINGS


def processes_with(word: str, of: psutil.Process | None = None) -> list[psutil.Process]:
    """Processes below a process, this one by default, whose command line holds a word, by their
    start.
    """
    found = []
    for process in (of or psutil.Process()).children(recursive=True):
        try:
            if any(word in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return sorted(found, key=lambda process: process.pid)


def worker_processes(of: psutil.Process | None = None) -> list[psutil.Process]:
    """Ray Train's worker processes below a process, in the order of their ranks' start."""
    return processes_with("RayTrainWorker", of)


def processes_of(home: Path) -> list[str]:
    """Command lines of living processes that were started under a DITLAB_HOME."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(
                "DITLAB_HOME"
            ) == str(home):
                found.append(" ".join(process.cmdline())[:200])
        except psutil.Error:
            continue
    return found


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.01)


def journal_path(home: Path, name: str) -> Path | None:
    """The journal of the run of a name, in brackets behind what a trial varies; None before there
    is one.
    """
    for journal in home.glob("train/*/journal.jsonl"):
        with journal.open() as file:
            first = file.readline()
        if f'"name":"{name}"' in first or f' ({name})"' in first:
            return journal
    return None


def journal_of(home: Path, name: str) -> str:
    """Text of the journal; empty before there is one."""
    path = journal_path(home, name)
    return path.read_text() if path else ""


def has_step(home: Path, name: str, step: int) -> bool:
    return '"kind":"metrics"' in (text := journal_of(home, name)) and f'"step":{step},' in text


@contextmanager
def once_at(home: Path, name: str, step: int, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` once during the block, when the run of a name has logged a step."""
    with in_turn(home, name, (step, act)):
        yield


@contextmanager
def in_turn(home: Path, name: str, *acts: tuple[int, Callable[[], None]]) -> Iterator[None]:
    """Call each function once during the block, in their order, when the run of a name has logged
    its step.
    """

    def watch() -> None:
        for step, act in acts:
            wait_until(partial(has_step, home, name, step), 200, f"step {step} of {name}")
            act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive(), f"steps {[step for step, _ in acts]} of {name} never came"


def kill_worker(index: int, number: int = signal.SIGKILL) -> Callable[[], None]:
    """A signal for one of this process's Ray Train workers."""

    def act() -> None:
        workers = worker_processes()
        os.kill(workers[index % len(workers)].pid, number)

    return act


def tracked(
    home: Path, name: str
) -> tuple[dict[str, list[tuple[int, float]]], dict[str, str], str]:
    """(points by metric, tags, status) of the one MLflow run of a name, timings left out; tags of
    its journal, too.
    """
    client = mlflow.MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (run,) = client.search_runs(experiments, f"attributes.run_name = '{name}'")
    keys = [key for key in run.data.metrics if not key.startswith(TIMINGS)]
    points = {
        key: [
            (point.step, point.value) for point in client.get_metric_history(run.info.run_id, key)
        ]
        for key in keys
    }
    facts = JournalFacts()
    for event in read_content(Home(home).run(run.data.tags["ditlab.run"]).journal).events:
        facts.add(event)
    return (
        {key: sorted(values) for key, values in points.items()},
        facts.tags | run.data.tags,
        run.info.status,
    )

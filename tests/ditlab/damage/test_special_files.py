"""Pipes, devices, links in a circle, folders, terabytes of nothing in place of data and
checkpoints: none hangs.
"""

import os
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from support import special_files
from support.damaged import readers
from support.damaged.cases import Judge, Verdicts, cases
from support.damaged.commands import fault_of, kept, path_parameters, run_watched
from support.sweeps import prepared, sweep_of
from support.watchdog import watchdog

KINDS = ("pipe", "device", "circle", "dangling", "socket", "folder", "terabyte")
OWN = (
    "journal",
    "journal of node 1",
    "run.json",
    "cursor",
    "mlflow.db",
    "picture",
    "home.json",
    "checkpoint's manifest",
    "checkpoint's shard",
    "snapshot's manifest",
    "snapshot's shard",
)
"""Files that nobody but us writes, and that are opened as they are."""
OF_STORES = {readers.digits, readers.named, readers.buckets}
"""Readers of stores, which are the user's own and opened plainly."""
LARGEST = 2 << 30
"""Bytes of memory that reading any file of a small home may take."""


def put(kind, path):
    if kind != "terabyte":
        return special_files.put(kind, path)
    special_files.remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    return path


@contextmanager
def little_memory():
    """Limit this process to the memory that it has and `LARGEST` more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + LARGEST, before[1])
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    "kinds",
    [pytest.param(KINDS, marks=pytest.mark.slow), ("pipe", "device")],
    ids=["all kinds", "a pipe and a device"],
)
def test_readers_neither_wait_nor_read_without_end(one, kinds):
    verdicts = Verdicts()
    judge = Judge(one, verdicts)
    with little_memory():
        for case in cases(readers.ledger(prepared(sweep_of()))):
            if case.name in OWN or OF_STORES.intersection(case.readers):
                continue
            for kind in kinds:
                judge.judge(case, lambda place, kind=kind: put(kind, place), kind)
    print(verdicts.counts)
    assert not verdicts.faults, "\n\n".join(verdicts.faults)


SKIPPED = {("ui", "--home"), ("schema", "--out"), ("inspect", "--out")}
"""A server that goes on until Ctrl-C; files that are written, one of which may be a pipe that a
person reads.
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["pipe", "device", "circle", "terabyte"])
def test_special_files_as_arguments_of_every_command(one, finished, tmp_path, kind):
    values = {
        "run": one.first.run_id,
        "spec": finished.spec,
        "store": "digits",
        "uri": "file:///nowhere",
        "path": "digits",
        "place": "digits",
        "--out": tmp_path / "out",
        "--source": tmp_path,
        "--weights": tmp_path / "weights",
        "--sha256": "0" * 64,
    }
    faults = []
    for names, parameter, required in path_parameters():
        if (names[-1], parameter) in SKIPPED or (kind == "terabyte" and "import" in names):
            continue
        special = put(kind, tmp_path / f"special-{kind}.yaml")
        arguments = [*names, *_given(parameter, special)]
        for name in required:
            arguments += _given(name, values[name])
        with kept(one), watchdog(60):
            said = run_watched(*arguments, one=one, cwd=tmp_path)
        fault = fault_of(said)
        is_written = kind == "terabyte" and parameter == "--out"
        if not fault and said.code != 2 and not is_written:
            fault = f"exit code {said.code}, {said.err[-300:]}"
        if fault:
            faults.append(f"{' '.join(map(str, arguments))}: {fault}")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert not faults, "\n\n".join(faults)


def _given(parameter, value):
    return [parameter, value] if parameter.startswith("--") else [value]

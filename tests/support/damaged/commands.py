"""Whole commands on a home whose files are damaged: their exit code, and words a person can
read.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from support.click_commands import every_command
from support.command import Said, run_inside
from support.damaged.home import OTHER, DamagedHome
from support.watchdog import watchdog

COMMAND_SECONDS = 120.0
"""Seconds of a command, on a busy machine."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def commands_of(case: str, one: DamagedHome, out: Path) -> list[tuple[object, ...]]:
    """The commands that read the file of a case; the first is the most telling one."""
    run = one.first.run_id
    sample = ("sample", run, "--num", "1", "--out", out / "samples")
    compare = ("compare", run, OTHER, "--grid", "0", "--no-log", "--out", out / "compared")
    sweep = ("tune", "--resume", one.sweep.sweep_id, "--dry-run")
    shown = (("runs",), ("runs", "show", run), ("runs", "log", run))
    match case:
        case "journal" | "journal of node 1":
            return [compare, ("runs", "sync"), *shown]
        case "run.json":
            return [*shown, compare, sample, ("runs", "rm", run, "--dry-run")]
        case "spec.yaml":
            return [sample, compare, shown[1]]
        case "cursor" | "home.json" | "mlflow.db":
            return [("runs", "sync"), shown[1]]
        case "store.json" | "store's rows" | "store's index":
            return [("data", "inspect", "digits"), sample]
        case "name of a store":
            return [("data", "inspect", "pets"), ("data", "list")]
        case "best.yaml":
            return [
                ("train", one.best, "--dry-run"),
                ("validate", one.best),
                ("runs", "rm", OTHER, "--dry-run"),
            ]
        case "picture":
            return [("report", run), ("runs", "sync")]
        case "buckets.json" | "bucket's store.json":
            return [("data", "inspect", one.bucketed)]
        case "trials.jsonl" | "exploits.jsonl" | "elapsed.json" | "sweep.yaml":
            return [sweep, ("runs", "show", one.sweep.sweep_id)]
        case "checkpoint's manifest" | "checkpoint's shard":
            return [sample, ("export", run, "--out", out / "exported"), shown[1]]
        case "snapshot's manifest" | "snapshot's shard":
            return [("export", run, "--ema", "0.2", "--out", out / "exported"), shown[1]]
        case _:
            return [shown[0]]


def fault_of(said: Said) -> str:
    """Fault of a command's end: empty for an exit code of the documents, and words without a
    traceback.
    """
    if said.code not in (0, 1, 2):
        return f"exit code {said.code}"
    if "Traceback" in said.err + said.out:
        return f"a traceback: {said.err[-600:]}"
    if found := _CONTROL.search(said.err + said.out):
        return f"the control character {found[0]!r}"
    return "" if said.code == 0 or said.err.strip() else "no word on standard error"


def run_watched(*arguments: object, one: DamagedHome, cwd: Path) -> Said:
    """Run a command in this process, which may take `COMMAND_SECONDS`."""
    with watchdog(COMMAND_SECONDS):
        return run_inside(*arguments, home=one.home.root, cwd=cwd)


@contextmanager
def kept(one: DamagedHome) -> Iterator[None]:
    """Put the home back as it was, and check that the other run's files are untouched but for what
    is logged to it.
    """
    aside = one.home.root.with_name("aside")
    shutil.copytree(one.home.root, aside, symlinks=True)
    try:
        yield
    finally:
        shutil.rmtree(one.home.root)
        aside.rename(one.home.root)


def path_parameters() -> Iterator[tuple[list[str], str, list[str]]]:
    """(Command, parameter that takes a path, other required parameters) of the whole command
    line.
    """
    for words, command in every_command():
        if isinstance(command, click.Group):
            continue
        required = [each.opts[0] for each in command.params if each.required]
        for each in command.params:
            name = each.opts[0]
            is_place = words.endswith("inspect") and name == "path"
            if is_place or isinstance(each.type, click.Path):
                yield words.split(), name, [other for other in required if other != name]

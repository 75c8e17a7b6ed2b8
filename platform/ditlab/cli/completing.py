"""Completion of runs' ids and names in a shell, from the folders of DITLAB_HOME: a fraction of a second, no torch."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ditlab.home import Home
from ditlab.storage.plain_files import read_json

MOST_RUNS = 500
"""Newest runs that are offered."""
_PLAIN = re.compile(r"[\w.-]+")  # any other name would have to be quoted, or could be a command of the terminal's
_MOST_BYTES = 1 << 16  # of a run.json


def complete_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the newest runs that begin with `incomplete`, described by name and status; names after the ids."""
    ids: list[CompletionItem] = []
    names: dict[str, CompletionItem] = {}
    for folder in _newest(Home.from_environment().runs):
        found = _record(folder)
        name, status = (str(found.get(key, "")) for key in ("name", "status"))
        described = ", ".join(text for text in (name, status) if _PLAIN.fullmatch(text))
        if folder.name.startswith(incomplete) and _PLAIN.fullmatch(folder.name):
            ids.append(CompletionItem(folder.name, help=described))
        if incomplete and name.startswith(incomplete) and _PLAIN.fullmatch(name):
            names.setdefault(name, CompletionItem(name, help=f"newest: {folder.name}"))
    return [*ids, *names.values()]


def complete_resume(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs as `complete_run` offers them, after the word `auto`."""
    auto = [CompletionItem("auto", help="newest unfinished run of this spec")] if "auto".startswith(incomplete) else []
    return [*auto, *complete_run(context, parameter, incomplete)]


def _newest(runs: Path) -> list[Path]:
    """Run folders, the newest first."""
    with suppress(OSError), os.scandir(runs) as entries:
        folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        folders.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime, reverse=True)
        return [Path(entry.path) for entry in folders[:MOST_RUNS]]
    return []


def _record(folder: Path) -> dict[str, Any]:
    """A run's record as it stands in the file; empty where it cannot be read."""
    with suppress(OSError, ValueError):
        found = read_json(folder / "run.json", _MOST_BYTES)
        return found if isinstance(found, dict) else {}
    return {}

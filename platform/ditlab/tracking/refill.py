"""A home's MLflow filled again from the runs' journals, where the home was moved or copied, or the database is damaged.

Journals are the truth, MLflow is a view of them. The old database and its files, with what people wrote there, are kept
under other names. Each step can be done again: after a crash, the next call goes on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.storage.files import encode_json_line, is_as_stamped, read_json_lines, stamped, write_durably
from ditlab.tracking.access import resolve_tracking_uri
from ditlab.tracking.backend import Warn
from ditlab.tracking.mlflow_connection import database_damage
from ditlab.tracking.records import RunRecord
from ditlab.tracking.upload import CursorFile, SyncResult, sync_runs

_SPECS = ("spec.yaml", "sweep.yaml", "report/best.yaml")
"""Files of a run's folder that may name stores and checkpoints of the home by absolute paths."""


@dataclass(frozen=True)
class Refill:
    """A home's MLflow, filled again."""

    reason: str
    """Why, as `is a copy of /data/runs`."""
    database: str = ""
    """Name of the old database in the home; empty where there was none."""
    artifacts: str = ""
    """Name of the folder of the old database's files; empty where there was none."""

    def sentence(self) -> str:
        """Line for people."""
        kept = " and ".join(filter(None, [self.database, self.artifacts]))
        old = f"; the old database and its files are {kept}" if kept else ""
        return f"MLflow was filled again from the runs' journals, as the home {self.reason}{old}."


def refill_reason(home: Home) -> str:
    """Return why a home's MLflow has to be filled again; empty where its database is whole and of this folder."""
    damage = "" if (reason := home.unsettled()) else database_damage(home.mlflow_database)
    return f"has a damaged database ({damage})" if damage else reason


def refill(home: Home, records: Sequence[RunRecord], reason: str, warn: Warn) -> tuple[Refill, list[SyncResult]]:
    """Fill MLflow again with `records`, all runs of the home, and settle the home where it is.

    Raises UserError while a process sends one of the journals: it would go on writing into the old database.
    """
    folders = [home.run(record.run_id) for record in records]
    address = resolve_tracking_uri(None, home)
    for folder in folders:
        _refuse_sender(folder, address)
    database, artifacts = _set_aside(home)
    former = home.former_folder()
    if former and former != home.root:
        for folder in folders:
            _rewrite_paths(folder, str(former), str(home.root), warn)
    oldest_first = sorted(records, key=lambda record: record.created)  # a sweep before its trials
    results = sync_runs(oldest_first, home, warn=warn)
    own = {record.run_id for record in records if resolve_tracking_uri(record.tracking_uri or None, home) == address}
    if not any(result.left and result.fault for result in results if result.run_id in own):
        home.write_marker()
    return Refill(reason, database, artifacts), results


def _refuse_sender(folder: RunFolder, address: str) -> None:
    """Raise UserError while a process sends the journal of a run."""
    cursor = CursorFile(folder, address)
    if not cursor.acquire():
        raise UserError(
            f"MLflow cannot be filled again while a process sends run {folder.run_id} to it; wait for its end, or stop "
            "it."
        )
    cursor.release()


def _set_aside(home: Home) -> tuple[str, str]:
    """Give the old database and its files other names, noted in the home's marker first; empty for none."""
    name = str(home.read_marker().get("aside", ""))
    if not re.fullmatch(r"mlflow\.db\.before-[0-9-]+", name):
        name = f"mlflow.db.before-{datetime.now():%Y%m%d-%H%M%S}"
        home.write_marker(folder=str(home.former_folder() or home.root), aside=name)
    aside = home.root / name
    artifacts = home.artifacts.with_name(name.replace("mlflow.db", home.artifacts.name))
    if home.mlflow_database.exists() and not aside.exists():
        if home.artifacts.exists() and not artifacts.exists():
            home.artifacts.rename(artifacts)
        for suffix in ("-wal", "-shm", "-journal", ""):  # the database itself comes last
            part = Path(f"{home.mlflow_database}{suffix}")
            if part.exists():
                part.rename(f"{aside}{suffix}")
    return aside.name if aside.exists() else "", artifacts.name if artifacts.exists() else ""


def _rewrite_paths(folder: RunFolder, former: str, present: str, warn: Warn) -> None:
    """Put the home's present folder in the place of the former one, in the run's specs and list of trials."""
    # A whole path, or the path of a file:// URI: the former `/runs` is not the end of `/data/runs`.
    pattern = re.compile(rf"(?:(?<=://)|(?<![\w.~/-])){re.escape(former)}(?![\w.~-])")

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: moved(each) for key, each in value.items()}
        if isinstance(value, list):
            return [moved(each) for each in value]
        if not isinstance(value, str):
            return value
        return pattern.sub(lambda _: present, value)

    for path in (folder.path / name for name in _SPECS):
        try:
            content = path.read_bytes()
            text = moved(content.decode())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            warn(f"{path} cannot be read ({first_line(error)}), and stays as it is")
            continue
        if is_as_stamped(content):  # an edit by hand stays one
            text = stamped("".join(text.splitlines(keepends=True)[:-1]))
        if text.encode() != content:
            write_durably(path, text.encode())
    trials = folder.path / "trials.jsonl"
    lines = read_json_lines(trials)
    if moved(lines.records) != lines.records and not lines.num_damaged:
        write_durably(trials, b"".join(map(encode_json_line, moved(lines.records))))

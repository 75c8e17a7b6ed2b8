"""A home's MLflow filled again from the runs' journals, where the home was moved or copied, or the database is damaged.

Journals are the truth, MLflow is a view of them. The old database and its files are kept under other names, and what
people wrote into the old database is copied from it. Each step can be done again: after a crash, the next call goes on.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ditlab.errors import UserError, first_line, shortened
from ditlab.home import Home, RunFolder
from ditlab.storage.files import encode_json_line, is_as_stamped, read_json_lines, stamped, write_durably
from ditlab.tracking.access import resolve_tracking_uri
from ditlab.tracking.backend import Warn
from ditlab.tracking.history import NAME_TAG
from ditlab.tracking.mlflow_backend import NOTE_TAG, OWN_TAG, note_hash
from ditlab.tracking.mlflow_connection import connect, database_damage, open_read_only
from ditlab.tracking.mlflow_runs import RUN_TAG, find_mlflow_run
from ditlab.tracking.records import RunRecord
from ditlab.tracking.upload import CursorFile, SyncResult, sync_runs

_SPECS = ("spec.yaml", "sweep.yaml", "report/best.yaml")
"""Files of a run's folder that may name stores and checkpoints of the home by absolute paths."""
_NAMED = 5
"""Names that a sentence lists."""


@dataclass(frozen=True)
class Refill:
    """A home's MLflow, filled again."""

    reason: str
    """Why, as `is a copy of /data/runs`."""
    database: str = ""
    """Name of the old database in the home; empty where there was none."""
    artifacts: str = ""
    """Name of the folder of the old database's files; empty where there was none."""
    runs: list[dict[str, str]] = field(default_factory=list)
    """Run id, and MLflow's ids `before` and `after`, of each run that the old database has."""
    copied: list[str] = field(default_factory=list)
    """Sentences on what was copied from the old database."""
    left: list[str] = field(default_factory=list)
    """Sentences on what the old database alone has."""

    def lines(self) -> list[str]:
        """Lines for people."""
        kept = f"MLflow was filled again from the runs' journals, as the home {self.reason}"
        if self.database:
            kept += f"; {self.database} keeps the old database"
        if self.artifacts:
            kept += f", {self.artifacts} its files"
        ids = [f"run {run['run_id']}: {run['before']} -> {run['after']}" for run in self.runs]
        return [f"{kept}.", *ids, *self.copied, *self.left]


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
    done = Refill(reason, database, artifacts)
    if database:
        aside = home.root / database
        try:
            _copy_by_hand(aside, connect(address, home), done)
        except (OSError, sqlite3.Error) as error:
            done.left.append(f"{aside} cannot be read ({first_line(error)}): notes and tags in it were not copied.")
    own = {record.run_id for record in records if resolve_tracking_uri(record.tracking_uri or None, home) == address}
    if not any(result.left and result.fault for result in results if result.run_id in own):
        home.write_marker()
    return done, results


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
    encoded = re.compile(rf"(?<=://){re.escape(quote(former))}(?![\w.~%-])")

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: moved(each) for key, each in value.items()}
        if isinstance(value, list):
            return [moved(each) for each in value]
        if not isinstance(value, str):
            return value
        return pattern.sub(lambda _: present, encoded.sub(lambda _: quote(present), value))

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


def _copy_by_hand(database: Path, client: Any, done: Refill) -> None:
    """Copy what people typed and tagged in the old database to the new runs, and name what stays there alone."""
    with closing(open_read_only(database)) as connection:
        read = connection.execute
        query = (  # of two runs with one id of ours, the later row counts: one that is not deleted
            "SELECT value, run_uuid, lifecycle_stage FROM runs JOIN tags USING (run_uuid) WHERE key = ? "
            "ORDER BY lifecycle_stage = 'active'"
        )
        ours = read(query, (RUN_TAG,)).fetchall()
        num_others = read("SELECT count(*) FROM runs").fetchone()[0] - len(ours)
        tags = _by_run(read("SELECT run_uuid, key, value FROM tags"))
        query = "SELECT run_uuid, key, NULL FROM latest_metrics UNION SELECT run_uuid, key, NULL FROM params"
        logged = _by_run(read(query))
        experiments = dict(read("SELECT experiment_id, name FROM experiments"))
        experiment_tags = read("SELECT experiment_id, key, value FROM experiment_tags").fetchall()
        registered = [name for (name,) in read("SELECT name FROM registered_models ORDER BY name")]
    for number, key, value in experiment_tags:
        experiment = client.get_experiment_by_name(experiments.get(number, ""))
        if experiment is not None and experiment.tags.get(key) != value:
            client.set_experiment_tag(experiment.experiment_id, key, value)
            done.copied.append(f"experiment {experiment.name}: {_tag_name(key)} copied.")
    for run_id, (old, stage) in sorted({run_id: (old, stage) for run_id, old, stage in ours}.items()):
        new = find_mlflow_run(client, run_id)
        if new is None:
            done.left.append(f"run {run_id} ({old}) has no journal in this home.")
            continue
        done.runs.append({"run_id": run_id, "before": old, "after": new})
        stored = client.get_run(new)
        if stored.info.lifecycle_stage == "deleted":  # by this function, before a crash
            continue
        for key, value in _typed_tags(tags[old], stored.data.tags).items():
            client.set_tag(new, key, value)
            done.copied.append(f"run {run_id}: {_tag_name(key)} copied.")
        missing = sorted(logged[old].keys() - stored.data.metrics.keys() - stored.data.params.keys())
        if missing:
            some = shortened(missing, _NAMED)
            done.left.append(f"run {run_id}: metrics or parameters that other programs logged: {some}.")
        if stage == "deleted":
            client.delete_run(new)
            done.copied.append(f"run {run_id}: deleted, as it was.")
    if registered:
        done.left.append(f"Registered models, to be registered again: {shortened(registered, _NAMED)}.")
    if num_others:
        done.left.append(f"Runs that other programs logged: {num_others}.")


def _by_run(rows: Iterable[tuple[str, str, Any]]) -> defaultdict[str, dict[str, Any]]:
    """Return values by MLflow's run id and key."""
    found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for mlflow_run_id, key, value in rows:
        found[mlflow_run_id][key] = value
    return found


def _typed_tags(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of a run that a person wrote, as far as the new run has them otherwise."""
    typed = {}
    for key, value in old.items():
        if key == NOTE_TAG:
            is_typed = note_hash(value) not in old.get(OWN_TAG, "").split()
        else:
            is_typed = key == NAME_TAG or (key not in new and not key.startswith(("mlflow.", "ditlab.")))
        if is_typed and new.get(key) != value:
            typed[key] = value
    return typed


def _tag_name(key: str) -> str:
    return {NOTE_TAG: "the note that a person wrote", NAME_TAG: "the name"}.get(key, f"tag {key}")

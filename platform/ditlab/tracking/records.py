"""The local registry of runs: a folder and a `run.json` each. Imports no mlflow."""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal

from ditlab.errors import UserError, nearest
from ditlab.home import Home, RunFolder
from ditlab.secrets import hide
from ditlab.storage.files import write_durably

Status = Literal["running", "finished", "failed", "interrupted", "stopped"]
"""`stopped` is a trial that its sweep's scheduler ended early, for good."""


@dataclass(frozen=True)
class RunRecord:
    """Content of `run.json`."""

    run_id: str
    name: str
    family: str
    spec_hash: str
    created: str
    """ISO 8601, UTC."""
    updated: str
    """ISO 8601, UTC: when this record last changed."""
    status: Status = "running"
    step: int = 0
    total_steps: int = 0
    tracking_uri: str = ""
    message: str = ""
    """Reason of a failure or interruption."""
    parent: str = ""
    """Id of the sweep that a trial belongs to."""
    trial: int = -1
    """Number of a trial in its sweep."""
    trials: int = 0
    """Number of trials of a sweep; 0 for a training run."""
    plugins: dict[str, str] = field(default_factory=dict, hash=False)
    """Versions of the other packages that the experiment's parts come from, by name; left out of the file where there
    are none."""


@dataclass(frozen=True)
class FoundRun:
    """A run that was found by id, name or prefix."""

    folder: RunFolder
    record: RunRecord
    note: str = ""
    """Message for the user where the newest of several runs of one name was taken."""


def create_run(home: Home, name: str, *, family: str, spec_hash: str, run_id: str = "", **facts: Any) -> RunFolder:
    """Make the folder of a new run and its record; the id is `run_id`, or eight new hexadecimal characters.

    `facts` are other fields of the record. Raises UserError where DITLAB_HOME cannot be written.
    """
    home.ensure()
    home.runs.mkdir(exist_ok=True)
    while True:
        folder = home.run(run_id or secrets.token_hex(4))
        try:
            folder.path.mkdir()
            break
        except FileExistsError:
            if run_id:
                raise
            continue
    now = _now()
    record = RunRecord(folder.run_id, name, family, spec_hash, now, now, **facts)
    try:
        _write(folder, record)
    except OSError:
        with suppress(OSError):
            folder.path.rmdir()  # a full disk: no run was made
        raise
    return folder


def read_record(folder: RunFolder) -> RunRecord:
    """Read a run's record. Raises UserError where it is missing or damaged."""
    record = _read(folder)
    if record is None:
        raise UserError(f"{folder.record} is missing or damaged; `ditlab runs` lists the runs that are whole.")
    return record


def update_record(folder: RunFolder, **changes: Any) -> RunRecord:
    """Change fields of a run's record and return it; atomic, and exclusive among the processes of one machine.

    Raises UserError where the record is missing or damaged.
    """
    if "message" in changes:
        changes["message"] = hide(changes["message"])
    with _locked(folder):
        record = replace(read_record(folder), **changes, updated=_now())
        _write(folder, record)
    return record


def list_runs(home: Home) -> list[RunRecord]:
    """Every run with a readable record, the newest first."""
    if not home.runs.is_dir():
        return []
    records = (_read(RunFolder(path)) for path in home.runs.iterdir() if path.is_dir())
    return sorted((record for record in records if record), key=lambda r: (r.created, r.run_id), reverse=True)


def find_run(home: Home, text: str) -> FoundRun:
    """Find a run by its id, its name (the newest run of it), or a unique prefix of its id, in this order.

    Raises UserError for none, naming the nearest, and for a prefix of several, listing them.
    """
    runs = list_runs(home)
    for record in runs:
        if record.run_id == text:
            return FoundRun(home.run(record.run_id), record)
    if named := [record for record in runs if record.name == text]:
        note = ""
        if len(named) > 1:
            others = ", ".join(record.run_id for record in named[1:4]) + (", ..." if len(named) > 4 else "")
            note = f"{len(named)} runs are named '{text}'; taking the newest, {named[0].run_id} (others: {others})"
        return FoundRun(home.run(named[0].run_id), named[0], note)
    matches = [record for record in runs if text and record.run_id.startswith(text)]
    if len(matches) == 1:
        return FoundRun(home.run(matches[0].run_id), matches[0])
    if matches:
        listed = ", ".join(f"{record.run_id} ({record.name})" for record in matches[:8])
        raise UserError(f"run '{text}' could be any of {listed}; give more characters of the id.")
    known = [record.run_id for record in runs] + sorted({record.name for record in runs})
    if not known:
        raise UserError(f"run '{text}' is unknown: {home.runs} holds no runs; start one with `ditlab train SPEC`.")
    raise UserError(f"run '{text}' is unknown under {home.runs} ({_nearest(text, known)}); `ditlab runs` lists them.")


def find_training_run(home: Home, text: str) -> FoundRun:
    """Find a run as `find_run` does; raises UserError for a sweep, naming its trials."""
    found = find_run(home, text)
    if found.record.trials:
        trial_ids = [record.run_id for record in list_runs(home) if record.parent == found.record.run_id]
        trials = f"name one of its trials: {', '.join(trial_ids[:8])}" if trial_ids else "none of its trials has begun"
        raise UserError(f"run '{text}' is a sweep of {found.record.trials} trials; {trials}.")
    return found


def find_unfinished(home: Home, name: str, spec_hash: str) -> FoundRun | None:
    """Find the newest unfinished run of this name and spec hash, for `--resume auto`."""
    for record in list_runs(home):
        is_open = record.status not in ("finished", "stopped") and not record.trials
        if is_open and record.name == name and record.spec_hash == spec_hash:
            return FoundRun(home.run(record.run_id), record)
    return None


def _nearest(text: str, known: list[str]) -> str:
    """The nearest names, as `errors.nearest` gives them, with a long list cut short."""
    phrase = nearest(text, known)
    return phrase if len(phrase) <= 120 else phrase[:110].rsplit(",", 1)[0] + ", ..."


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _read(folder: RunFolder) -> RunRecord | None:
    try:
        values = json.loads(folder.record.read_text(encoding="utf-8"))
        # Unknown keys come from a later version, whose runs can still be listed.
        record = RunRecord(**{field.name: values[field.name] for field in fields(RunRecord) if field.name in values})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    # The folder's name is the id; a copied folder is a run of its own.
    return replace(record, run_id=folder.run_id)


def _write(folder: RunFolder, record: RunRecord) -> None:
    values = {name: value for name, value in asdict(record).items() if name != "plugins" or value}
    write_durably(folder.record, json.dumps(values, indent=1).encode())


@contextmanager
def _locked(folder: RunFolder) -> Iterator[None]:
    """Hold the record's lock among the processes of one machine: a driver sets the status, a worker the step."""
    # A file open for writing: NFS refuses to lock a folder, or anything that is open for reading only.
    descriptor = os.open(folder.path / "run.json.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

"""The local registry of runs: a folder each, with a `run.json`. Imports no mlflow."""

import json
import logging
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import psutil
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from ditlab.errors import UserError, first_line, nearest
from ditlab.home import Home, RunFolder
from ditlab.secrets import hide
from ditlab.storage.files import take_lock, write_durably

FORMAT = 2
"""Version of `run.json`."""

Status = Literal["running", "finished", "failed", "interrupted", "stopped"]
"""`stopped` is a trial that its sweep's scheduler ended early, for good."""
Natural = Annotated[int, Field(ge=0, lt=1 << 53)]
# seconds: the start of a process is told by the host's clock, which may have been set meanwhile
_CLOCK_ERROR = 2.0
_log = logging.getLogger("ditlab.tracking")


def _check_time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("no time zone")
    return text


Time = Annotated[str, AfterValidator(_check_time)]


@dataclass(frozen=True)
class RunRecord:
    """Content of `run.json`."""

    run_id: str
    name: str
    family: str
    spec_hash: str
    created: Time
    """ISO 8601, UTC."""
    updated: Time
    """ISO 8601, UTC: when this record last changed."""
    status: Status = "running"
    step: Natural = 0
    total_steps: Natural = 0
    tracking_uri: str = ""
    message: str = ""
    """Reason of a failure or interruption."""
    parent: str = ""
    """Id of the sweep that a trial belongs to, or of the run that stands for a group of seeds."""
    trial: Annotated[int, Field(ge=-1, lt=1 << 53)] = -1
    """Number of a trial in its sweep, or of a run in its group."""
    trials: Natural = 0
    """Number of trials of a sweep, or of runs of a group of seeds; 0 for a training run."""
    start: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,99}@[0-9]{1,15})?$")] = ""
    """Checkpoint of another run that a fork goes on from, `3f2a1b9c@400`; the file of other runs
    lacks it.
    """
    group: str = ""
    """Id of the runs that differ in the seed alone: of a configuration `SWEEP.NUMBER`, of `ditlab
    train --seeds` that of the run that stands for all of them; the file of other runs lacks it.
    """
    process: dict[str, str] = field(default_factory=dict, hash=False)
    """The process that trains it, or did last: `this_process`."""
    plugins: dict[str, str] = field(default_factory=dict, hash=False)
    """Versions of the other packages that the experiment's parts come from, by name; the file
    lacks the field where there are none."""

    @property
    def is_group(self) -> bool:
        """True for the run that stands for a group of seeds (`ditlab train --seeds`)."""
        return self.trials > 0 and self.group == self.run_id


class UnreadableRecord(UserError):
    """A run's record cannot be read."""

    reason = ""
    is_run = True
    """False for a folder that holds nothing of a run."""


def _unreadable(folder: RunFolder, reason: str, is_run: bool = True) -> UnreadableRecord:
    error = UnreadableRecord(
        f"run {folder.run_id}: {folder.record} cannot be read ({reason}); restore it from a "
        "copy, or delete the run. `ditlab runs` lists the others."
    )
    error.reason = reason
    error.is_run = is_run
    return error


_RECORD: TypeAdapter[RunRecord] = TypeAdapter(RunRecord)


def read_record(folder: RunFolder) -> RunRecord:
    """Read a run's record. Raises UnreadableRecord, a UserError, for a missing or damaged one or
    another format.
    """
    try:
        content = folder.record.read_bytes()
        if folder.path.is_symlink():
            raise _unreadable(folder, "the run's folder is a link; move the folder itself here")
        values = from_json(content, allow_inf_nan=False)
        version = values.get("format") if isinstance(values, dict) else None
        if version != FORMAT:
            reason = f"it is of format {version!r}, and this version of DiTLab reads {FORMAT}"
            raise _unreadable(folder, reason)
        record = _RECORD.validate_json(content, strict=True)
    except FileNotFoundError:
        is_run = folder.path.is_dir() and any(folder.path.iterdir())
        raise _unreadable(folder, "it is missing", is_run) from None
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"]))[:80]
        raise _unreadable(folder, f"{place}: {problem['msg']}") from None
    except OSError as error:
        raise _unreadable(folder, first_line(error)) from None
    except ValueError as error:
        raise _unreadable(folder, f"no JSON: {first_line(error)}") from None
    return replace(record, run_id=folder.run_id)  # a copied folder is a run of its own


@dataclass(frozen=True)
class FoundRun:
    """A run that was found by id, name or prefix."""

    folder: RunFolder
    record: RunRecord
    note: str = ""
    """Message for the user where the newest of several runs of one name was taken."""


class RunList(NamedTuple):
    """Runs of a home."""

    records: list[RunRecord]
    """The newest first."""
    unreadable: dict[str, str]
    """Reason by id of a run whose record cannot be read."""


def create_run(
    home: Home, name: str, *, family: str, spec_hash: str, run_id: str = "", **facts: Any
) -> RunFolder:
    """Make a run's folder and record, with `facts` as further fields. Raises UserError for an
    unwritable home.
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
    now = _now()
    try:
        _write(
            folder,
            RunRecord(
                folder.run_id, name, family, spec_hash, now, now, process=this_process(), **facts
            ),
        )
    except OSError:
        with suppress(OSError):
            folder.path.rmdir()  # a full disk: no run was made
        raise
    return folder


def update_record(folder: RunFolder, **changes: Any) -> RunRecord:
    """Change fields of a run's record, one process of a machine at a time. Raises UserError where
    it cannot be read.
    """
    if "message" in changes:
        changes["message"] = hide(changes["message"])
    if changes.get("status") == "running":
        changes["process"] = this_process()
    # A driver sets the status, a worker the step. The lock is a file open for writing: NFS refuses
    # to lock a folder, or anything that is open for reading only.
    with (folder.path / "run.json.lock").open("ab") as lock:
        take_lock(lock, wait=True)
        record = replace(read_record(folder), **changes, updated=_now())
        _write(folder, record)
    return record


def this_process() -> dict[str, str]:
    """Describe this process, unlike any other: `host`, its `boot`, `pid`, `begun`; `job` of a Ray
    cluster, if any.
    """
    found = {"host": socket.gethostname(), "boot": _boot(), "pid": str(os.getpid())}
    found["begun"] = f"{psutil.Process().create_time():.0f}"
    # Ray's own description of the job that started this process
    with suppress(ValueError, KeyError, TypeError):
        found["job"] = str(
            json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]["job_submission_id"]
        )
    return found


def is_process_there(process: Mapping[str, str]) -> bool | None:
    """Return True if a process of `this_process` still runs, None where it cannot be looked at: on
    another host.
    """
    if process.get("host") != socket.gethostname():
        return None
    if process.get("boot") != _boot():
        return False
    try:
        found = psutil.Process(int(process["pid"]))
        is_same = abs(found.create_time() - float(process["begun"])) < _CLOCK_ERROR
        return is_same and found.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ValueError, KeyError):
        return False


def _boot() -> str:
    """Id of this host's boot; empty where the system has none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def list_runs(home: Home) -> list[RunRecord]:
    """Every run with a readable record, the newest first."""
    return scan_runs(home).records


def scan_runs(home: Home) -> RunList:
    """Read the record of every folder with a file, but hidden ones. Raises UserError where they
    cannot be listed.
    """
    records = []
    unreadable = {}
    try:
        names = [each.name for each in os.scandir(home.runs) if each.is_dir()]
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise UserError(
            f"{home.runs} cannot be listed ({first_line(error)}); put the folder of the runs there."
        ) from None
    for run_id in (name for name in names if not name.startswith(".")):
        try:
            records.append(read_record(home.run(run_id)))
        except UnreadableRecord as error:
            if error.is_run:
                unreadable[run_id] = error.reason
    records.sort(key=lambda record: (record.created, record.run_id), reverse=True)
    return RunList(records, unreadable)


def find_run(home: Home, text: str) -> FoundRun:
    """Find a run by id, name (the newest), or unique prefix, in this order. Raises UserError for
    none or several.
    """
    runs, unreadable = scan_runs(home)
    if text in unreadable:
        raise _unreadable(home.run(text), unreadable[text])
    named = [record for record in runs if record.name == text]
    exact = [record for record in runs if record.run_id == text]
    record = next(iter([*exact, *named]), None) or _of_prefix(home, text, runs)
    note = ""
    if len(named) > 1 and record.run_id != text:
        others = ", ".join(each.run_id for each in named[1:4])
        if len(named) > 4:
            others += ", ..."
        note = (
            f"{len(named)} runs are named '{text}'; taking the newest, {record.run_id} "
            f"(others: {others})"
        )
    return FoundRun(home.run(record.run_id), record, note)


def _of_prefix(home: Home, text: str, runs: Sequence[RunRecord]) -> RunRecord:
    """Return the run whose id begins so. Raises UserError for none or several."""
    matches = [record for record in runs if text and record.run_id.startswith(text)]
    if not matches:
        raise _unknown(home, text, runs)
    if len(matches) > 1:
        listed = ", ".join(f"{record.run_id} ({record.name})" for record in matches[:8])
        raise UserError(f"run '{text}' could be any of {listed}; give more characters of the id.")
    return matches[0]


def _unknown(home: Home, text: str, runs: Sequence[RunRecord]) -> UserError:
    if not runs:
        return UserError(
            f"run '{text}' is unknown: {home.runs} holds no runs; start one with `ditlab train "
            "SPEC`, or set DITLAB_HOME to the home that has it."
        )
    phrase = nearest(
        text, [record.run_id for record in runs] + sorted({record.name for record in runs})
    )
    if len(phrase) > 120:
        phrase = phrase[:110].rsplit(",", 1)[0] + ", ..."
    return UserError(
        f"run '{text}' is unknown under {home.runs} ({phrase}); `ditlab runs` lists them."
    )


def find_training_run(home: Home, text: str) -> FoundRun:
    """Find a run as `find_run` does; raises UserError for a sweep or a group of seeds, naming its
    runs.
    """
    found = find_run(home, text)
    if found.record.trials:
        trial_ids = [
            record.run_id for record in list_runs(home) if record.parent == found.record.run_id
        ]
        num = found.record.trials
        names = ", ".join(trial_ids[:8])
        if found.record.is_group:
            if names:
                runs = f"name one of its runs: {names}"
            else:
                runs = "none of its runs has begun"
            raise UserError(f"run '{text}' is a group of {num} seeds; {runs}.")
        if names:
            trials = f"name one of its trials: {names}"
        else:
            trials = "none of its trials has begun"
        raise UserError(f"run '{text}' is a sweep of {num} trials; {trials}.")
    return found


def find_unfinished(
    home: Home, name: str, spec_hash: str, *, is_group: bool = False
) -> RunFolder | None:
    """Find the newest unfinished run, or group of seeds, of this name and spec hash, for `--resume
    auto`.
    """
    runs = scan_runs(home)
    for remark in record_remarks(runs):
        _log.warning("%s; a run to go on with may be among them", remark.rstrip("."))
    for record in runs.records:
        is_open = record.status not in ("finished", "stopped") and (
            record.is_group if is_group else not record.trials
        )
        if is_open and record.name == name and record.spec_hash == spec_hash:
            return home.run(record.run_id)
    return None


def record_remarks(runs: RunList) -> list[str]:
    """A sentence on records that cannot be read; none where all can."""
    number = len(runs.unreadable)
    if not number:
        return []
    listed = [f"{run_id} ({reason})" for run_id, reason in sorted(runs.unreadable.items())[:3]]
    which = "1 run's run.json" if number == 1 else f"run.json of {number} runs"
    return [f"{which} cannot be read: {', '.join(listed)}{', ...' if number > 3 else ''}."]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _write(folder: RunFolder, record: RunRecord) -> None:
    values = {"format": FORMAT, **asdict(record)}
    for name in ("start", "group", "plugins", "process"):
        if not values[name]:
            del values[name]
    write_durably(folder.record, json.dumps(values, indent=1).encode())

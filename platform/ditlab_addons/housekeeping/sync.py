"""`ditlab runs sync`: what MLflow has not received, sent from the runs' journals; and a home's
MLflow filled again.

Journals are the truth, MLflow is a view of them. Where the home was moved or copied, or the
database is damaged, the old database and its files, with what people wrote there, are kept under
other names. Each step can be done again: after a crash, the next call goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import click

from ditlab.cli import options, output
from ditlab.cli.terminal import escape_line
from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.spec.uris import map_texts
from ditlab.storage.files import (
    encode_json_line,
    is_as_stamped,
    read_json_lines,
    stamped,
    write_durably,
)
from ditlab.tracking.access import access_fault, redact, resolve_tracking_uri
from ditlab.tracking.backend import NotReadyError, RunGoneError, Warn
from ditlab.tracking.mlflow_connection import REFILL, database_damage, is_damage, outage_reason
from ditlab.tracking.records import RunRecord, find_run, record_remarks, scan_runs
from ditlab.tracking.upload import CursorFile, JournalTransfer, num_unsent

SPECS = ("spec.yaml", "sweep.yaml", "report/best.yaml")
"""Files of a run's folder that may name stores and checkpoints of the home by absolute paths."""


@click.command("sync")
@click.argument("which", metavar="[RUN]...", nargs=-1)
@click.option(
    "--tracking", metavar="URI", help="MLflow address to send to instead of the run's own."
)
@options.as_json
def sync_command(which: tuple[str, ...], tracking: str | None, as_json: bool) -> None:
    """Send records that MLflow has not received, of the runs named or of all.

    A DITLAB_HOME that was moved or copied, or whose MLflow database is damaged, gets a new
    database, filled from all runs' journals. The old one, with notes and tags that people wrote
    there, is kept under another name.
    """
    from ditlab.cli.progress import ProgressBars

    home = Home.from_environment()
    filled = None
    reason = "" if tracking else refill_reason(home)
    if reason:
        which = ()  # a new database is filled from all runs
    records = _records_of(home, which)
    num = f"{len(records):,} run{'s' * (len(records) > 1)}"
    with ProgressBars(f"sending what MLflow has missed of {num}") as progress:
        if reason:
            filled, results = refill(home, records, reason, progress.say)
        else:
            results = sync_runs(records, home, tracking, warn=progress.say)
    if filled:
        output.print_line(escape_line(filled.sentence()), as_json)
    _report_sent(results, is_each=bool(which))
    if not any(result.left for result in results):
        output.hint(as_json, "ui")
    synced = [{"run_id": r.run_id, "sent": r.sent, "left": r.left} for r in results]
    output.emit({"synced": synced, "refilled": filled and asdict(filled)}, as_json)


def _records_of(home: Home, which: Sequence[str]) -> Sequence[RunRecord]:
    """Records of the runs named, or of all."""
    if which:
        found = [find_run(home, text) for text in which]
        remarks = [one.note for one in found if one.note]
        records = [one.record for one in found]
    else:
        scanned = scan_runs(home)
        remarks = record_remarks(scanned)
        records = scanned.records
    for remark in remarks:
        output.say(remark)
    return records


def _report_sent(results: Sequence[SyncResult], is_each: bool) -> None:
    """Say what was sent and what is left, with `is_each` also where that is nothing. Raises
    UserError for a fault.
    """
    for result in results:
        if result.sent or result.left or is_each:
            output.say(f"{result.run_id}: records sent: {result.sent:,}, left: {result.left:,}")
    faults = dict.fromkeys(result.fault for result in results if result.fault)
    if faults:
        raise UserError("\n".join(faults))


@dataclass(frozen=True)
class SyncResult:
    """Result for one run's journals."""

    run_id: str
    sent: int
    """Records that arrived now."""
    left: int
    """Records that have not arrived."""
    fault: str = ""
    """Reason why records are left, and the remedy."""


def sync_runs(
    records: Iterable[RunRecord], home: Home, uri: str | None = None, *, warn: Warn
) -> list[SyncResult]:
    """Send what is left of each run, to its own address or to `uri`. Raises UserError for a
    malformed one.
    """
    results = []
    faults = dict[str, str]()
    for record in records:
        address = resolve_tracking_uri(uri or record.tracking_uri or None, home)
        folder = home.run(record.run_id)
        reason = journal_fault(folder)
        if reason:
            results.append(SyncResult(record.run_id, 0, 0, reason))
            continue
        left = before = num_unsent(folder, address, home)
        if before and address not in faults and not address.startswith("sqlite:"):
            faults[address] = access_fault(address, "start that server and sync again")
        fault = faults.get(address, "")
        if before and not fault:
            try:
                sync(folder, address, home, warn)
            except (RunGoneError, NotReadyError) as error:
                warn(f"{folder.run_id}: {error}")
            except Exception as error:
                # MLflow's client and its database drivers raise errors of a dozen kinds; each run
                # is tried on its own.
                reason = outage_reason(error)
                remedy = ""
                if address.startswith("sqlite:") and is_damage(reason):
                    remedy = f"; {REFILL}"
                fault = (
                    f"tracking.uri={redact(address)} takes nothing of run {folder.run_id} "
                    f"({reason}){remedy}."
                )
            left = num_unsent(folder, address, home)
        results.append(SyncResult(record.run_id, max(0, before - left), left, fault))
    return results


def journal_fault(folder: RunFolder) -> str:
    """Reason why one of a run's journals cannot be read, and the remedy; empty where all can."""
    for journal in map(folder.node_journal, folder.journal_nodes()):
        try:
            journal.open("rb").close()
        except FileNotFoundError:
            continue
        except OSError as error:
            return (
                f"{journal} cannot be read ({first_line(error)}); bring the file back, or "
                "delete the run."
            )
    return ""


def sync(folder: RunFolder, uri: str | None, home: Home, warn: Warn) -> int:
    """Send what is left of one run, unless another process does; returns how many records have not
    arrived.
    """
    left = 0
    for node in folder.journal_nodes():
        transfer = JournalTransfer(folder, resolve_tracking_uri(uri, home), home, warn, node)
        try:
            transfer.send_pending(retry_files=True)
            left += transfer.num_left()
        finally:
            transfer.close()
    return left


@dataclass(frozen=True)
class Refill:
    """A home's MLflow, filled again."""

    reason: str
    """Why, as `is a copy of /data/runs`."""
    database: str
    """Name of the old database in the home; empty where there was none."""
    artifacts: str
    """Name of the folder of the old database's files; empty where there was none."""

    def sentence(self) -> str:
        """Line for people."""
        kept = " and ".join(filter(None, [self.database, self.artifacts]))
        old = f"; the old database and its files are {kept}" if kept else ""
        return f"MLflow was filled again from the runs' journals, as the home {self.reason}{old}."


def refill_reason(home: Home) -> str:
    """Return why a home's MLflow has to be filled again; empty where its database is whole and of
    this folder.
    """
    reason = home.unsettled()
    if reason:
        return reason
    damage = database_damage(home.mlflow_database)
    return f"has a damaged database ({damage})" if damage else ""


def refill(
    home: Home, records: Sequence[RunRecord], reason: str, warn: Warn
) -> tuple[Refill, list[SyncResult]]:
    """Fill MLflow again with `records`, all runs of the home, and settle the home where it is.

    Raises UserError while a process sends one of the journals: it would go on writing into the old
    database.
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
    # A run is nested under its parent where MLflow has that one; both may be of one second.
    parents_first = sorted(records, key=lambda record: (bool(record.parent), record.created))
    results = sync_runs(parents_first, home, warn=warn)
    own = {
        record.run_id
        for record in records
        if resolve_tracking_uri(record.tracking_uri or None, home) == address
    }
    if not any(result.left and result.fault for result in results if result.run_id in own):
        home.write_marker()
    return Refill(reason, database, artifacts), results


def _refuse_sender(folder: RunFolder, address: str) -> None:
    """Raise UserError while a process sends the journal of a run."""
    cursor = CursorFile(folder, address)
    if not cursor.acquire():
        raise UserError(
            f"MLflow cannot be filled again while a process sends run {folder.run_id} to it; "
            "wait for its end, or stop it."
        )
    cursor.release()


def _set_aside(home: Home) -> tuple[str, str]:
    """Give the old database and its files other names, noted in the home's marker first; empty for
    none.
    """
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
    """Put the home's present folder in the place of the former one, in the run's specs and list of
    trials.
    """
    # A whole path, or the path of a file:// URI: the former `/runs` is not the end of `/data/runs`.
    pattern = re.compile(rf"(?:(?<=://)|(?<![\w.~/-])){re.escape(former)}(?![\w.~-])")

    def moved(_: str, text: str) -> str:
        return pattern.sub(lambda _: present, text)

    for path in (folder.path / name for name in SPECS):
        try:
            content = path.read_bytes()
            text = moved("", content.decode())
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
    records = map_texts(lines.records, moved)
    if records != lines.records and not lines.num_damaged:
        write_durably(trials, b"".join(map(encode_json_line, records)))

"""Upload, now, of the records that MLflow has not received of some runs: `ditlab runs sync`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.storage.plain_files import check_plain
from ditlab.tracking.access import check_access, check_reachable, outage_reason
from ditlab.tracking.address import redact, resolve_tracking_uri, sqlite_path
from ditlab.tracking.database_damage import REFILL, check_database, is_damage
from ditlab.tracking.journal.reader import LARGEST_JOURNAL
from ditlab.tracking.relocation.places import check_place
from ditlab.tracking.run_record import RunRecord
from ditlab.tracking.upload.mlflow_errors import RunGoneError
from ditlab.tracking.upload.sender import Warn
from ditlab.tracking.upload.transfer import JournalTransfer, NotReadyError

_log = logging.getLogger("ditlab.tracking")


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


def sync_runs(records: Iterable[RunRecord], home: Home, uri: str | None = None, *, warn: Warn) -> list[SyncResult]:
    """Send what is left of each run, to its own address or to `uri`.

    An address that does not answer is tried once. Raises UserError for a malformed one, and for a home that was moved.
    """
    records = list(records)
    if uri is None:
        check_place(home, [record.tracking_uri for record in records])
    results, faults = [], dict[str, str | None]()
    for record in records:
        address = resolve_tracking_uri(uri or record.tracking_uri or None, home)
        folder = home.run(record.run_id)
        if reason := _journal_fault(folder):
            results.append(SyncResult(record.run_id, 0, 0, reason))
            continue
        left = _num_left(folder, address, home, warn)
        if address not in faults and (left or address.startswith("sqlite:")):
            faults[address] = _fault(address, warn)
        if fault := faults.get(address):
            results.append(SyncResult(record.run_id, 0, left, fault))
        else:
            results.append(_sync(folder, address, home, warn, left))
    return results


def num_unsent(folder: RunFolder, address: str, home: Home) -> int:
    """Number of a run's records that an address has not received. Contacts nothing."""
    return _num_left(folder, address, home, _log.debug)


def _journal_fault(folder: RunFolder) -> str:
    """Reason why one of a run's journals cannot be read, and the remedy; empty where all can."""
    for journal in map(folder.node_journal, folder.journal_nodes()):
        try:
            check_plain(journal, LARGEST_JOURNAL)
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{journal} cannot be read ({first_line(error)}); bring the file back, or delete the run."
    return ""


def _fault(address: str, warn: Warn) -> str | None:
    """Reason why an address takes nothing, and the remedy; None where it answers.

    `warn` gets a sentence on a database of which parts are damaged.
    """
    if address.startswith("sqlite:"):
        try:
            if damage := check_database(sqlite_path(address)):
                warn(damage)
        except UserError as error:
            return str(error)
        return None
    if reason := check_reachable(address):
        return f"tracking.uri={redact(address)} does not answer ({reason}); start that server and sync again."
    return f"{refusal}, and sync again." if (refusal := check_access(address)) else None


def sync(folder: RunFolder, uri: str | None, home: Home, warn: Warn) -> int:
    """Send what is left of one run, node by node; returns how many records have not arrived.

    Raises what MLflow raises when it does not answer. A journal that a running process sends is left to it.
    """
    address = resolve_tracking_uri(uri, home)
    left = 0
    for transfer in _transfers(folder, address, home, warn):
        try:
            transfer.send_pending(retry_files=True)
            left += transfer.num_left()
        finally:
            transfer.close()
    return left


def _sync(folder: RunFolder, address: str, home: Home, warn: Warn, before: int) -> SyncResult:
    fault = ""
    try:
        sync(folder, address, home, warn)
    except (RunGoneError, NotReadyError) as error:
        warn(f"{folder.run_id}: {error}")
    except Exception as error:
        # MLflow's client and its database drivers raise errors of a dozen kinds; each run is tried on its own.
        mlflow_run_id = next((each.cursor.mlflow_run_id for each in _transfers(folder, address, home, warn)), None)
        reason = outage_reason(error, address, mlflow_run_id)
        fault = f"tracking.uri={redact(address)} takes nothing of run {folder.run_id} ({reason})."
        if address.startswith("sqlite:") and is_damage(reason):
            fault = f"{sqlite_path(address)} is damaged ({reason}); {REFILL}."
    left = _num_left(folder, address, home, warn)
    return SyncResult(folder.run_id, max(0, before - left), left, fault)


def _num_left(folder: RunFolder, address: str, home: Home, warn: Warn) -> int:
    return sum(transfer.num_left() for transfer in _transfers(folder, address, home, warn))


def _transfers(folder: RunFolder, address: str, home: Home, warn: Warn) -> list[JournalTransfer]:
    """One transfer a journal, node 0 first."""
    return [JournalTransfer(folder, address, home, warn, node) for node in folder.journal_nodes()]

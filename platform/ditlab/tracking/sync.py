"""Sending of what MLflow has not received of some runs (`ditlab runs sync`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from ditlab.errors import first_line
from ditlab.home import Home, RunFolder
from ditlab.storage.plain_files import check_plain
from ditlab.tracking.access import access_fault, outage_reason, redact, resolve_tracking_uri
from ditlab.tracking.backend import NotReadyError, RunGoneError, Warn
from ditlab.tracking.journal import LARGEST_JOURNAL
from ditlab.tracking.local_database import REFILL, is_damage
from ditlab.tracking.records import RunRecord
from ditlab.tracking.upload import JournalTransfer

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

    An address that does not answer is tried once. Raises UserError for a malformed one.
    """
    results, faults = [], dict[str, str]()
    for record in records:
        address = resolve_tracking_uri(uri or record.tracking_uri or None, home)
        folder = home.run(record.run_id)
        if reason := journal_fault(folder):
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
                # MLflow's client and its database drivers raise errors of a dozen kinds; each run is tried on its own.
                reason = outage_reason(error)
                remedy = f"; {REFILL}" if address.startswith("sqlite:") and is_damage(reason) else ""
                fault = f"tracking.uri={redact(address)} takes nothing of run {folder.run_id} ({reason}){remedy}."
            left = num_unsent(folder, address, home)
        results.append(SyncResult(record.run_id, max(0, before - left), left, fault))
    return results


def num_unsent(folder: RunFolder, address: str, home: Home) -> int:
    """Number of a run's records that an address has not received. Contacts nothing."""
    nodes = folder.journal_nodes()
    return sum(JournalTransfer(folder, address, home, _log.debug, node).num_left() for node in nodes)


def journal_fault(folder: RunFolder) -> str:
    """Reason why one of a run's journals cannot be read, and the remedy; empty where all can."""
    for journal in map(folder.node_journal, folder.journal_nodes()):
        try:
            check_plain(journal, LARGEST_JOURNAL)
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{journal} cannot be read ({first_line(error)}); bring the file back, or delete the run."
    return ""


def sync(folder: RunFolder, uri: str | None, home: Home, warn: Warn) -> int:
    """Send what is left of one run, node by node; returns how many records have not arrived.

    Raises what MLflow raises when it does not answer. A journal that a running process sends is left to it.
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

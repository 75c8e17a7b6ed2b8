"""Sends at once what MLflow has not received of some runs: `ditlab runs sync`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ditlab.errors import first_line
from ditlab.home import Home, RunFolder
from ditlab.tracking.access import check_admitted
from ditlab.tracking.address import check_reachable, redact, resolve_tracking_uri
from ditlab.tracking.records import RunRecord
from ditlab.tracking.upload.client import RunGoneError
from ditlab.tracking.upload.transfer import JournalTransfer, NotReadyError, Warn


@dataclass(frozen=True)
class SyncResult:
    """What became of one run's journals."""

    run_id: str
    sent: int
    """Records that arrived now."""
    left: int
    """Records that have not arrived."""
    fault: str = ""
    """Why not, and what to do."""


def sync_runs(records: Iterable[RunRecord], home: Home, uri: str | None = None, *, warn: Warn) -> list[SyncResult]:
    """Send what is left of each run, to its own address or to `uri`.

    An address that does not answer is asked once. Raises UserError for a malformed one.
    """
    results, silent = [], dict[str, str | None]()
    for record in records:
        address = resolve_tracking_uri(uri or record.tracking_uri or None, home)
        folder = home.run(record.run_id)
        left = _left(folder, address, home, warn)
        if left and address not in silent:
            silent[address] = _fault(address)
        if left and (fault := silent[address]):
            results.append(SyncResult(record.run_id, 0, left, fault))
        else:
            results.append(_sync(folder, address, home, warn, left))
    return results


def _fault(address: str) -> str | None:
    """Why nothing can be sent to an address, and what to do."""
    if address.startswith("sqlite:"):
        return None
    if reason := check_reachable(address):
        return f"tracking.uri={redact(address)} does not answer ({reason}); start that server and sync again."
    return f"{refusal}, and sync again." if (refusal := check_admitted(address)) else None


def sync(folder: RunFolder, uri: str | None, home: Home, warn: Warn) -> int:
    """Send what is left of one run, node by node; returns how many records have not arrived.

    Raises what MLflow raises when it does not answer. A journal that a running process sends is left to it.
    """
    address = resolve_tracking_uri(uri, home)
    left = 0
    for replay in _replays(folder, address, home, warn):
        try:
            replay.pump(retry_files=True)
            left += replay.left()
        finally:
            replay.close()
    return left


def _sync(folder: RunFolder, address: str, home: Home, warn: Warn, before: int) -> SyncResult:
    fault = ""
    try:
        sync(folder, address, home, warn)
    except (RunGoneError, NotReadyError) as error:
        warn(f"{folder.run_id}: {error}")
    except Exception as error:
        # MLflow's client and its database drivers raise errors of a dozen kinds; each run is tried on its own.
        fault = f"tracking.uri={redact(address)} takes nothing of run {folder.run_id} ({first_line(error)})."
    left = _left(folder, address, home, warn)
    return SyncResult(folder.run_id, max(0, before - left), left, fault)


def _left(folder: RunFolder, address: str, home: Home, warn: Warn) -> int:
    return sum(replay.left() for replay in _replays(folder, address, home, warn))


def _replays(folder: RunFolder, address: str, home: Home, warn: Warn) -> list[JournalTransfer]:
    names = (path.stem.rpartition("node-")[2] for path in folder.path.glob("journal.node-*.jsonl"))
    nodes = [0, *sorted(int(name) for name in names if name.isdigit())]
    return [JournalTransfer(folder, address, home, warn, node) for node in nodes]

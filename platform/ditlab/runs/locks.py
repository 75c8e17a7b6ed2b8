"""File locks: one process trains a run at a time, and one worker writes its journal; whether it is
still there.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from ditlab.checkpoints.manifest import committed
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home, RunFolder
from ditlab.runs.listing import run_rows
from ditlab.storage.files import take_lock
from ditlab.storage.local import LocalFiles
from ditlab.tracking.records import RunRecord, is_process_there

# seconds: a file server releases a lost node's locks after a minute or two, 90 s on Linux
LOCK_LEASE = 120.0
# seconds for a worker of an earlier launch to end, its node's lease included
JOURNAL_TIMEOUT = 180.0
WARN_AFTER = 5.0  # seconds of waiting that need no warning

Warn = Callable[[str], None]


class RunningState(NamedTuple):
    """State of a run whose record says `running`, as far as it can be seen from here."""

    state: Literal["running", "lost", "unseen"]
    """Lost: its process ended and recorded no end. Unseen: it is a process of another host."""
    text: str


def lock_run(
    folder: RunFolder, timeout: float = 0.0, warn: Warn | None = None
) -> AbstractContextManager[None]:
    """Hold the run's lock, as far as the file system shares locks; it ends with this process, even
    when it is killed.

    Raises UserError where another process still trains the run after `timeout` seconds.
    """
    waiting = (
        f"run {folder.run_id} is locked by another process, or by a lost node; waiting up to "
        f"{timeout:.0f} s."
    )
    refusal = UserError(
        f"run {folder.run_id} is being trained by another process; stop that one first, or "
        "start a new run without --resume."
    )
    return _locked(folder.path / "run.lock", timeout, waiting, warn, refusal)


def lock_journal(
    folder: RunFolder, node: int = 0, timeout: float = JOURNAL_TIMEOUT, warn: Warn | None = None
) -> AbstractContextManager[None]:
    """Hold the lock of one node's journal: a worker whose launcher was killed lives on for some
    seconds.

    On NFS a lost node's lock lasts a minute or two. Raises RunFailed where one still writes after
    `timeout` seconds.
    """
    journal = folder.node_journal(node)
    waiting = (
        f"a worker of an earlier launch still writes {journal}; waiting up to {timeout:.0f} s "
        "for its end."
    )
    refusal = f"another worker still writes {journal} after {timeout:.0f} s; end that process."
    return _locked(
        journal.with_suffix(".lock"), timeout, waiting, warn, RunFailed(refusal, kind="lost_worker")
    )


@contextmanager
def _locked(
    path: Path, timeout: float, waiting: str, warn: Warn | None, refusal: Exception
) -> Iterator[None]:
    """Hold a lock. Raises `refusal` after `timeout` seconds."""
    start = time.monotonic()
    with path.open("ab") as file:
        while not take_lock(file):
            waited = time.monotonic() - start
            if waited >= timeout:
                raise refusal
            if warn and waited > WARN_AFTER:
                warn(waiting)
                warn = None
            time.sleep(0.1)
        yield


def running_state(folder: RunFolder, record: RunRecord) -> RunningState:
    """Find out whether the process of a run that is recorded as running is there. Reads only."""
    process = record.process
    is_there = is_process_there(process)
    if is_there or is_locked(folder):
        return RunningState("running", "a process trains it now")
    if is_there is None:
        where = f"host {process['host']}"
        if "job" in process:
            where = f"Ray job {process['job']} on {where}"
        return RunningState(
            "unseen",
            f"begun as process {process.get('pid')} of {where}, which cannot be seen from here",
        )
    latest = run_rows(Home(folder.path.parents[1]), [record]).rows[0]["step"]
    saved = record.step
    # checkpoints at a URI are listed by `runs show`: the record has the last one
    with suppress(OSError, UserError):
        saved = max(
            [saved, *committed(LocalFiles(folder.checkpoints, "checkpoint.storage").listing())]
        )
    if saved:
        where = f"at step {max(latest, saved):,}, checkpoint {saved:,}"
    else:
        where = f"at step {latest:,}, no checkpoint"
    return RunningState("lost", where)


def is_locked(folder: RunFolder) -> bool:
    """Return True while another process holds the run's lock; makes no file."""
    try:
        with (folder.path / "run.lock").open("r+b") as file:
            return not take_lock(file)
    except OSError:
        return False

"""One process trains a run at a time, and one worker writes its journal."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ditlab.errors import RunFailed, UserError
from ditlab.home import RunFolder
from ditlab.tracking.journal.journal import journal_path

LEASE = 120.0  # seconds: a file server gives a lost node's locks back after a minute or two, 90 s on Linux
QUIET = 5.0  # seconds of waiting of which nobody hears

Warn = Callable[[str], None]


@contextmanager
def claimed(folder: RunFolder, patience: float = 0.0, warn: Warn | None = None) -> Iterator[None]:
    """Inside, the run is this process's; a killed process's claim ends with it.

    Raises UserError where another process still trains it after `patience` seconds: two that write the same checkpoints
    would spoil them. Other machines are seen as far as the file system shares its locks.
    """
    waiting = f"run {folder.run_id} is claimed by another process, or by a lost node; waiting up to {patience:.0f} s."
    with _locked(folder.path / "run.lock", patience, waiting, warn) as is_mine:
        if not is_mine:
            raise UserError(
                f"run {folder.run_id} is being trained by another process; stop that one first, or start a new run "
                "without --resume."
            )
        yield


@contextmanager
def writing(folder: RunFolder, node: int = 0, patience: float = 180.0, warn: Warn | None = None) -> Iterator[None]:
    """Inside, this worker is the one that writes the run's journal, or that of another node.

    A worker whose launcher was killed lives on for some seconds: what it logs after its successor has read the journal
    would be logged twice. Waits for its end, up to `patience` seconds: a lock on NFS outlives a lost node by a minute
    or two. Raises RunFailed where it does not end.
    """
    journal = journal_path(folder, node)
    waiting = f"a worker of an earlier launch still writes {journal}; waiting up to {patience:.0f} s for its end."
    with _locked(journal.with_suffix(".lock"), patience, waiting, warn) as is_mine:
        if not is_mine:
            raise RunFailed(
                f"another worker still writes {journal} after {patience:.0f} s; end that process.",
                kind="lost_worker",
            )
        yield


@contextmanager
def _locked(path: Path, patience: float, waiting: str, warn: Warn | None) -> Iterator[bool]:
    """Whether the lock was to be had within some seconds; a file system without locks always gives it. `warn` hears
    that it is waited for."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    begun = time.monotonic()
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if (waited := time.monotonic() - begun) < patience:
                    if warn and waited > QUIET:
                        warn(waiting)
                        warn = None
                    time.sleep(0.1)
                    continue
                yield False
                return
            except OSError:
                pass
            yield True
            return
    finally:
        os.close(descriptor)

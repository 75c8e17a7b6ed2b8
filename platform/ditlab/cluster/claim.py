"""One process trains a run at a time, and one worker writes its journal."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ditlab.errors import RunFailed, UserError
from ditlab.home import RunFolder


@contextmanager
def claimed(folder: RunFolder, patience: float = 0.0) -> Iterator[None]:
    """Inside, the run is this process's; a killed process's claim ends with it.

    Raises UserError where another process still trains it after `patience` seconds: two that write the same checkpoints
    would spoil them. Other machines are seen as far as the file system shares its locks.
    """
    with _locked(folder.path / "run.lock", patience) as is_mine:
        if not is_mine:
            raise UserError(
                f"run {folder.run_id} is being trained by another process; stop that one first, or start a new run "
                "without --resume."
            )
        yield


@contextmanager
def writing(folder: RunFolder, patience: float = 180.0) -> Iterator[None]:
    """Inside, this worker is the one that writes the run's journal.

    A worker whose launcher was killed lives on for some seconds: what it logs after its successor has read the journal
    would be logged twice. Waits for its end, up to `patience` seconds: a lock on NFS outlives a lost node by a minute
    or two. Raises RunFailed where it does not end.
    """
    with _locked(folder.path / "journal.lock", patience) as is_mine:
        if not is_mine:
            raise RunFailed(
                f"another worker still writes {folder.journal} after {patience:.0f} s; end that process.",
                kind="lost_worker",
            )
        yield


@contextmanager
def _locked(path: Path, patience: float) -> Iterator[bool]:
    """Whether the lock was to be had within some seconds; a file system without locks always gives it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
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

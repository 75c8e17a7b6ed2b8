"""One process trains a run at a time, and one worker writes its journal."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ditlab.errors import RunFailed, UserError
from ditlab.home import RunFolder


@contextmanager
def claimed(folder: RunFolder) -> Iterator[None]:
    """Inside, the run is this process's; a killed process's claim ends with it.

    Raises UserError where another process trains it: two that write the same checkpoints would spoil them. Other
    machines are seen as far as the file system shares its locks.
    """
    descriptor = os.open(folder.path / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"run {folder.run_id} is being trained by another process; stop that one first, or start a new run "
                "without --resume."
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)


@contextmanager
def writing(folder: RunFolder, patience: float = 180.0) -> Iterator[None]:
    """Inside, this worker is the one that writes the run's journal.

    A worker whose launcher was killed lives on for some seconds: what it logs after its successor has read the journal
    would be logged twice. Waits for its end, up to `patience` seconds: a lock on NFS outlives a lost node by a minute
    or two. Raises RunFailed where it does not end.
    """
    descriptor = os.open(folder.path / "journal.lock", os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RunFailed(
                        f"another worker still writes {folder.journal} after {patience:.0f} s; end that process.",
                        kind="lost_worker",
                    ) from None
                time.sleep(0.1)
            except OSError:
                break  # a file system without locks
        yield
    finally:
        os.close(descriptor)

"""One process trains a run at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ditlab.errors import UserError
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

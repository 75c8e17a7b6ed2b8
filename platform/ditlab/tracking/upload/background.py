"""Sends a journal to MLflow in a thread beside the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ditlab.errors import first_line
from ditlab.home import Home, RunFolder
from ditlab.tracking.access import refusal
from ditlab.tracking.address import redact
from ditlab.tracking.upload.client import RunGoneError, denial
from ditlab.tracking.upload.transfer import JournalTransfer, NotReadyError, Warn

_POLL_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 60.0


class BackgroundUploader:
    """A thread that tails a journal. Whatever MLflow does, neither the caller nor the journal notices."""

    def __init__(self, folder: RunFolder, uri: str, home: Home, warn: Warn, node: int, sync: Callable[[], int]) -> None:
        """`sync` is the journal's: it returns how many of its bytes are on the disk, all of them if it can."""
        self._replay = JournalTransfer(folder, uri, home, warn, node, sync)
        self._warn = warn
        self._uri = redact(uri)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ditlab-uploader", daemon=True)
        self._until: float | None = None
        self._outage = False

    def start(self) -> None:
        self._thread.start()

    @property
    def mlflow_run_id(self) -> str | None:
        """MLflow's id of this run, once it has been reached."""
        return self._replay.cursor.mlflow_run_id

    def close(self, timeout: float) -> int:
        """Send what is left for up to `timeout` seconds; returns how many records have not arrived."""
        self._until = time.monotonic() + timeout
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return self._replay.left()

    def _run(self) -> None:
        backoff = _POLL_SECONDS
        last_retry = time.monotonic()
        try:
            while True:
                closing = self._stop.is_set()
                retry = closing or time.monotonic() - last_retry > _LONGEST_BACKOFF_SECONDS
                try:
                    self._replay.pump(self._until, retry_files=retry)
                    last_retry = time.monotonic() if retry else last_retry
                    backoff = _POLL_SECONDS
                    self._outage = False
                    if closing and (self._is_late() or self._replay.is_caught_up()):
                        return
                except NotReadyError:
                    # The journal is closed by now: what node 0 misses in it will not come any more.
                    if closing and (self._is_late() or self._replay.node == 0):
                        return
                except RunGoneError as error:
                    self._warn(f"{error}; everything stays in {self._replay.path}")
                    return
                except Exception as error:
                    # Whatever it is, training must not learn of it; the next attempt may do better.
                    self._tell(error)
                    if closing:
                        return
                    backoff = min(2 * backoff, _LONGEST_BACKOFF_SECONDS)
                self._stop.wait(backoff) if not closing else time.sleep(0.1)
        finally:
            self._replay.close()

    def _is_late(self) -> bool:
        return self._until is not None and time.monotonic() > self._until

    def _tell(self, error: Exception) -> None:
        """One line an outage."""
        if not self._outage:
            later = f"training goes on, metrics wait in {self._replay.path}"
            if sentence := refusal(self._uri, denial(error)):
                self._warn(f"{sentence}; {later}")
            else:
                self._warn(f"MLflow at {self._uri} takes nothing ({first_line(error)}); {later}")
        self._outage = True

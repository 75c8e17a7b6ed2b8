"""Upload of a journal to MLflow in a thread beside the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ditlab.home import Home, RunFolder
from ditlab.tracking.access import outage_reason, refusal_message
from ditlab.tracking.address import redact
from ditlab.tracking.beginning import Beginning
from ditlab.tracking.upload.mlflow_errors import RunGoneError, denial_status
from ditlab.tracking.upload.sender import Warn
from ditlab.tracking.upload.transfer import JournalTransfer, NotReadyError

_POLL_INTERVAL = 1.0  # seconds
_LONGEST_BACKOFF = 60.0  # seconds


class BackgroundUploader:
    """A thread that sends a journal as it grows; MLflow's errors and delays affect neither caller nor journal."""

    def __init__(
        self, folder: RunFolder, uri: str, home: Home, warn: Warn, node: int, sync: Callable[[], int], begin: Beginning
    ) -> None:
        """`sync` is the journal's: it returns how many of its bytes are on the disk, all of them if it can.

        `begin` holds the first upload back.
        """
        self._transfer = JournalTransfer(folder, uri, home, warn, node, sync)
        self._warn = warn
        self._address, self._uri = uri, redact(uri)
        self._stop, self._begin = threading.Event(), begin
        self._thread = threading.Thread(target=self._run, name="ditlab-uploader", daemon=True)
        self._until: float | None = None
        self._is_outage = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def mlflow_run_id(self) -> str | None:
        """MLflow's id of this run, once it has been reached."""
        return self._transfer.cursor.mlflow_run_id

    def close(self, timeout: float) -> int:
        """Send what is left for up to `timeout` seconds; returns how many records have not arrived."""
        self._until = time.monotonic() + timeout
        self._stop.set()
        self._begin.now()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return self._transfer.num_left()

    def _run(self) -> None:
        self._begin.wait()
        backoff = _POLL_INTERVAL
        last_retry = time.monotonic()
        try:
            while True:
                closing = self._stop.is_set()
                retry = closing or time.monotonic() - last_retry > _LONGEST_BACKOFF
                try:
                    self._transfer.send_pending(self._until, retry_files=retry)
                    last_retry = time.monotonic() if retry else last_retry
                    backoff = _POLL_INTERVAL
                    self._is_outage = False
                    if closing and (self._is_late() or self._transfer.is_caught_up()):
                        return
                except NotReadyError:
                    # The journal is closed by now: a start record that node 0 misses in it will not come any more.
                    if closing and (self._is_late() or self._transfer.node == 0):
                        return
                except RunGoneError as error:
                    self._warn(f"{error}; everything stays in {self._transfer.path}")
                    return
                except Exception as error:
                    # No error may reach the training, and the next attempt may succeed.
                    self._warn_of_outage(error)
                    if closing:
                        return
                    backoff = min(2 * backoff, _LONGEST_BACKOFF)
                self._stop.wait(backoff) if not closing else time.sleep(0.1)
        finally:
            self._transfer.close()

    def _is_late(self) -> bool:
        return self._until is not None and time.monotonic() > self._until

    def _warn_of_outage(self, error: Exception) -> None:
        """Warn once an outage."""
        if not self._is_outage:
            later = f"training goes on, metrics wait in {self._transfer.path}"
            if sentence := refusal_message(self._uri, denial_status(error)):
                self._warn(f"{sentence}; {later}")
            else:
                reason = outage_reason(error, self._address, self.mlflow_run_id)
                self._warn(f"MLflow at {self._uri} takes nothing ({reason}); {later}")
        self._is_outage = True

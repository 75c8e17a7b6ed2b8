"""Pauses and patience of requests to a store that does not answer."""

import os
import random
import time

from ditlab.errors import UserError

STORAGE_WAIT = 300.0
"""Seconds for which a store that does not answer is asked again: `DITLAB_STORAGE_WAIT`."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds between two attempts: each pause is twice the one before, and drawn from its upper half."""


class Trouble:
    """Failed attempts to fetch one block."""

    def __init__(self, wait: float) -> None:
        """Begin without a failure; attempts are to end `wait` seconds after the first one."""
        self.num, self.reason, self._since, self._wait = 0, "", 0.0, wait
        self.content: bytes | None = None
        """Altered content of the latest attempt."""

    @property
    def seconds(self) -> float:
        """Seconds since the first failure."""
        return time.monotonic() - self._since

    @property
    def is_over(self) -> bool:
        """True once there is to be no other attempt."""
        return self.num > 0 and self.seconds > self._wait

    def note(self, reason: str, content: bytes | None = None) -> None:
        """Note a failure."""
        self._since = self._since or time.monotonic()
        self.num, self.reason, self.content = self.num + 1, reason, content

    def pause(self) -> float:
        """Seconds before the next attempt."""
        longest = min(FIRST_PAUSE * 2 ** min(self.num - 1, 20), LONGEST_PAUSE, max(FIRST_PAUSE, self._wait / 5))
        return longest * random.uniform(0.5, 1.0)


def storage_wait() -> float:
    """Seconds for which a store that does not answer is asked again. Raises UserError for a text that is no number."""
    text = os.environ.get("DITLAB_STORAGE_WAIT", "")
    try:
        found = float(text or STORAGE_WAIT)
        if not 0 <= found < float("inf"):
            raise ValueError
    except ValueError:
        raise UserError(f"DITLAB_STORAGE_WAIT={text} is no number of seconds; write 300, or 0.") from None
    return found

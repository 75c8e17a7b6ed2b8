"""The moment at which tracking's threads begin their work beside a training."""

import threading

_LONGEST = 10.0  # seconds: where the first step takes longer than that, MLflow shows the run before


class Beginning:
    """Gate of threads, open from the start unless it `is_held`."""

    def __init__(self, is_held: bool = False) -> None:
        self._event = threading.Event()
        if not is_held:
            self._event.set()

    def now(self) -> None:
        """Open the gate."""
        self._event.set()

    def wait(self) -> None:
        """Wait until the gate is open, 10 seconds at most."""
        self._event.wait(_LONGEST)

"""Progress of work that takes a while: the callback through which a function reports it."""

from typing import Protocol


class Progress(Protocol):
    """Callback that receives progress, as often as it changes."""

    def __call__(self, what: str, done: int, total: int | None, unit: str = "bytes") -> None:
        """Report that `done` of `total` (None: unknown) units are done; `unit` in the plural:
        `samples`. An empty `unit` reports a stage that counts nothing."""
        ...


def ignore(*_: object) -> None:
    """Ignore all arguments."""


def ignore_progress(what: str, done: int, total: int | None, unit: str = "bytes") -> None:
    """Ignore a progress report."""

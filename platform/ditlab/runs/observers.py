"""Observers of a run or a sweep in the process that leads it, and the moments of which they are
told.

Those of add-ons are described in `ditlab.parts.Parts.run_observers` and `sweep_observers`. What
workers do at each step is observed by hooks (`ditlab.training.hooks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from ditlab.errors import first_line
from ditlab.parts import load_part, places

if TYPE_CHECKING:
    # imports torch, which a sweep's observers need not
    from ditlab.training.reporting import TrainingProgress


EndStatus = Literal["finished", "failed", "interrupted", "stopped"]


@dataclass(frozen=True)
class RunEnd:
    """End of a run or a sweep in this process."""

    status: EndStatus
    reason: str = ""
    """Clause on why it did not finish, or on the budget that ended it."""
    failure: str = ""
    """Kind of the failure (`ditlab.runs.failures`); empty where it did not fail."""


class RunObserver:
    """Observer of a run or a sweep. Every moment does nothing here; none may wait.

    Moments come from the thread that leads the run, but `progressed` and `warned`, which may come
    from another.
    """

    def began(self) -> None:
        """Take note that training is about to begin, or to go on."""

    def progressed(self, progress: TrainingProgress) -> None:
        """Take in the progress of a run, a few times a second."""

    def warned(self, text: str) -> None:
        """Take in a warning of a run."""

    def attempt_failed(self, tags: Mapping[str, str]) -> None:
        """Take in the tags of a failure after which a run goes on."""

    def trials_ended(self) -> None:
        """Take note that trials of a sweep have ended, its best one perhaps."""

    def ended(self, end: RunEnd) -> None:
        """Take in the end."""


ObserverMaker = Callable[..., RunObserver]


def run_observer_makers(
    spec: Any, is_resumed: bool, warn: Callable[[str], None], field: str = "run_observers"
) -> list[ObserverMaker]:
    """Return what makes the observers of a run or a sweep once it has a folder.

    `spec` is the experiment, or with the `field` `sweep_observers` the sweep. Raises UserError
    where it may not begin.
    """
    found = []
    for target in places(field):
        find_maker = load_part("observer", target.rpartition(":")[2], target)
        maker = find_maker(spec, is_resumed, warn)
        if maker:
            found.append(maker)
    return found


class RunObservers:
    """All observers of one run or sweep; a context manager around its life.

    An exception that leaves the block is its failure, KeyboardInterrupt its interruption. An
    observer that raises is removed, with a warning.
    """

    def __init__(self, observers: Sequence[RunObserver], warn: Callable[[str], None]) -> None:
        self._observers = [*observers]
        self._warn = warn
        self.end: RunEnd | None = None
        """End that the block has come to."""

    def tell(self, moment: Callable[[RunObserver], None]) -> None:
        """Tell every observer of a moment."""
        for observer in [*self._observers]:
            try:
                moment(observer)
            except Exception as error:
                self._observers.remove(observer)
                name = f"{type(observer).__module__}.{type(observer).__qualname__}"
                reason = f"{type(error).__name__}: {first_line(error)}"
                self._warn(
                    f"the observer {name} failed and gets no further events ({reason}); "
                    "repair or remove it."
                )

    def __enter__(self) -> Self:
        self.tell(lambda observer: observer.began())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end = self.end or RunEnd("interrupted")
        if isinstance(error, Exception):
            end = RunEnd("failed", first_line(error), getattr(error, "kind", "crash"))
        elif error is not None:
            end = RunEnd("interrupted")
        self.tell(lambda observer: observer.ended(end))

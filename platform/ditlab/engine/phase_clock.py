"""Clock of a step loop's phases: where the time of each step goes, on the host's clock or in a GPU's own time.

A phase ends where the next one begins, so the phases of a step add up to its time. On CUDA the marks between them are
events on the stream that computes, read once they have passed: nothing waits for a GPU, and a phase is the time in
which the GPU did its work or waited for the host in it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import torch

PHASES = ("data", "forward", "backward", "reduce", "update", "checkpoint", "evaluation", "log")
"""Phases of a step. `log` is the rest: metrics, progress, and whatever else the loop does between the others."""
LOG = PHASES.index("log")
_OWN_WORK = (PHASES.index("forward"), PHASES.index("backward"))

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class PhaseSeconds:
    """Seconds by phase of the steps that have ended, as one worker's clock has them."""

    num_steps: int
    seconds: tuple[float, ...]
    """As `PHASES`; with what lies behind the last step, where that has been read."""


class MarkSource(Protocol):
    """Source of a clock's marks."""

    def take(self) -> Any:
        """Return a mark of this moment."""

    def has_passed(self, mark: Any, wait: bool) -> bool:
        """Return True if the moment has come, on a device that is behind the host; `wait` waits for it."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two marks that have passed."""

    def release(self, mark: Any) -> None:
        """Take a mark back that is not needed any more."""


class HostMarks:
    """Marks of the host's clock."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.take = now

    def has_passed(self, mark: float, wait: bool) -> bool:
        return True

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def release(self, mark: float) -> None: ...


class DeviceMarks:
    """Marks of a CUDA device: events on the current stream, used again once they are read."""

    def __init__(self, new_event: Callable[[], Any] | None = None) -> None:
        self._new_event = new_event or (lambda: torch.cuda.Event(enable_timing=True))
        self._free: list[Any] = []

    def take(self) -> Any:
        event = self._free.pop() if self._free else self._new_event()
        event.record()
        return event

    def has_passed(self, mark: Any, wait: bool) -> bool:
        if wait:
            mark.synchronize()
        return bool(mark.query())

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1000

    def release(self, mark: Any) -> None:
        self._free.append(mark)


class PhaseClock:
    """Clock of one worker's phases. Phases may lie within each other: the inner one's time is not the outer one's."""

    def __init__(self, marks: MarkSource | None = None) -> None:
        """Begin in the phase `log`. `marks`: None for the host's clock; `phase_clock` chooses by device."""
        self._marks: MarkSource = marks or HostMarks()
        self._phases = {name: _Phase(self, index) for index, name in enumerate(PHASES)}
        self._current = LOG
        self._open: list[tuple[int, Any]] = []
        """(Phase, mark of its end) since the last step's end."""
        self._steps: deque[list[tuple[int, Any]]] = deque()
        """Phases and marks of each step that has ended and was not read."""
        self._begin = self._marks.take()

    def phase(self, name: str) -> _Phase:
        """Return a context manager: the time within is the phase's, but for other phases within."""
        return self._phases[name]

    def restart(self) -> None:
        """Begin here: drop the time since the last step's end, such as that of building an engine."""
        for _, mark in self._open:
            self._marks.release(mark)
        self._open = [(-1, self._marks.take())]

    def end_step(self) -> None:
        """End a step: what follows belongs to the next."""
        self._open.append((self._current, self._marks.take()))
        self._steps.append(self._open)
        self._open = []

    def read(self) -> PhaseSeconds:
        """Return the seconds of all steps whose marks have passed since the last call."""
        sums, num = [0.0] * len(PHASES), 0
        while self._steps and self._marks.has_passed(self._steps[0][-1][1], wait=False):
            self._add(sums, self._steps.popleft())
            num += 1
        return PhaseSeconds(num, tuple(sums))

    def read_rest(self) -> PhaseSeconds:
        """Return the same of all steps and what lies behind the last, at the end of a loop; waits for the device."""
        self.end_step()
        num = len(self._steps) - 1
        self._marks.has_passed(self._steps[-1][-1][1], wait=True)
        return PhaseSeconds(num, self.read().seconds)

    def reducing(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        """Wrap a collective: its time within forward and backward passes is `reduce`, elsewhere the phase's own."""

        @wraps(function)
        def timed(*inputs: _P.args, **named: _P.kwargs) -> _T:
            if self._current not in _OWN_WORK:
                return function(*inputs, **named)
            with self._phases["reduce"]:
                return function(*inputs, **named)

        return timed

    def switch(self, index: int) -> int:
        """Change to a phase by its number; return the one before."""
        before = self._current
        self._open.append((before, self._marks.take()))
        self._current = index
        return before

    def _add(self, sums: list[float], marks: list[tuple[int, Any]]) -> None:
        begin = self._begin
        for phase, end in marks:
            if phase >= 0:  # else the clock was restarted here
                sums[phase] += self._marks.seconds(begin, end)
            self._marks.release(begin)
            begin = end
        self._begin = begin


class _Phase:
    """Phase of a clock, as a context manager that can be entered again within itself."""

    __slots__ = ("_clock", "_index", "_outer")

    def __init__(self, clock: PhaseClock, index: int) -> None:
        self._clock, self._index = clock, index
        self._outer: list[int] = []

    def __enter__(self) -> None:
        self._outer.append(self._clock.switch(self._index))

    def __exit__(self, *_: object) -> None:
        self._clock.switch(self._outer.pop())


def phase_clock(device: torch.device) -> PhaseClock:
    """Return a clock for work on a device."""
    return PhaseClock(DeviceMarks() if device.type == "cuda" else HostMarks())

"""Clock of a step loop's phases: where the time of each step goes, on the host's clock or in a
GPU's own time.

A phase ends where the next one begins, so the phases of a step add up to its time. On CUDA the
marks between them are events on the stream that computes, read once they have passed: nothing waits
for a GPU, and a phase is the time in which the GPU did its work or waited for the host in it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch

PHASES = ("data", "forward", "backward", "reduce", "update", "checkpoint", "evaluation", "log")
"""Phases of a step. `log` is the rest: metrics, progress, and whatever else the loop does between
the others.
"""
LOG = PHASES.index("log")
OWN_WORK = (PHASES.index("forward"), PHASES.index("backward"))


@dataclass(frozen=True)
class PhaseSeconds:
    """Seconds by phase of the steps that have ended, as one worker's clock has them."""

    num_steps: int
    seconds: tuple[float, ...]
    """As `PHASES`; with what lies behind the last step, where that has been read."""


class PhaseClock:
    """Clock of one worker's phases. Phases may lie within each other: the inner one's time is not
    the outer one's.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        new_event: Callable[[], Any] | None = None,
    ) -> None:
        """Begin in the phase `log`, on the host's clock `now`, or on that of a device whose events
        `new_event` makes.

        An event is recorded on the current stream, and used again once it is read.
        """
        self._now = now
        self._new_event = new_event
        self._free: list[Any] = []
        """Events to be used again."""
        self._current = LOG
        self._open: list[tuple[int, Any]] = []
        """(Phase, mark of its end) since the last step's end; phase -1 where the clock was
        restarted.
        """
        self._steps: deque[list[tuple[int, Any]]] = deque()
        """Phases and marks of each step that has ended and was not read."""
        self._begin = self._mark()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time within as the phase's, but for other phases within."""
        before = self._switch(PHASES.index(name))
        try:
            yield
        finally:
            self._switch(before)

    def restart(self) -> None:
        """Begin here: drop the time since the last step's end, such as that of building an
        engine.
        """
        self._free += [mark for _, mark in self._open if self._new_event]
        self._open = [(-1, self._mark())]

    def end_step(self) -> None:
        """End a step: what follows belongs to the next."""
        self._open.append((self._current, self._mark()))
        self._steps.append(self._open)
        self._open = []

    def read(self) -> PhaseSeconds:
        """Return the seconds of all steps whose marks have passed since the last call."""
        sums = [0.0] * len(PHASES)
        num = 0
        while self._steps and (self._new_event is None or self._steps[0][-1][1].query()):
            for phase, end in self._steps.popleft():
                begin = self._begin
                self._begin = end
                if phase >= 0:
                    sums[phase] += self._seconds(begin, end)
                if self._new_event is not None:
                    self._free.append(begin)
            num += 1
        return PhaseSeconds(num, tuple(sums))

    def read_rest(self) -> PhaseSeconds:
        """Return the same of all steps and what lies behind the last, at the end of a loop; waits
        for the device.
        """
        self.end_step()
        num = len(self._steps) - 1
        if self._new_event is not None:
            self._steps[-1][-1][1].synchronize()
        return PhaseSeconds(num, self.read().seconds)

    def reducing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a collective: its time within forward and backward passes is `reduce`, elsewhere the
        phase's own.
        """

        @wraps(function)
        def timed(*inputs: Any, **named: Any) -> Any:
            if self._current not in OWN_WORK:
                return function(*inputs, **named)
            with self.phase("reduce"):
                return function(*inputs, **named)

        return timed

    def _seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two marks."""
        if self._new_event is None:
            return float(end - begin)
        return float(begin.elapsed_time(end) / 1000)

    def _switch(self, phase: int) -> int:
        """Change to a phase by its number; return the one before."""
        before = self._current
        self._open.append((before, self._mark()))
        self._current = phase
        return before

    def _mark(self) -> Any:
        """Return a mark of this moment: the host's time, or an event that the device passes."""
        if self._new_event is None:
            return self._now()
        event = self._free.pop() if self._free else self._new_event()
        event.record()
        return event


def phase_clock(device: torch.device) -> PhaseClock:
    """Return a clock for work on a device."""
    if device.type == "cuda":
        return PhaseClock(new_event=partial(torch.cuda.Event, enable_timing=True))
    return PhaseClock()

"""Budget of device hours of a home, `DITLAB_BUDGET=4h`: what its runs have used, and the end of a
run beyond it.

Hours of GPUs and hours of cores are counted apart: a run on GPUs is held to the home's GPU hours, a
run on cores to its core hours. A run that trains counts up to the latest record of its journal, so
runs beside each other share what is left, and end together.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ditlab.errors import BudgetUsedUp, UserError
from ditlab.home import Home
from ditlab.runs.signals import StopRequests
from ditlab.spec.experiment import Experiment
from ditlab.spec.values import format_value, parse_duration
from ditlab.tracking.index import DeviceHours
from ditlab.tracking.records import update_record

if TYPE_CHECKING:
    from ditlab.runs.launch import Launch  # imports torch, which `ditlab runs` needs not

VARIABLE = "DITLAB_BUDGET"
CHECK_INTERVAL = 2.0
"""Least seconds between two looks at the journals."""
_SHARE = 0.01
"""Largest share of the time that these looks may take: in a home of very many runs they are
rarer.
"""


def device_kind(experiment: Experiment) -> str:
    """Device whose hours count for a run: `GPU`, or `core` where it has none."""
    if experiment.resources.gpus_per_worker:
        return "GPU"
    return "core"


def num_devices(experiment: Experiment, workers: int, threads: int) -> float:
    """Number of devices that so many workers hold: GPUs, or a core for each thread."""
    return workers * (experiment.resources.gpus_per_worker or threads)


@dataclass(frozen=True)
class HomeBudget:
    """Limit of the device hours of a home's runs."""

    text: str
    """As `DITLAB_BUDGET` has it."""
    hours: float

    @classmethod
    def from_environment(cls) -> HomeBudget | None:
        """The budget that `DITLAB_BUDGET` sets; None where it is unset or empty. Raises UserError
        for another text.
        """
        text = os.environ.get(VARIABLE, "").strip()
        if not text:
            return None
        seconds = parse_duration(text)
        if not seconds:
            raise UserError(
                f"{VARIABLE}={format_value(text)} is no budget; write device hours above 0 "
                "with their unit, such as 30min, 4h, 2d, or unset it."
            )
        return cls(text, seconds / 3600)

    def is_used_up(self, hours: DeviceHours, device: str) -> bool:
        """Return True once the home's runs have taken all hours of `device` (`GPU`, `core`)."""
        return hours.total()[device] >= self.hours

    def describe(self, hours: DeviceHours) -> str:
        """Sentence on what is used: `DITLAB_BUDGET=4h: 1.25 GPU hours are used.`"""
        used = [f"{number:.3g} {device} hours" for device, number in sorted(hours.total().items())]
        return f"{VARIABLE}={self.text}: {' and '.join(used) or 'no device hours'} are used."


def check_home_budget(home: Home, experiment: Experiment) -> None:
    """Raise BudgetUsedUp where the home's budget is used up, UserError where `DITLAB_BUDGET` is no
    budget.
    """
    budget = HomeBudget.from_environment()
    if budget:
        hours = DeviceHours(home)
        device = device_kind(experiment)
        if budget.is_used_up(hours, device):
            raise BudgetUsedUp(
                f"{VARIABLE}={budget.text} is used up: runs under {home.root} have taken "
                f"{hours.total()[device]:.3g} {device} hours; set a larger {VARIABLE}, or unset it."
            )


class BudgetWatch:
    """Looks at the home's budget now and then."""

    def __init__(self, home: Home, experiment: Experiment) -> None:
        """Raises UserError where `DITLAB_BUDGET` is no budget."""
        self._budget = HomeBudget.from_environment()
        self._device = device_kind(experiment)
        self._hours = DeviceHours(home)
        self._next_check = 0.0

    def sentence(self) -> str:
        """Return the clause on a budget that is used up; empty where it is not, and between two
        looks.
        """
        begin = time.monotonic()
        if self._budget is None or begin < self._next_check:
            return ""
        is_used_up = self._budget.is_used_up(self._hours, self._device)
        self._next_check = begin + max(CHECK_INTERVAL, (time.monotonic() - begin) / _SHARE)
        if is_used_up:
            return f"{VARIABLE}={self._budget.text} is used up"
        return ""


@contextmanager
def budget_watched(
    launch: Launch, stop: StopRequests, warn: Callable[[str], None]
) -> Iterator[None]:
    """Ask for the end of a run, after a final checkpoint, once the budget of its home is used
    up.
    """
    if HomeBudget.from_environment() is None:
        yield
        return
    watch = BudgetWatch(launch.home, launch.experiment)
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(CHECK_INTERVAL):
            sentence = watch.sentence()
            if sentence:
                with suppress(OSError, UserError):
                    update_record(launch.folder, message=sentence)
                warn(
                    f"{sentence}: stopping after a final checkpoint; `--resume` goes on with a "
                    "larger one."
                )
                stop.request()
                return

    thread = threading.Thread(target=look, name="ditlab-budget", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

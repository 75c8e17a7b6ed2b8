"""Present state of a sweep's trials. Only those that run are read: a trial that has ended stays
so.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ditlab.cluster.channel import CHANNEL_ERRORS, KeyValueChannel
from ditlab.errors import UserError
from ditlab.reports.sweep_records import ENDED, Trial
from ditlab.spec.sweep import Sweep
from ditlab.sweeps.folder import current_values, find_record, sweep_configurations
from ditlab.sweeps.results import read_results
from ditlab.sweeps.start import StartedSweep
from ditlab.tracking.history import final_values

PROGRESS = "progress/"
WARNINGS = "warnings/"
"""Beginnings of the topics of a sweep's channel under which a trial, by its number, says how far it
is.
"""


class SweepTrials:
    """Every planned trial with its present state.

    A trial names itself on the sweep's channel as it begins, so that a round asks the channel once,
    and then reads the record of each trial that runs; the first round reads all of them. `add` may
    be called by another thread.
    """

    def __init__(
        self, started: StartedSweep, channel: KeyValueChannel, warn: Callable[[str], None]
    ) -> None:
        """`warn` receives the trials' warnings."""
        self._started = started
        self._channel = channel
        self._warn = warn
        self._trials: dict[int, Trial] = {}
        self._open: dict[int, Trial] = {}
        """Trials as planned that have not ended."""
        self._planned = deque(started.past)
        self._begun: set[int] = set()
        self._num_warnings: dict[int, int] = {}
        self._num_ranked = -1
        self._is_first = True
        self.leader: Trial | None = None
        """The best finished trial, or configuration, by the first metric; None without one, or
        where trials do not compare.
        """

    def add(self, trial: Trial) -> None:
        """Add a trial of the ledger."""
        self._planned.append(trial)

    def read(self, is_last: bool = False) -> list[Trial]:
        """Read the state of the trials that run, pass on their new warnings, and return all trials
        by number.

        `is_last`: read the record of each trial that is not known to have ended, whatever the
        channel says.
        """
        self._take_planned()
        topics: list[str] = []
        with suppress(*CHANNEL_ERRORS):  # what cannot be read now may be readable in the next round
            topics = self._channel.topics()
        named = {
            int(topic.rpartition("/")[2])
            for topic in topics
            if topic.startswith((PROGRESS, WARNINGS))
        }
        self._begun |= named & self._open.keys()
        numbers = list(self._open) if is_last or self._is_first else sorted(self._begun)
        for number in numbers:
            with suppress(UserError, *CHANNEL_ERRORS):
                self._read_trial(self._open[number], topics)
        self._is_first = False
        if self.num_ended != self._num_ranked:
            self._num_ranked = self.num_ended
            self.leader = self._find_leader()
        return self.all

    @property
    def all(self) -> list[Trial]:
        """All trials by number, as they were read last."""
        return list(self._trials.values())

    @property
    def num_ended(self) -> int:
        """Number of trials that are not run again, as far as they were read."""
        return len(self._trials) - len(self._open)

    def is_any_running(self) -> bool:
        """Return True while a trial that had begun when the state was read last is training or
        saving.
        """
        records = [
            find_record(self._started.home, self._open[number])
            for number in self._begun & self._open.keys()
        ]
        return any(record and record.status == "running" for record in records)

    def _take_planned(self) -> None:
        """Take in the trials that were added."""
        if not self._planned:
            return
        while self._planned:
            trial = self._planned.popleft()
            self._trials[trial.number] = self._open[trial.number] = trial
        self._trials = dict(sorted(self._trials.items()))

    def _read_trial(self, trial: Trial, topics: Sequence[str]) -> None:
        number = trial.number
        home = self._started.home
        record = find_record(home, trial)
        topic = f"{WARNINGS}{number}"
        if topic in topics:
            messages = self._channel.get(topic)
            for message in messages[self._num_warnings.get(number, 0) :]:
                self._warn(f"trial {number}: {message}")
            self._num_warnings[number] = len(messages)
        if record is None:
            if topic in topics:  # it could not be run: a warning is all that it sent
                self._channel.remove(topic)
            return
        place = f"{PROGRESS}{number}"
        known: Mapping[str, Any] = {}
        if place in topics:
            known = self._channel.get(place) or {}
        metrics = known.get("metrics", {})
        step = max(known.get("step", 0), record.step)
        measured: Mapping[tuple[str, str], str] = {}
        if record.status in ENDED:
            history, measured, _ = read_results(self._started.sweep, home.run(trial.run_id))
            metrics = final_values(history)
            step = record.step
        self._trials[number] = replace(
            trial,
            status=record.status,
            step=step,
            total_steps=record.total_steps,
            metrics=metrics,
            measured=measured,
            note=record.message,
            values=current_values(home, trial),
        )
        if record.status in ENDED:
            del self._open[number]
            self._begun.discard(number)
            for topic in topics:
                if topic.endswith(f"/{number}"):
                    self._channel.remove(topic)

    def _find_leader(self) -> Trial | None:
        sweep = self._started.sweep
        name = sweep.metrics[0]
        sign = -1 if sweep.modes[0] == "max" else 1
        done = [
            trial for trial in sweep_configurations(sweep, self.all) if trial.status == "finished"
        ]
        done = [trial for trial in done if math.isfinite(trial.metrics.get(name, math.nan))]
        most = max((trial.num_seeds for trial in done), default=0)
        done = [trial for trial in done if trial.num_seeds == most]
        if any(trial.measured != done[0].measured for trial in done):
            return None
        return min(done, key=lambda trial: (sign * trial.metrics[name], trial.number), default=None)


@dataclass(frozen=True)
class SweepProgress:
    """State of a sweep's trials at one moment."""

    sweep_id: str
    sweep: Sweep
    trials: Sequence[Trial]
    """Every planned trial, by number."""
    leader: int | None
    """Number of the best finished trial, or configuration, by the first metric."""
    num_trials: int
    """Number of trials of the whole sweep."""
    ended_before: frozenset[int]
    """Numbers of trials that ended in an earlier session."""

    @property
    def counts(self) -> str:
        """The trials counted by status: `2 running, 3 finished of 8`."""
        counts = Counter(trial.status for trial in self.trials)
        text = ", ".join(
            f"{counts[status]} {status}" for status in ("running", *ENDED) if counts[status]
        )
        return f"{text or 'starting'} of {self.num_trials}"

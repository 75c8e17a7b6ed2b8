"""Device hours of a home's runs, from the index of its journals.

Of a journal's lines only those are parsed that begin and end an attempt and say what it holds.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Mapping

from ditlab.home import Home
from ditlab.tracking.history import DEVICES_TAG, JournalFacts
from ditlab.tracking.index import Journal, JournalIndex, Place, State
from ditlab.tracking.journal import parse_record

_BOUNDS = (b'{"kind":"start"', b'{"kind":"end"')
_TAGS = b'{"kind":"tags"'
_DEVICES = f'"{DEVICES_TAG}":'.encode()


def _read_hours(place: Place, state: State) -> int:
    """Count the hours of the attempts in a journal's whole lines."""
    tags = {DEVICES_TAG: state.get("devices", "")}
    facts = JournalFacts(tags=tags, device_hours=state.get("hours", {}), counted_until=state.get("until", 0))
    last = b""
    end = place.begin
    place.file.seek(end)
    for line in place.file:
        if not line.endswith(b"\n"):
            break
        end += len(line)
        is_bound = line.startswith(_BOUNDS)
        if not is_bound and not (line.startswith(_TAGS) and _DEVICES in line):
            last = line
            continue
        _count(facts, last)  # of an attempt that was killed, the last line tells how long it lasted
        last = b""
        if record := parse_record(line):
            facts.add(record)
    _count(facts, last)
    state.update(devices=facts.tags[DEVICES_TAG], hours=facts.device_hours, until=facts.counted_until)
    return end


def _count(facts: JournalFacts, line: bytes) -> None:
    if line and facts.counted_until and (record := parse_record(line)):
        facts.count_time(record["time"])


class DeviceHours:
    """Hours of devices of the runs of a home: what their attempts held, from each one's start to its latest record."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._index = JournalIndex(home)

    def by_run(self, run_ids: Collection[str] | None = None) -> dict[str, Mapping[str, float]]:
        """Read what is new, and return the hours by device (`GPU`, `core`) of each run that has some.

        `run_ids`: these runs alone; None: all of the home.
        """
        if run_ids is None:
            run_ids = self._all_runs()
            self._index.keep_only(run_ids)
        states = self._index.update("hours", _read_hours, [Journal(run_id) for run_id in run_ids])
        return {journal.run: state["hours"] for journal, state in states.items() if state["hours"]}

    def total(self, run_ids: Collection[str] | None = None) -> defaultdict[str, float]:
        """Hours by device of all runs, or of some, together."""
        total: defaultdict[str, float] = defaultdict(float)
        for each in self.by_run(run_ids).values():
            for device, hours in each.items():
                total[device] += hours
        return total

    def _all_runs(self) -> list[str]:
        try:
            return [each.name for each in os.scandir(self._home.runs) if not each.name.startswith(".")]
        except OSError:
            return []

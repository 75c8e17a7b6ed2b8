"""Device hours of a home's runs, from their journals, of which only what is new is read.

A journal is read line by line, and of its lines only those are parsed that begin and end an attempt and say what it
holds. How far each journal was read is kept below the home's caches: 5,000 runs that have ended cost a look at the size
of each journal.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from ditlab.home import Home
from ditlab.storage.files import encode_json_line, parse_json_line, write_whole
from ditlab.storage.plain_files import MIB, open_regular_file, read_plain
from ditlab.tracking.history import DEVICES_TAG, JournalFacts
from ditlab.tracking.journal import LARGEST_JOURNAL, parse_record

FORMAT = 1
"""Version of the kept file, which is made again where it has another."""
_LARGEST_FILE = 256 * MIB
_BOUNDS = (b'{"kind":"start"', b'{"kind":"end"')
_TAGS, _DEVICES = b'{"kind":"tags"', f'"{DEVICES_TAG}":'.encode()


@dataclass
class _ReadJournal:
    """A journal up to an offset."""

    end: int = 0
    """Bytes that were read."""
    facts: JournalFacts = field(default_factory=JournalFacts)

    def add(self, file: BinaryIO) -> None:
        """Read the whole lines from the offset on."""
        file.seek(self.end)
        last = b""
        for line in file:
            if not line.endswith(b"\n"):
                break
            self.end += len(line)
            is_bound = line.startswith(_BOUNDS)
            if not is_bound and not (line.startswith(_TAGS) and _DEVICES in line):
                last = line
                continue
            self._count(last)  # of an attempt that was killed, the last line tells how long it lasted
            last = b""
            if record := parse_record(line):
                self.facts.add(record)
        self._count(last)

    def _count(self, line: bytes) -> None:
        if line and self.facts.counted_until and (record := parse_record(line)):
            self.facts.count_time(record["time"])


class DeviceHours:
    """Hours of devices of the runs of a home: what their attempts held, from each one's start to its latest record."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._file = home.caches / "device_hours.json"
        self._journals: dict[str, _ReadJournal] = {}
        self._has_news = False
        with suppress(OSError, AttributeError, KeyError, TypeError, ValueError):  # else every journal is read again
            content = parse_json_line(read_plain(self._file, _LARGEST_FILE)) or {}
            kept = content["runs"] if content["format"] == FORMAT else {}
            for run_id, (end, until, devices, hours) in kept.items():
                facts = JournalFacts(tags={DEVICES_TAG: devices}, device_hours=hours, counted_until=until)
                self._journals[run_id] = _ReadJournal(end, facts)

    def by_run(self, run_ids: Collection[str] | None = None) -> dict[str, Mapping[str, float]]:
        """Read what is new, and return the hours by device (`GPU`, `core`) of each run that has some.

        `run_ids`: these runs alone; None: all of the home.
        """
        found: dict[str, Mapping[str, float]] = {}
        for run_id in self._all_runs() if run_ids is None else run_ids:
            journal = self._journals.setdefault(run_id, _ReadJournal())
            with suppress(OSError):  # no journal yet, or none that can be read
                size = os.stat(f"{self._home.runs}/{run_id}/journal.jsonl").st_size  # noqa: PTH116 (a path costs more)
                if size < journal.end:  # another journal
                    journal = self._journals[run_id] = _ReadJournal()
                if size > journal.end:
                    with open_regular_file(self._home.run(run_id).journal, LARGEST_JOURNAL) as file:
                        journal.add(file)
                    self._has_news = True
            if journal.facts.device_hours:
                found[run_id] = journal.facts.device_hours
        return found

    def total(self, run_ids: Collection[str] | None = None) -> defaultdict[str, float]:
        """Hours by device of all runs, or of some, together."""
        total: defaultdict[str, float] = defaultdict(float)
        for each in self.by_run(run_ids).values():
            for device, hours in each.items():
                total[device] += hours
        return total

    def keep(self) -> None:
        """Keep what was read for other processes. A disk that refuses costs them time alone."""
        if not self._has_news:
            return
        self._has_news = False
        runs = {
            run_id: (each.end, each.facts.counted_until, each.facts.tags.get(DEVICES_TAG, ""), each.facts.device_hours)
            for run_id, each in self._journals.items()
            if each.end
        }
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, encode_json_line({"format": FORMAT, "runs": runs}))

    def _all_runs(self) -> list[str]:
        """Ids of the home's runs; forgets the journals of others, which were deleted."""
        try:
            names = [each.name for each in os.scandir(self._home.runs) if not each.name.startswith(".")]
        except OSError:
            names = []
        known = set(names)
        self._journals = {run_id: each for run_id, each in self._journals.items() if run_id in known}
        return names

"""Lineage of a run: the runs that it goes on from, those that go on from it, and what differs from
the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.reports.formatting import describe_value, short_names
from ditlab.spec.start import NamedStart, parse_start
from ditlab.spec.yaml_text import read_recorded
from ditlab.tracking.names import differing, flatten
from ditlab.tracking.records import RunRecord, list_runs

LINEAGE_TAG = "ditlab.lineage"
"""Tag with the points that a run goes on from, oldest first: `3f2a1b9c@400 8d1c2e3f@600`."""
FORK_TAG = "ditlab.forked_from"
"""Tag with the last of them: the parent and its step."""

CHANGED_TAG = "ditlab.changed"
"""Tag with the fields that differ from the run before; of a trial, with its values."""
_MOST_FIELDS = 12
"""Fields that the tag names."""


@dataclass(frozen=True)
class LineageRun:
    """A run in a tree of forks."""

    run_id: str
    name: str
    """Empty for a run that is gone."""
    status: str
    """`gone` for a run that is gone."""
    step: int
    """Steps done."""
    start_step: int | None
    """Step of the parent at which it begins; None for the tree's root."""
    forks: list[LineageRun]
    """Runs that go on from it, the oldest first."""

    def to_dict(self) -> dict[str, Any]:
        """The tree in JSON's types."""
        return asdict(self)


def lineage(records: Iterable[RunRecord], run_id: str) -> LineageRun | None:
    """Return the tree from a run's oldest ancestor down to the run and all its forks; None for a
    run without either.
    """
    by_id = {record.run_id: record for record in records}
    forks = forks_by_parent(by_id.values())
    # each once: an edit by hand can make a circle
    line = list(dict.fromkeys([run_id, *(point.run for point in ancestors(by_id, run_id))]))

    def member(run_id: str, below: list[LineageRun]) -> LineageRun:
        record = by_id.get(run_id)
        if record is None:
            return LineageRun(run_id, "", "gone", 0, None, below)
        start_step = None
        if record.start:
            start_step = parse_start(record.start).step
        return LineageRun(run_id, record.name, record.status, record.step, start_step, below)

    def with_forks(run_id: str, above: set[str]) -> LineageRun:
        own = [record.run_id for record in forks.get(run_id, []) if record.run_id not in above]
        return member(run_id, [with_forks(fork, above | {fork}) for fork in own])

    tree = with_forks(run_id, set(line))
    for ancestor in line[1:]:
        tree = member(ancestor, [tree])
    if tree.forks:
        return tree
    return None


def ancestors(records: Mapping[str, RunRecord], run_id: str) -> list[NamedStart]:
    """Return the points that a run goes on from, its parent's first; in a circle, the last one's
    run comes twice.
    """
    found: list[NamedStart] = []
    seen = {run_id}
    while (record := records.get(run_id)) and record.start:
        found.append(parse_start(record.start))
        run_id = found[-1].run
        if run_id in seen:
            break
        seen.add(run_id)
    return found


def forks_by_parent(records: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Return the forks of each run by its id, the oldest first."""
    found: dict[str, list[RunRecord]] = {}
    for record in sorted(records, key=lambda each: (each.created, each.run_id)):
        if record.start:
            found.setdefault(parse_start(record.start).run, []).append(record)
    return found


def lineage_tags(point: str, records: Iterable[RunRecord]) -> dict[str, str]:
    """Return the tags of the tracked run of a fork that begins at `RUN@STEP`."""
    above = ancestors({record.run_id: record for record in records}, parse_start(point).run)
    points = [*(f"{each.run}@{each.step}" for each in reversed(above)), point]
    return {FORK_TAG: point, LINEAGE_TAG: " ".join(points)}


def lineage_lines(tree: LineageRun, run_id: str) -> list[str]:
    """Return the tree in lines, as `tree` draws folders; `run_id` is marked."""
    about = tree.status
    if tree.name:
        about = f"{tree.name}, {tree.status}, step {tree.step:,}"
    line = f"{tree.run_id} ({about})"
    if tree.start_step is not None:
        line = f"from step {tree.start_step:,}: {line}"
    if tree.run_id == run_id:
        line += " <- this run"
    lines = [line]
    for number, fork in enumerate(tree.forks, start=1):
        first, rest = ("└─ ", "   ") if number == len(tree.forks) else ("├─ ", "│  ")
        head, *below = lineage_lines(fork, run_id)
        lines += [first + head, *(rest + line for line in below)]
    return lines


def values_text(values: Mapping[str, Any]) -> str:
    """Return values by dotted path as a reader calls them: `lr=0.0012, times=logit_normal`."""
    names = _called(values)
    return ", ".join(f"{names[path]}={describe_value(value)}" for path, value in values.items())


def _called(paths: Iterable[str]) -> dict[str, str]:
    """Name each path by its shortest end that differs from the others'; a kind by what it is the
    kind of.
    """
    things = {path: path.removesuffix(".kind") for path in paths}
    names = short_names(things.values())
    return {path: names[thing] for path, thing in things.items()}


def change_tags(home: Home, run_id: str, name: str, spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the tag of a new run with what differs from the run before it; {} where there is none.

    That is the newest of its name, or else the newest of its family in its tracking experiment,
    which the tag names.
    """
    earlier = [
        record
        for record in list_runs(home)
        if record.run_id != run_id and not record.trials and not record.parent
    ]
    for record in earlier:
        if record.name == name:
            before = _recorded_spec(home, record)
            if before:
                return {CHANGED_TAG: _changes(before, spec, record.run_id)}
            return {}
    for record in earlier:
        before = None
        if record.family == spec["model"]["family"]:
            before = _recorded_spec(home, record)
        if before and before["tracking"]["experiment"] == spec["tracking"]["experiment"]:
            return {CHANGED_TAG: _changes(before, spec, f"{record.run_id} ({record.name})")}
    return {}


def _recorded_spec(home: Home, record: RunRecord) -> Mapping[str, Any] | None:
    """Return the spec of an earlier run; None where it cannot be read."""
    with suppress(OSError, ValueError, UserError):
        return read_recorded(home.run(record.run_id).spec)
    return None


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], since: str) -> str:
    """Return the fields that differ, name and tracking aside: `lr=0.0003 (was 0.001); since
    6134572f`.
    """
    changes = differing(flatten(now), flatten(before))
    changed = [path for path in changes if not path.startswith(("name", "tracking."))]
    names = _called(changed)
    told = []
    for path in changed[:_MOST_FIELDS]:
        present, former = changes[path]
        told.append(f"{names[path]}={present or 'none'} (was {former or 'none'})")
    if len(changed) > _MOST_FIELDS:
        told.append(f"{len(changed) - _MOST_FIELDS} more")
    return f"{', '.join(told) or 'nothing'}; since {since}"

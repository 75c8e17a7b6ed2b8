"""Lineage of a run: the runs that it goes on from, and those that go on from it. Reads records alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ditlab.spec.start import NamedStart, parse_start
from ditlab.tracking.records import RunRecord

LINEAGE_TAG = "ditlab.lineage"
"""Tag with the points that a run goes on from, oldest first: `3f2a1b9c@400 8d1c2e3f@600`."""
FORK_TAG = "ditlab.forked_from"
"""Tag with the last of them: the parent and its step."""


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
    forks: list[LineageRun] = field(default_factory=list)
    """Runs that go on from it, the oldest first."""

    def to_dict(self) -> dict[str, Any]:
        """The tree in JSON's types."""
        own = {"run_id": self.run_id, "name": self.name, "status": self.status, "step": self.step}
        return {**own, "start_step": self.start_step, "forks": [fork.to_dict() for fork in self.forks]}


def lineage(records: Iterable[RunRecord], run_id: str) -> LineageRun | None:
    """Return the tree from a run's oldest ancestor down to the run and all its forks; None for a run without either."""
    by_id = {record.run_id: record for record in records}
    line = [run_id, *(point.run for point in ancestors(by_id, run_id))]
    if len(set(line)) < len(line):
        line = line[: line.index(line[-1]) + 1]  # a circle, which only an edit by hand makes
    forks = forks_by_parent(by_id.values())
    tree = _with_forks(by_id, forks, run_id, _start_step(by_id, run_id), set(line))
    if len(line) == 1 and not tree.forks:
        return None
    for ancestor in line[1:]:
        tree = _run(by_id, ancestor, _start_step(by_id, ancestor), [tree])
    return tree


def ancestors(records: Mapping[str, RunRecord], run_id: str) -> list[NamedStart]:
    """Return the points that a run goes on from, its parent's first; in a circle, the last one's run comes twice."""
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
    return [_line(tree, run_id), *_branches(tree, run_id, "")]


def _branches(tree: LineageRun, run_id: str, indent: str) -> list[str]:
    lines = []
    for number, fork in enumerate(tree.forks, start=1):
        is_last = number == len(tree.forks)
        lines.append(f"{indent}{'└─' if is_last else '├─'} {_line(fork, run_id)}")
        lines += _branches(fork, run_id, indent + ("   " if is_last else "│  "))
    return lines


def _line(run: LineageRun, run_id: str) -> str:
    begin = "" if run.start_step is None else f"from step {run.start_step:,}: "
    about = f"{run.name}, {run.status}, step {run.step:,}" if run.name else run.status
    return f"{begin}{run.run_id} ({about}){' <- this run' if run.run_id == run_id else ''}"


def _with_forks(
    records: Mapping[str, RunRecord], forks: Mapping[str, list[RunRecord]], run_id: str, start_step: int | None,
    seen: set[str],
) -> LineageRun:  # fmt: skip
    below = []
    for record in forks.get(run_id, []):
        if record.run_id not in seen:
            seen = {*seen, record.run_id}
            below.append(_with_forks(records, forks, record.run_id, parse_start(record.start).step, seen))
    return _run(records, run_id, start_step, below)


def _run(records: Mapping[str, RunRecord], run_id: str, start_step: int | None, forks: list[LineageRun]) -> LineageRun:
    record = records.get(run_id)
    if record is None:
        return LineageRun(run_id, "", "gone", 0, start_step, forks)
    return LineageRun(run_id, record.name, record.status, record.step, start_step, forks)


def _start_step(records: Mapping[str, RunRecord], run_id: str) -> int | None:
    record = records.get(run_id)
    return parse_start(record.start).step if record and record.start else None

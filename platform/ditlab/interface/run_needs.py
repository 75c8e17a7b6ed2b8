"""Uses of a run by others in its home: the reasons why it is not deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.runs.lineage import forks_by_parent
from ditlab.spec.composition.start import parse_start
from ditlab.spec.reading.yaml_text import MAX_BYTES, parse_yaml
from ditlab.storage.plain_files import MIB, read_plain
from ditlab.sweeps.folder import SweepFolder
from ditlab.tracking.records import RunList, RunRecord

_SPECS = ("spec.yaml", "sweep.yaml", "report/best.yaml")


def needs(home: Home, known: RunList, leaving: Sequence[str]) -> dict[str, str]:
    """Reason by run id why a run must stay, of those that are to be `leaving` together; `known` are all runs."""
    found: dict[str, str] = {}
    staying = [record for record in known.records if record.run_id not in leaving]
    trial_of = {record.run_id: (record.parent, record.trial) for record in known.records if record.parent}
    for record in staying:
        if record.trials:
            trials = SweepFolder(home.run(record.run_id)).planned_trials()
            trial_of |= {trial.run_id: (record.run_id, trial.number) for trial in trials}
    sweeps = {record.run_id: f"{record.run_id} ({record.name})" for record in staying if record.trials}
    sweeps |= {run_id: run_id for run_id in known.unreadable if run_id not in leaving}
    for run_id in leaving:
        sweep_id, number = trial_of.get(run_id, ("", -1))
        if sweep := sweeps.get(sweep_id):
            found[run_id] = (
                f"is trial {number} of sweep {sweep}, whose ranking, report and best.yaml need it; delete the sweep, "
                "and its trials go with it"
            )
    forks = forks_by_parent(staying)
    for run_id in leaving:
        if run_id not in found and (below := forks.get(run_id)):
            found[run_id] = _needed_by_forks(below)
    users = {record.run_id: f"run {record.run_id} ({record.name})" for record in staying}
    users |= {run_id: f"run {run_id}" for run_id in known.unreadable if run_id not in leaving}
    for user, text in _texts(home, users):
        for run_id in leaving:
            if run_id not in found and run_id.encode() in text and _refers(text, run_id):
                found[run_id] = f"is needed by {user}, which names it or a file in its folder; delete that first"
    return found


def _needed_by_forks(forks: Sequence[RunRecord]) -> str:
    """Reason why a run with forks stays."""
    listed = ", ".join(f"{fork.run_id} ({fork.name}, from step {parse_start(fork.start).step})" for fork in forks[:8])
    if len(forks) == 1:
        return f"is the parent of fork {listed}, which needs its checkpoint; delete that first"
    more = f" and {len(forks) - 8} more" if len(forks) > 8 else ""
    return f"is the parent of {len(forks)} forks, {listed}{more}, which need its checkpoints; delete those first"


def _texts(home: Home, users: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Specs of runs, by their ids, and records of stores that may name a run, each with what it belongs to."""
    for run_id, user in users.items():
        for name in _SPECS:
            yield user, _read(home.runs / run_id / name, MAX_BYTES)
    for store in sorted(home.stores.iterdir()) if home.stores.is_dir() else ():
        for path in sorted(store.glob("*.json")):
            yield f"store {store.name}", _read(path, 16 * MIB)


def _read(path: Path, limit: int) -> bytes:
    try:
        return read_plain(path, limit)
    except OSError:
        return b""


def _refers(text: bytes, run_id: str) -> bool:
    """Return True if a value of YAML or JSON is the run's id, or a path with it as a part; names are none."""
    try:
        return any(run_id in value.split("/") for value in _values(parse_yaml(text.decode(), "")))
    except (UserError, ValueError):
        return True  # it cannot be known


def _values(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("name", "run_id"):
                yield from _values(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner)

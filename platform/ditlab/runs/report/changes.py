"""A run's spec beside its parent: what a resume changed, the sweep's base, and the defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.reports.formatting import describe_value
from ditlab.reports.run.records import SpecChanges
from ditlab.spec.experiment import Experiment
from ditlab.spec.reading.yaml_text import MAX_BYTES, parse_yaml
from ditlab.storage.plain_files import read_plain
from ditlab.tracking.parameters import flatten
from ditlab.tracking.run_record import RunRecord

_OTHER_FACTS = ("parameters.", "spec_hash")
_REQUIRED = "none: it must be set"


def spec_changes(
    home: Home, record: RunRecord, experiment: Experiment | None, logged: Mapping[str, str], notes: list[str]
) -> list[SpecChanges]:
    """Differences of a run's spec, the nearest parent first. `logged` are the parameters of its first start."""
    if experiment is None:
        return []
    now = flatten(experiment.to_dict())
    found = []
    first = {path: value for path, value in logged.items() if not path.startswith(_OTHER_FACTS)}
    if changed := [row for row in _differences(now, first) if row[2] is not None]:
        found.append(SpecChanges("its first start", ("changed by a resume", "now", "at the first start"), changed))
    if start := experiment.start:
        parent = flatten(_recorded(home, start.run, "spec.yaml", f"The spec of run {start.run}, its parent,", notes))
        rows = [row for row in _differences(now, parent) if row[0] != "name" and not row[0].startswith("start")]
        if parent:
            point = f"its parent, run {start.run}, from whose step {start.step:,} it goes on"
            found.append(SpecChanges(point, ("field", "this run", "its parent"), rows))
    if record.parent and (base := _sweep_base(home, record, notes)):
        rows = [row for row in _differences(now, base) if row[0] != "name" and row[2] is not None]
        found.append(SpecChanges("the base of its sweep", ("field", "this trial", "base"), rows))
    rows = [(path, value, default) for path, value, default in _from_defaults(experiment, None, "") if path != "name"]
    found.append(SpecChanges("the defaults", ("field", "this run", "default"), rows))
    return found


def _differences(own: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str | None, str | None]]:
    return [
        (path, own.get(path), other.get(path))
        for path in dict.fromkeys([*own, *other])
        if own.get(path) != other.get(path)
    ]


def _sweep_base(home: Home, record: RunRecord, notes: list[str]) -> dict[str, str]:
    """The base of the trial's sweep as texts by path; empty where it cannot be read."""
    sweep = _recorded(home, record.parent, "sweep.yaml", f"The base of sweep {record.parent}", notes)
    base = sweep.get("base")
    return flatten(base) if isinstance(base, dict) else {}


def _recorded(home: Home, run_id: str, name: str, what: str, notes: list[str]) -> dict[str, Any]:
    """A recorded spec of another run, not validated; empty, with a note, where it cannot be read."""
    try:
        path = home.run(run_id).path / name
        mapping = parse_yaml(read_plain(path, MAX_BYTES).decode(), str(path))
        return mapping if isinstance(mapping, dict) else {}
    except (OSError, ValueError, UserError) as error:
        notes.append(f"{what} cannot be read ({first_line(error)}).")
    return {}


def _from_defaults(spec: BaseModel, default: BaseModel | None, path: str) -> Iterator[tuple[str, str, str]]:
    """Fields whose value is not the default's, by dotted path; without `default`, against those of the spec's class."""
    for name, field in type(spec).model_fields.items():
        own, place = getattr(spec, name), f"{path}.{name}" if path else name
        if default is not None:
            other: Any = getattr(default, name)
        else:
            other = _REQUIRED if field.is_required() else field.get_default(call_default_factory=True)
        if isinstance(own, BaseModel):
            is_same_class = isinstance(other, BaseModel) and type(own) is type(other)
            if isinstance(other, BaseModel) and not is_same_class:
                yield place, describe_value(_plain(own)), describe_value(_plain(other))
            else:
                yield from _from_defaults(own, other if is_same_class else None, place)
        elif own != other:
            yield place, describe_value(_plain(own)), other if other is _REQUIRED else describe_value(_plain(other))


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", serialize_as_any=True) if isinstance(value, BaseModel) else value

"""A moved or copied home made one of its own: every absolute path in its files that a command acts on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.runs.locks import is_locked
from ditlab.spec.files import build_experiment
from ditlab.spec.yaml_text import MAX_BYTES, dump_yaml, parse_yaml
from ditlab.storage.files import encode_json_line, read_json_lines, stamped, write_durably
from ditlab.storage.plain_files import read_plain
from ditlab.tracking.cursor import cursor_moves
from ditlab.tracking.records import read_record, update_record
from ditlab.tracking.relocation import (
    DatabaseRelocation,
    PathMap,
    check_place,
    forget_former_places,
    former_places,
    found_paths,
    path_map,
    relocating,
)

_YAML_FILES = ("spec.yaml", "sweep.yaml", "report/best.yaml")
_LINES_FILES = ("trials.jsonl", "exploits.jsonl")


@dataclass(frozen=True)
class HomeRelocation:
    """Relocation of a home, done or planned."""

    present: Path
    former: tuple[Path, ...]
    """Places whose paths were mapped to the present one; () for a home that was never elsewhere."""
    database: DatabaseRelocation
    files: list[Path] = field(default_factory=list)
    """Files of runs that were changed, or would be."""
    left: list[str] = field(default_factory=list)
    """Sentences on paths that stay as they are, and why."""

    def to_dict(self) -> dict[str, Any]:
        """The relocation in JSON's types, for `--json`."""
        backup = None if self.database.backup is None else str(self.database.backup)
        return {
            "home": str(self.present), "former": [str(place) for place in self.former],
            "database": self.database.changes, "backup": backup, "files": [str(file) for file in self.files],
            "left": self.left,
        }  # fmt: skip


def check_run_place(home: Home, folder: RunFolder) -> None:
    """Raise UserError for a run of a moved or copied home that would write into the former one."""
    if former_places(home):
        spec = _read_yaml(folder.spec) or {}
        check_place(home, read_record(folder).tracking_uri, spec.get("tracking"), spec.get("checkpoint"))


def relocate_home(home: Home, *, dry_run: bool = False) -> HomeRelocation:
    """Map every absolute path at the home's former places to its present one; with `dry_run`, say what would change.

    Each file is replaced in one step, and MLflow's database in one transaction that comes last: after a crash, the
    same call goes on. A home that was never elsewhere is left as it is. Raises UserError where a run is being trained,
    and for a database of an unknown schema or in use; then nothing was changed.
    """
    mapping = path_map(home)
    if not mapping.former:
        return HomeRelocation(home.root, (), DatabaseRelocation())
    _check_links(home)
    folders = [RunFolder(path) for path in _run_folders(home)]
    if locked := [folder.run_id for folder in folders if is_locked(folder)]:
        raise UserError(
            f"DITLAB_HOME={home.root} cannot be relocated while a process trains run {locked[0]}; wait for its end, or "
            "stop it."
        )
    files: list[Path] = []
    left: list[str] = []
    with relocating(home.mlflow_database, mapping, dry_run=dry_run) as database:
        for folder in folders:
            for file, change in _changed_files(folder, mapping, left):
                files.append(file)
                if not dry_run:
                    change()
    if not dry_run:
        forget_former_places(home)
    return HomeRelocation(home.root, mapping.former, database, files, left)


def _check_links(home: Home) -> None:
    """Raise UserError for a folder of the home that is a link: a copy of the home still has the original behind it."""
    for path in (home.runs, home.artifacts, home.stores):
        if path.is_symlink():
            raise UserError(
                f"{path} is a link to {path.readlink()}, which a copy of this folder shares with the original; put "
                "that folder itself in its place."
            )


def _run_folders(home: Home) -> list[Path]:
    """Folders of the home's runs, without links and hidden ones."""
    if not home.runs.is_dir():
        return []
    return sorted(
        path for path in home.runs.iterdir() if path.is_dir() and not path.is_symlink() and path.name[0] != "."
    )


def _changed_files(folder: RunFolder, mapping: PathMap, left: list[str]) -> Iterator[tuple[Path, Callable[[], object]]]:
    """Files of a run that hold paths at a former place, each with the call that maps them; remarks go to `left`."""
    changes: dict[str, Any] = {}
    record = None
    try:
        record = read_record(folder)
        if (moved := mapping.relocated(record.tracking_uri)) is not None:
            changes["tracking_uri"] = moved
    except UserError as error:
        left.append(str(error))
    for name in _YAML_FILES:
        path = folder.path / name
        if not _may_hold_paths(path, mapping):
            continue
        if (before := _read_yaml(path, left)) is not None and (paths := sorted({*found_paths(before, mapping)})):
            left += filter(None, (_missing(path, found, mapping) for found in paths))
            after = mapping.relocated_value(before)
            if path == folder.spec and record and record.spec_hash == _content_hash(before):
                changes["spec_hash"] = _content_hash(after)
            if changes:  # before the spec, whose hash would not be the record's after a crash in between
                yield folder.record, partial(update_record, folder, **changes)
                changes = {}
            yield path, partial(_write_yaml, path, after)
    for name in _LINES_FILES:
        path = folder.path / name
        if (lines := _changed_lines(path, mapping, left)) is not None:
            yield path, partial(write_durably, path, lines)
    if changes:
        yield folder.record, partial(update_record, folder, **changes)
    for move in cursor_moves(folder, record.tracking_uri if record else "", mapping):
        yield move.path, move.apply


def _may_hold_paths(path: Path, mapping: PathMap) -> bool:
    """Return False for a YAML file that is missing, or holds no former place: parsing one takes 15 ms, reading 0.1."""
    try:
        content = read_plain(path, MAX_BYTES)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    places = [str(place) for place in mapping.former]
    return any(not place.isascii() or place.encode() in content for place in places)


def _read_yaml(path: Path, left: list[str] | None = None) -> dict[str, Any] | None:
    """The mapping of a YAML file; None where there is none, with a remark in `left` where it cannot be read."""
    try:
        value = parse_yaml(read_plain(path, MAX_BYTES).decode(), str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, UserError) as error:
        if left is not None:
            left.append(f"{path} cannot be read ({first_line(error)}), and stays as it is.")
        return None
    return value if isinstance(value, dict) else None


def _write_yaml(path: Path, value: dict[str, Any]) -> None:
    """Replace a YAML file's content. Comments at its beginning stay; a right checksum at its end is made again."""
    lines = read_plain(path, MAX_BYTES).decode().splitlines(keepends=True)
    text = "".join(takewhile(lambda line: line.startswith("#"), lines)) + dump_yaml(value)
    if stamped("".join(lines[:-1])) == "".join(lines):
        text = stamped(text)
    elif lines and lines[-1].startswith("#"):
        text += lines[-1]  # a wrong one stays: an edit by hand is said later, too
    write_durably(path, text.encode())


def _changed_lines(path: Path, mapping: PathMap, left: list[str]) -> bytes | None:
    """The text of a file of JSON lines with its paths mapped; None where nothing is to be changed."""
    try:
        lines = read_json_lines(path)
    except OSError as error:
        left.append(f"{path} cannot be read ({first_line(error)}), and stays as it is.")
        return None
    if not any(True for _ in found_paths(lines.records, mapping)):
        return None
    if lines.num_damaged:
        left.append(f"{path} has damaged lines, and stays as it is.")
        return None
    return b"".join(encode_json_line(mapping.relocated_value(record)) for record in lines.records)


def _missing(path: Path, found: str, mapping: PathMap) -> str:
    """Remark on a path whose file is at the former place alone; empty where there is nothing to say."""
    moved = mapping.relocated(found)
    assert moved is not None
    is_left_behind = _file(found).exists() and not _file(moved).exists()
    return f"{path} names {_file(moved)}, which is not there; copy it from {_file(found)}." if is_left_behind else ""


def _file(text: str) -> Path:
    """The path of a path or address."""
    return Path("/" + text.rpartition(":///")[2].lstrip("/"))


def _content_hash(spec: dict[str, Any]) -> str | None:
    """Hash of an experiment; None for one that cannot be validated here."""
    try:
        return build_experiment(spec, "spec.yaml").content_hash()
    except UserError:
        return None

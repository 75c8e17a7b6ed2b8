"""Places at which a home has been, and the check that MLflow's database still writes into it."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.storage.checksums import add_checksum, has_checksum, is_intact
from ditlab.storage.files import write_durably
from ditlab.storage.plain_files import MIB, parse_json, read_plain
from ditlab.tracking.relocation.database import first_home, refers_to_former_places
from ditlab.tracking.relocation.path_map import PathMap, found_paths

_log = logging.getLogger("ditlab.tracking")
_said: set[Path] = set()
"""Damaged files that were said in this process."""


def former_places(home: Home) -> tuple[Path, ...]:
    """Other folders at which this home has been, by its `places.json`; a home without one, by its MLflow database.

    A place that is the same folder by another path, such as a link, is none.
    """
    places = _recorded(home)
    if not places and (first := first_home(home.mlflow_database)):
        places = [first]
    return tuple(place for place in dict.fromkeys(places) if not _is_same(place, home.root))


def path_map(home: Home) -> PathMap:
    """Mapping of paths at the home's former places to the present one."""
    return PathMap(former_places(home), home.root)


def record_place(home: Home) -> None:
    """Add the home's folder to its `places.json`. A disk that refuses is passed over: a run would report it itself."""
    places = _recorded(home)
    if home.root not in places:
        with suppress(OSError):
            _write(home, [*places, home.root])


def forget_former_places(home: Home) -> None:
    """Make the home's folder the only one in its `places.json`. Raises OSError where the disk refuses."""
    _write(home, [home.root])


def check_place(home: Home, *written_to: Any) -> None:
    """Raise UserError for a moved or copied home that would write into the former one.

    `written_to` are values of a run's spec and record that hold addresses to which it writes, beside the home's own
    MLflow database.
    """
    mapping = path_map(home)
    if not mapping.former:
        return
    is_stale = any(True for _ in found_paths(list(written_to), mapping))
    if is_stale or refers_to_former_places(home.mlflow_database, mapping):
        place = mapping.former[-1]
        how = f"is a copy of {place}" if place.is_dir() else f"was moved from {place}"
        raise UserError(
            f"DITLAB_HOME={home.root} {how}, and its runs would still write there; run `ditlab runs relocate` once to "
            "make it a home of its own."
        )


def _recorded(home: Home) -> list[Path]:
    """Places of `places.json`; [] where it is missing, and with a warning, once a process, where it is damaged."""
    try:
        text = read_plain(home.places, MIB)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return _damaged(home, first_line(error))
    try:
        content = parse_json(text)
    except ValueError as error:
        return _damaged(home, first_line(error))
    if has_checksum(text) and not is_intact(text):
        return _damaged(home, "its checksum is wrong")
    places = content.get("places") if isinstance(content, dict) else None
    if not isinstance(places, list) or not all(_is_path(place) for place in places):
        return _damaged(home, "it holds no list of folders")
    return [Path(place) for place in places]


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/") and "\0" not in value


def _damaged(home: Home, reason: str) -> list[Path]:
    if home.places not in _said:
        _said.add(home.places)
        _log.warning(
            "%s is damaged (%s); whether this folder was moved or copied is known by MLflow's database alone",
            home.places, reason,
        )  # fmt: skip
    return []


def _write(home: Home, places: list[Path]) -> None:
    text = json.dumps({"places": [str(place) for place in places]}, indent=1)
    write_durably(home.places, add_checksum(text.encode()))


def _is_same(place: Path, root: Path) -> bool:
    try:
        return place == root or place.samefile(root)
    except OSError:
        return False

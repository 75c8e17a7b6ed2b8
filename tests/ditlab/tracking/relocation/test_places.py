"""Places of a home: recorded, and a moved or copied home noticed."""

import json
import os
import shutil
from pathlib import Path

import pytest

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.tracking.mlflow_connection import connect
from ditlab.tracking.relocation import check_place, former_places, path_map, record_place


@pytest.fixture
def made(home: Home, store: None) -> Home:
    """A home whose database has an experiment in it."""
    client = connect(f"sqlite:///{home.mlflow_database}", home)
    client.create_experiment("mine", artifact_location=str(home.artifacts / "mine"))
    record_place(home)
    return home


def test_a_home_where_it_was_made_has_no_former_place(made: Home) -> None:
    record_place(made)
    assert json.loads(made.places.read_text())["places"] == [str(made.root)]
    assert former_places(made) == ()
    check_place(made, f"sqlite:///{made.root}/other.db")


def test_a_copied_and_a_moved_home_are_refused_with_the_remedy(made: Home, tmp_path: Path) -> None:
    copy = Home(Path(shutil.copytree(made.root, tmp_path / "copy")))
    with pytest.raises(UserError, match=f"copy is a copy of {made.root}, .*run `ditlab runs relocate` once"):
        check_place(copy)
    moved = Home(made.root.rename(tmp_path / "moved"))
    with pytest.raises(UserError, match=f"moved was moved from {made.root}, "):
        check_place(moved)
    assert path_map(moved).relocated(str(made.artifacts / "mine")) == str(moved.artifacts / "mine")


def test_a_home_behind_a_link_is_the_same_home(made: Home, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(made.root)
    assert former_places(Home(tmp_path / "link")) == ()


def test_a_home_without_a_record_of_its_places_is_known_by_its_database(
    home: Home, store: None, tmp_path: Path
) -> None:
    """As homes of version 0.1 are."""
    copy = Home(Path(shutil.copytree(home.root, tmp_path / "copy")))
    assert former_places(home) == () and former_places(copy) == (home.root,)
    with pytest.raises(UserError, match="is a copy of"):
        check_place(copy)


def test_a_home_that_refers_to_nothing_there_may_move(home: Home, tmp_path: Path) -> None:
    """Its runs are tracked by a server; but a run that writes to a file there may not go on."""
    record_place(home)
    moved = Home(home.root.rename(tmp_path / "moved"))
    check_place(moved, "http://127.0.0.1:5000", {"storage": "s3://bucket/runs"})
    with pytest.raises(UserError, match="was moved from"):
        check_place(moved, {"storage": f"{home.root}/checkpoints"})
    record_place(moved)
    assert json.loads(moved.places.read_text())["places"] == [str(home.root), str(moved.root)]
    assert former_places(moved) == (home.root,)


def test_a_pipe_in_the_record_s_place_is_not_waited_for(home: Home) -> None:
    os.mkfifo(home.places)
    assert former_places(home) == ()


@pytest.mark.parametrize("text", ["", "[]", '{"places": 3}', '{"places": [3, "x", null]}', "[" * 100_000])
def test_a_damaged_record_is_none(home: Home, text: str) -> None:
    home.places.write_text(text)
    assert former_places(home) == ()
    record_place(home)
    assert former_places(home) == () and json.loads(home.places.read_text())["places"] == [str(home.root)]

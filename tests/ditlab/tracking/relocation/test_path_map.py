"""Mapping of paths and addresses at former places."""

from pathlib import Path

import pytest

from ditlab.tracking.relocation import PathMap, found_paths

MOVED = PathMap((Path("/old/runs"),), Path("/new/runs"))


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("/old/runs", "/new/runs"),
        ("/old/runs/stores/mine", "/new/runs/stores/mine"),
        ("sqlite:////old/runs/mlflow.db", "sqlite:////new/runs/mlflow.db"),
        ("sqlite+pysqlite:////old/runs/x.db", "sqlite+pysqlite:////new/runs/x.db"),
        ("file:///old/runs/a%20b", "file:///new/runs/a%20b"),
        ("/old/runs-2/stores", None),
        ("/new/runs/stores", None),
        ("old/runs/stores", None),
        ("s3://old/runs/x", None),
        ("http://old/runs", None),
        ("a picture of /old/runs", None),
        ("", None),
    ],
)
def test_paths_at_a_former_place_alone_are_mapped(text: str, moved: str | None) -> None:
    assert MOVED.relocated(text) == moved


def test_of_places_in_each_other_the_innermost_counts() -> None:
    into_itself = PathMap((Path("/data"),), Path("/data/runs"))
    assert into_itself.relocated("/data/stores/x") == "/data/runs/stores/x"
    assert into_itself.relocated("/data/runs/stores/x") is None  # mapped already
    out_of_itself = PathMap((Path("/data/runs"),), Path("/data"))
    assert out_of_itself.relocated("/data/runs/stores/x") == "/data/stores/x"
    assert out_of_itself.relocated("/data/stores/x") is None


def test_values_are_mapped_wherever_they_stand() -> None:
    spec = {"data": {"path": "/old/runs/stores/x"}, "axis": ["/old/runs/a", 3, None], "/old/runs": 1.5}
    assert MOVED.relocated_value(spec) == {
        "data": {"path": "/new/runs/stores/x"},
        "axis": ["/new/runs/a", 3, None],
        "/old/runs": 1.5,
    }
    assert list(found_paths(spec, MOVED)) == ["/old/runs/stores/x", "/old/runs/a"]

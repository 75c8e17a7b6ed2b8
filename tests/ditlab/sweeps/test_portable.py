"""A portable sweep holds absolute paths: workers have other working directories."""

import pytest

from ditlab.sweeps.prepare import portable_sweep
from support.sweeps import BASE, LR, sweep_of

STORES = {"one": {"kind": "arrow", "path": "one"}, "two": {"kind": "arrow", "path": "~/two"}}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))


def portable(home, *space, **changes):
    return portable_sweep(sweep_of(*space, **changes), home)[0]


def listed(sweep, path):
    return list(sweep.space[path].values)


def data(path):
    return {**BASE, "data": {"kind": "arrow", "path": path}}


def test_name_of_a_store_becomes_its_path(home):
    known = home.stores / "known"
    known.mkdir(parents=True)
    (known / "store.json").touch()
    assert portable(home, base=data("known")).base["data"]["path"] == str(known)


def test_axis_over_whole_data_sections(home, tmp_path):
    values = [*STORES.values(), {"kind": "digits"}]
    found = portable(home, {"data": {"kind": "choice", "values": values}})
    assert listed(found, "data") == [
        {"kind": "arrow", "path": str(tmp_path / "one")},
        {"kind": "arrow", "path": str(tmp_path / "me" / "two")},
        {"kind": "digits"},
    ]


def test_axis_over_paths(home, tmp_path):
    axis = {"kind": "grid", "values": ["one", "~/two", "../three", "/four", "s3://bucket/five"]}
    found = portable(home, {"data.path": axis}, base=data("one"), trials=5)
    there = [tmp_path / "one", tmp_path / "me" / "two", tmp_path.parent / "three"]
    assert listed(found, "data.path") == [*map(str, there), "/four", "s3://bucket/five"]


def test_paths_under_fixed(home, tmp_path):
    found = portable(home, fixed={"data": STORES["one"], "checkpoint.storage": "kept"})
    assert found.fixed == {
        "data": {"kind": "arrow", "path": str(tmp_path / "one")},
        "checkpoint.storage": str(tmp_path / "kept"),
    }
    found = portable(home, base=data("one"), fixed={"data.path": "two"})
    assert found.fixed == {"data.path": str(tmp_path / "two")}
    assert found.base["data"]["path"] == str(tmp_path / "one")


def test_values_that_are_no_paths_stay(home):
    space = {
        **LR,
        "model.depth": {"kind": "choice", "values": [1, 2]},
        "objective.time": {"kind": "choice", "values": [{"kind": "uniform"}]},
    }
    sweep = sweep_of(space, fixed={"training.steps": 3, "name": "one"})
    assert portable_sweep(sweep, home)[0].to_dict() == sweep.to_dict()


def test_portable_sweep_stays_the_same_in_another_directory(home, monkeypatch, tmp_path):
    once = portable(
        home,
        {"data": {"kind": "choice", "values": list(STORES.values())}},
        fixed={"checkpoint.storage": "x"},
    )
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert portable_sweep(once, home)[0].to_dict() == once.to_dict()


def test_tracking_address(home):
    sweep, address = portable_sweep(sweep_of(), home)
    assert "tracking.uri" not in sweep.fixed and address  # DITLAB_HOME can be moved
    sweep, address = portable_sweep(sweep_of(fixed={"tracking.uri": "http://host:5000"}), home)
    assert sweep.fixed["tracking.uri"] == address == "http://host:5000"


def test_paths_of_a_mixture_s_parts(home, tmp_path):
    data = {"kind": "mixture", "parts": STORES, "weights": {"one": 1.0, "two": 2.0}}
    axis = {"kind": "grid", "values": ["one", "three"]}
    found = portable(home, {"data.parts.one.path": axis}, base={**BASE, "data": data}, trials=4)
    assert found.base["data"]["parts"]["two"]["path"] == str(tmp_path / "me" / "two")
    assert listed(found, "data.parts.one.path") == [str(tmp_path / "one"), str(tmp_path / "three")]

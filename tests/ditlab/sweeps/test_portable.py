"""Wherever a sweep names a place, it is an absolute one: workers have other working directories."""

import pytest

from ditlab.errors import UserError
from ditlab.sweeps.portable import portable_sweep
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


def test_a_store_known_by_its_name(home, tmp_path):
    known = home.stores / "known"
    known.mkdir(parents=True)
    (known / "store.json").touch()
    base = {**BASE, "data": {"kind": "arrow", "path": "known"}}
    assert portable(home, base=base).base["data"]["path"] == str(known)


@pytest.mark.parametrize("kind", ["choice", "grid"])
def test_an_axis_of_data(home, tmp_path, kind):
    """A section of its own a value."""
    values = [*STORES.values(), {"kind": "digits"}]
    found = portable(home, {"data": {"kind": kind, "values": values}})
    assert listed(found, "data") == [
        {"kind": "arrow", "path": str(tmp_path / "one")},
        {"kind": "arrow", "path": str(tmp_path / "me" / "two")},
        {"kind": "digits"},
    ]


def test_an_axis_of_paths(home, tmp_path):
    base = {**BASE, "data": STORES["one"]}
    paths = ["one", "~/two", "../three", "/four", "s3://bucket/five"]
    found = portable(home, {"data.path": {"kind": "grid", "values": paths}}, base=base, trials=5)
    there = ["one", "me/two"]
    assert listed(found, "data.path") == [
        *(str(tmp_path / path) for path in there), str(tmp_path.parent / "three"), "/four", "s3://bucket/five"
    ]  # fmt: skip


def test_what_is_fixed(home, tmp_path):
    found = portable(home, fixed={"data": STORES["one"], "checkpoint.storage": "kept"})
    assert found.fixed == {
        "data": {"kind": "arrow", "path": str(tmp_path / "one")}, "checkpoint.storage": str(tmp_path / "kept")
    }  # fmt: skip
    found = portable(home, base={**BASE, "data": STORES["one"]}, fixed={"data.path": "two"})
    assert found.fixed == {"data.path": str(tmp_path / "two")}
    assert found.base["data"]["path"] == str(tmp_path / "one")


def test_what_is_no_place_stays(home):
    space = {**LR, "model.depth": {"kind": "choice", "values": [1, 2]}, "objective.time": {
        "kind": "choice", "values": [{"kind": "uniform"}, {"kind": "logit_normal", "std": 1.0}]}}  # fmt: skip
    sweep = sweep_of(space, fixed={"training.steps": 3, "name": "one"})
    assert portable_sweep(sweep, home)[0].to_dict() == sweep.to_dict()


def test_twice_is_once(home, monkeypatch, tmp_path):
    """A sweep that is resumed elsewhere is the same."""
    once = portable(
        home, {"data": {"kind": "choice", "values": list(STORES.values())}}, fixed={"checkpoint.storage": "x"}
    )
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert portable_sweep(once, home)[0].to_dict() == once.to_dict()


def test_where_it_is_tracked(home, tmp_path):
    sweep, address = portable_sweep(sweep_of(), home)
    assert "tracking.uri" not in sweep.fixed and address  # DITLAB_HOME can be moved
    sweep, address = portable_sweep(sweep_of(fixed={"tracking.uri": "http://host:5000"}), home)
    assert sweep.fixed["tracking.uri"] == address == "http://host:5000"
    with pytest.raises(UserError, match=r"http://me:\*\*\*@host:5000 holds a password") as caught:
        portable(home, fixed={"tracking.uri": "http://me:word@host:5000"})
    assert "word@" not in str(caught.value)

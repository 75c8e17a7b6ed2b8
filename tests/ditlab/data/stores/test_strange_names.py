"""Names of stores that are links, or that no file system takes."""

from pathlib import Path

from ditlab.data.named_stores import open_named_store
from ditlab.data.stores.bucketed_store import holds_store
from support.damage import refused


def test_a_linked_store_is_opened_and_a_circle_is_told(make_store, tmp_path, home, monkeypatch):
    store = make_store(rows=5)
    home.stores.mkdir(parents=True)
    (home.stores / "linked").symlink_to(store.path)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    monkeypatch.chdir(tmp_path)
    assert open_named_store("PATH", "linked", home).fingerprint == store.fingerprint
    with refused(r"circle leads to no folder \((Symlink loop|a link in a circle).*\); name"):
        open_named_store("data.path", "circle", home)


def test_names_that_no_file_system_takes(home):
    odd = ("x" * 5000, "~nobody-of-this-name/x", "/" + "y/" * 3000, "..", "no/../../where")
    for name in odd:
        with refused(r"holds no store|leads to no folder"):
            open_named_store("PATH", name, home)
    assert not holds_store(Path("x" * 5000))

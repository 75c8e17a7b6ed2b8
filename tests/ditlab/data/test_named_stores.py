"""Names of stores: a name is a file that points to a folder with a fingerprint, and a run keeps the
data it had.
"""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ditlab.data.named_stores import pointed_folder, portable_name, store_folder
from ditlab.home import Home
from support import databases
from support.command import Said, run_inside
from support.damage import refused
from support.datasets.photographs import captioned_folder, smooth

SPEC = """
name: pets
model:
  {family: dit, image_size: 16, channels: 3, patch_size: 4, width: 16, depth: 1, num_heads: 2, num_classes: 3}
data: {kind: arrow, path: pets}
batch: {size: 8}
optimizer: {kind: adamw, lr: 1.0e-3}
training: {steps: 3}
evaluation: {every: 3, samples: 4, quality: 0}
checkpoint: {every: 3}
sampling: {steps: 2}
"""


CLASSES = ("--label-from", "folder")


@pytest.fixture(scope="module")
def place(tmp_path_factory, mlflow_template) -> Path:
    """Folder of a home in which a run `pets` was trained on a store of three classes."""
    path = tmp_path_factory.mktemp("named")
    databases.seed(Home(path / "home").ensure().root, mlflow_template)
    names = [f"{folder}/{n}.png" for folder in ("animals", "plants", "trucks") for n in range(8)]
    captioned_folder(
        path / "pets", {name: (smooth(20, 24, n), None) for n, name in enumerate(names)}
    )
    assert imported(path).code == 0
    (path / "pets.yaml").write_text(SPEC)
    said = ditlab(path, "train", "pets.yaml", "--local", "--json")
    assert said.code == 0, said.err
    return path


def ditlab(place: Path, *arguments: object) -> Said:
    return run_inside(*arguments, home=place / "home", cwd=place)


def imported(place: Path, *arguments: str) -> Said:
    return imported_from(place, "pets", *CLASSES, "--name", "pets", *arguments)


def imported_from(place: Path, source: str, *arguments: str) -> Said:
    options = ("--resolution", "16", "--patch", "4", "--sizes", "square", "--json")
    return ditlab(place, "data", "import", "images", "--source", source, *options, *arguments)


def values(place: Path) -> dict[str, float]:
    return ditlab(place, "evaluate", "pets", "--json").json["metrics"]


def tracked(place: Path) -> dict[str, float]:
    """Latest values of held-out metrics in MLflow's database."""
    with closing(sqlite3.connect(place / "home" / "mlflow.db")) as database:
        return dict(
            database.execute("SELECT key, value FROM latest_metrics WHERE key LIKE 'eval/%'")
        )


@pytest.mark.slow
def test_a_run_keeps_its_data_when_their_name_is_imported_again(place):
    measured, in_mlflow = values(place), tracked(place)
    (old,) = ditlab(place, "data", "list", "--json").json["stores"]
    assert imported(place).json["stores"][0]["outcome"] == "unchanged"
    captioned_folder(
        place / "pets", {f"birds/{n}.png": (smooth(20, 24, n), None) for n in range(3)}
    )
    refused = imported(place)
    assert (
        refused.code == 2
        and f"pets means {old['store']}, on which " in refused.err
        and "(pets) trained" in refused.err
    )
    assert [
        (each["name"], each["rows"])
        for each in ditlab(place, "data", "list", "--json").json["stores"]
    ].count(("pets", 24)) == 1, "the name stays where it was"
    moved = imported(place, "--replace")
    assert (
        moved.code == 0
        and moved.json["stores"][0]["outcome"] == "replaced"
        and "stays for" in moved.err
    )
    new = pointed_folder(place / "home" / "stores" / "pets").name
    assert new != old["store"] and values(place) == measured, "the run is measured on its own data"
    assert in_mlflow and tracked(place) == in_mlflow
    report = Path(ditlab(place, "report", "pets", "--json").json["file"]).read_text()
    assert old["store"] in report and new not in report
    assert ditlab(place, "verify", "pets").code == 0
    drawn = ditlab(place, "sample", "pets", "--label", "plants", "--num", "2", "--json").json[
        "files"
    ]
    assert "label1" in drawn[0], (
        "plants are number 1 of the run's classes, and 2 of the new store's"
    )
    refused = ditlab(place, "train", "pets.yaml", "--local", "--resume", "pets")
    assert refused.code == 2 and new in refused.err and old["store"] in refused.err
    listed = {
        each["store"]: each for each in ditlab(place, "data", "list", "--json").json["stores"]
    }
    assert listed[new]["name"] == "pets" and not listed[new]["runs"] and listed[new]["classes"] == 4
    assert len(listed[old["store"]]["runs"]) == 1 and listed[old["store"]]["name"] == ""
    refused = ditlab(place, "data", "rm", old["store"], "--yes")
    assert refused.code == 2 and "is needed by" in refused.err and "--needed" in refused.err
    asked = ditlab(place, "data", "rm", new, "--json")
    assert asked.code == 2 and "give --yes" in asked.json["message"], "nobody is there to be asked"
    assert ditlab(place, "data", "rm", new, "--yes").code == 0
    assert not (place / "home" / "stores" / "pets").exists(), "the name that meant it goes as well"


def test_other_data_in_the_place_of_a_runs_are_refused_with_both_fingerprints(place):
    """As of a URI, or of a folder that another program writes: the run's own store is another one
    by a trick.
    """
    home = place / "home"
    (own,) = [folder for folder in (home / "stores").glob("pets@*") if folder.is_dir()]
    aside, other = own.with_name("aside"), place / "other"
    captioned_folder(
        other, {f"{name}/{n}.png": (smooth(20, 24, n), None) for name in "abc" for n in range(9)}
    )
    assert imported_from(place, "other", *CLASSES, "--name", "other").code == 0
    before, in_mlflow = values(place), tracked(place)
    own.rename(aside)
    pointed_folder(home / "stores" / "other").rename(own)
    try:
        refused = ditlab(place, "evaluate", "pets")
        assert (
            refused.code == 2
            and own.name.partition("@")[2] in refused.err
            and "--anyway" in refused.err
        )
        assert "class 0 of label is a, and was animals" in refused.err
        anyway = ditlab(place, "evaluate", "pets", "--anyway")
        assert (
            anyway.code == 0
            and "other data, not added to the run" in anyway.out
            and tracked(place) == in_mlflow
        )
        assert (
            "is other data"
            not in ditlab(place, "sample", "pets", "--label", "plants", "--num", "2").err
        )
        assert ditlab(place, "verify", "pets").code != 0
    finally:
        own.rename(own.with_name("gone"))
        aside.rename(own)
    assert values(place) == before


def test_names_and_fingerprints(tmp_path, monkeypatch, make_store):
    home = Home(tmp_path / "home").ensure()
    home.stores.mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)
    folder = home.stores / "pets@1a2b3c4d5e6f"
    make_store(rows=5).path.rename(folder)
    (home.stores / "pets").write_text(
        json.dumps({"format": "ditlab-name", "version": 1, "store": folder.name})
    )
    for name in (
        "pets",
        "pets@1a2b",
        "pets@1a2b3c4d5e6f",
        "pets@1a2b3c4d5e6f0000",
        str(home.stores / "pets"),
    ):
        assert store_folder(name, home) == folder
    assert portable_name(folder, home) == folder.name
    assert store_folder("pets@ffff", home) == tmp_path / "pets@ffff", "none: named as it is written"
    (home.stores / "pets@1a2bffffffff").mkdir()
    with refused("is the beginning of several stores' names"):
        pointed_folder(home.stores / "pets@1a2b")
    odd_source = '{"format": "ditlab-name", "version": 1, "store": "x", "source": [3]}'
    for content in (
        "",
        "{}",
        odd_source,
        '{"format": "ditlab-name", "version": 1, "store": "../x"}',
    ):
        (home.stores / "pets").write_text(content)
        with refused("is no name of a store"):
            store_folder("pets", home)
    os.truncate(home.stores / "pets", 1 << 40)  # more than any memory
    with refused("is no name of a store"):
        store_folder("pets", home)


def test_two_sources_of_one_name_are_kept_apart(tmp_path, mlflow_template):
    """No run was trained on the first: it is not replaced in silence all the same."""
    for number, folder in enumerate(("a", "b")):
        captioned_folder(
            tmp_path / folder / "pets",
            {f"{n}.png": (smooth(20, 24, n + number), "one") for n in range(3)},
        )

    assert imported_from(tmp_path, "a/pets").code == 0
    [name] = [path for path in (tmp_path / "home" / "stores").iterdir() if path.is_file()]
    refused = imported_from(tmp_path, "b/pets")
    assert (
        refused.code == 2
        and "a/pets, and " in refused.err
        and "b/pets is another source" in refused.err
    )
    old = pointed_folder(name)
    captioned_folder(tmp_path / "a" / "pets", {"9.png": (smooth(20, 24, 9), "one")})
    assert (
        imported_from(tmp_path, "a/pets").code == 0
        and pointed_folder(name) != old
        and not old.exists()
    )
    assert (
        imported_from(tmp_path, "b/pets", "--replace").code == 0
        and imported_from(tmp_path, "a/pets", "--name", "other").code == 0
    )

"""Names of stores: a name is a file that points to a folder with a fingerprint, and a run keeps the
data it had.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ditlab.data.named_stores import StoreName, pointed_folder, portable_name, store_folder
from ditlab.home import Home
from ditlab.reports.page import read_description
from ditlab.tracking.journal import recorded_dataset
from support import databases
from support.command import run_inside
from support.damage import refused
from support.datasets.photographs import captioned_folder, smooth

SPEC = """
name: pets
model:
  {family: dit, image_size: 16, channels: 3, patch_size: 4, width: 16, depth: 1, num_heads: 2, num_classes: 4}
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
def said():
    """Output of the import and the training of `place`."""
    return {}


@pytest.fixture(scope="module")
def place(tmp_path_factory, mlflow_template, said):
    """Folder of a home in which a run `pets` was trained on a store of four classes, one of them
    without a sample.
    """
    path = tmp_path_factory.mktemp("named")
    databases.seed(Home(path / "home").ensure().root, mlflow_template)
    names = [f"{folder}/{n}.png" for folder in ("animals", "plants", "trucks") for n in range(8)]
    pictures = {name: (smooth(20, 24, n), None) for n, name in enumerate(names)}
    captioned_folder(path / "pets", {**pictures, "zebras/0.png": (b"no picture", None)})
    said["import"] = imported(path).ok()
    (path / "pets.yaml").write_text(SPEC)
    said["train"] = ditlab(path, "train", "pets.yaml", "--local", "--json").ok()
    return path


def ditlab(place, *arguments):
    return run_inside(*arguments, home=place / "home", cwd=place)


def imported(place, *arguments):
    return imported_from(place, "pets", *CLASSES, "--name", "pets", *arguments)


def imported_from(place, source, *arguments):
    options = ("--resolution", "16", "--patch", "4", "--sizes", "square", "--json")
    return ditlab(place, "data", "import", "images", "--source", source, *options, *arguments)


def listed(place):
    return ditlab(place, "data", "list", "--json").json["stores"]


def values(place):
    return ditlab(place, "evaluate", "pets", "--json").json["metrics"]


def tracked(place):
    """Latest values of held-out metrics in MLflow's database."""
    with closing(sqlite3.connect(place / "home" / "mlflow.db")) as database:
        return dict(
            database.execute("SELECT key, value FROM latest_metrics WHERE key LIKE 'eval/%'")
        )


@pytest.mark.slow
def test_a_run_keeps_its_data_when_their_name_is_imported_again(place):
    measured, in_mlflow = values(place), tracked(place)
    (old,) = listed(place)
    assert imported(place).json["stores"][0]["outcome"] == "unchanged"
    captioned_folder(
        place / "pets", {f"birds/{n}.png": (smooth(20, 24, n), None) for n in range(3)}
    )
    imported(place).refused(f"pets means {old['store']}, on which ", "(pets) trained")
    named = [(each["name"], each["rows"]) for each in listed(place)]
    assert named.count(("pets", 24)) == 1, "the name stays where it was"
    moved = imported(place, "--replace")
    assert moved.json["stores"][0]["outcome"] == "replaced" and "stays for" in moved.err
    new = pointed_folder(place / "home" / "stores" / "pets").name
    assert new != old["store"] and values(place) == measured, "the run is measured on its own data"
    assert in_mlflow and tracked(place) == in_mlflow
    report = Path(ditlab(place, "report", "pets", "--json").json["file"]).read_text()
    assert old["store"] in report and new not in report
    ditlab(place, "verify", "pets").ok()
    drawn = ditlab(place, "sample", "pets", "--label", "plants", "--num", "2", "--json")
    assert "label1" in drawn.json["files"][0], (
        "plants are number 1 of the run's classes, and 2 of the new store's"
    )
    resumed = ditlab(place, "train", "pets.yaml", "--local", "--resume", "pets")
    resumed.refused(new, old["store"])
    facts = {each["store"]: each for each in listed(place)}
    own = facts[old["store"]]
    assert len(own["runs"]) == 1 and own["name"] == ""
    own = facts[new]
    assert (own["name"], own["runs"], own["classes"]) == ("pets", [], 5)
    ditlab(place, "data", "rm", old["store"], "--yes").refused("is needed by", "--needed")
    asked = ditlab(place, "data", "rm", new, "--json")
    assert asked.code == 2 and "give --yes" in asked.json["message"], "nobody is there to be asked"
    ditlab(place, "data", "rm", new, "--yes").ok()
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
    imported_from(place, "other", *CLASSES, "--name", "other").ok()
    before, in_mlflow = values(place), tracked(place)
    own.rename(aside)
    pointed_folder(home / "stores" / "other").rename(own)
    try:
        words = (own.name.partition("@")[2], "--anyway", "class 0 of label is a, and was animals")
        ditlab(place, "evaluate", "pets").refused(*words)
        anyway = ditlab(place, "evaluate", "pets", "--anyway").ok()
        assert "other data, not added to the run" in anyway.out
        assert tracked(place) == in_mlflow
        drawn = ditlab(place, "sample", "pets", "--label", "plants", "--num", "2")
        assert "is other data" not in drawn.err
        assert ditlab(place, "verify", "pets").code != 0
    finally:
        own.rename(own.with_name("gone"))
        aside.rename(own)
    assert values(place) == before


def test_a_class_without_a_sample_is_named_and_not_drawn_unasked(place, said):
    """In the import, before training, and in samples: those of no class in particular are of the
    others in turn. Samples are shown with the names of their classes."""
    assert "1 class has no sample: zebras" in said["import"].err
    assert "holds no sample of zebras" in said["train"].err
    run = Home(place / "home").run(said["train"].json["run_id"])
    assert recorded_dataset(run.journal)["sampled"] == [0, 1, 2]
    shown = (run.media / "samples-00000003.captions").read_text()
    assert shown == "animals\nplants\ntrucks\nanimals\n", (
        "an evaluation's grid has names, which MLflow and the page show"
    )
    asked = ("--label", "zebras", "--num", "2", "--trajectory", "--json")
    drawn = ditlab(place, "sample", run.run_id, *asked)
    pictures = [file for file in map(Path, drawn.json["files"]) if file.suffix in (".png", ".gif")]
    described = {read_description(file.with_suffix(".png")) for file in pictures}
    assert len(pictures) == 2 and described == {"2 samples of zebras, 2 in a row."}


def test_names_and_fingerprints(tmp_path, monkeypatch, make_store):
    home = Home(tmp_path / "home").ensure()
    home.stores.mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)
    folder = home.stores / "pets@1a2b3c4d5e6f"
    make_store(rows=5).path.rename(folder)
    pets = home.stores / "pets"
    pets.write_text(StoreName(store=folder.name).model_dump_json())
    for name in ("pets", "pets@1a2b", folder.name, "pets@1a2b3c4d5e6f0000", str(pets)):
        assert store_folder(name, home) == folder
    assert portable_name(folder, home) == folder.name
    assert store_folder("pets@ffff", home) == tmp_path / "pets@ffff", "none: named as it is written"
    (home.stores / "pets@1a2bffffffff").mkdir()
    with refused("is the beginning of several stores' names"):
        pointed_folder(home.stores / "pets@1a2b")
    for content in (
        "",
        '{"format": "ditlab-name", "version": 1, "store": "x", "source": [3]}',
        '{"format": "ditlab-name", "version": 1, "store": "../x"}',
    ):
        pets.write_text(content)
        with refused("is no name of a store"):
            store_folder("pets", home)
    os.truncate(pets, 1 << 40)  # more than any memory
    with refused("is no name of a store"):
        store_folder("pets", home)


def test_two_sources_of_one_name_are_kept_apart(tmp_path, mlflow_template):
    """No run was trained on the first: it is not replaced in silence all the same."""
    for number, folder in enumerate(("a", "b")):
        captioned_folder(
            tmp_path / folder / "pets",
            {f"{n}.png": (smooth(20, 24, n + number), "one") for n in range(3)},
        )

    imported_from(tmp_path, "a/pets").ok()
    [name] = [path for path in (tmp_path / "home" / "stores").iterdir() if path.is_file()]
    imported_from(tmp_path, "b/pets").refused("a/pets, and ", "b/pets is another source")
    old = pointed_folder(name)
    captioned_folder(tmp_path / "a" / "pets", {"9.png": (smooth(20, 24, 9), "one")})
    imported_from(tmp_path, "a/pets").ok()
    assert pointed_folder(name) != old and not old.exists()
    imported_from(tmp_path, "b/pets", "--replace").ok()
    imported_from(tmp_path, "a/pets", "--name", "other").ok()

"""Classes of a run's data against those of the label table that it begins from: by name, or said."""

import pytest
from PIL import Image

from ditlab.api.training import train
from ditlab.data.importing import ImportRequest, run_import
from ditlab.runs.prepare import check_launch, launch_notes
from ditlab.spec.importing import ImagesOptions
from ditlab.spec.start import Start
from ditlab.spec.yaml_text import parse_yaml
from ditlab.sweeps.prepare import _check_trial
from ditlab.training.export import export_weights
from ditlab.weights.class_names import class_lines, unmatched_names, unused_numbers
from support.damage import refused
from support.trainings.forks import small

UNNAMED = "does not name its classes: class 0 of the data, 3, is taken for its class 0, and so on"
UNUSED = "model.num_classes=10, and the data have 3 classes, the first of the table (class 0 is 3)"


def store(folder, name, digits, **options):
    """Import grey pictures of class folders."""
    source = folder / f"pictures-{name}"
    for number, digit in enumerate(digits * 8):
        place = source / digit / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 20 * number % 256).save(place)
    text = "{label_from: folder, sizes: square, grey: true, resolution: 8, patch: 4, processes: 1}"
    given = {"source": str(source), "name": name, **parse_yaml(text, "options"), **options}
    request = ImportRequest(folder / "stores", folder / "caches", ImagesOptions(**given))
    run_import("images", request)


def spec(path, **changes):
    chosen = {"model__num_classes": 10, "training__steps": 1, "batch__size": 8, "batch__micro": 8}
    return small(**{"data": {"kind": "arrow", "path": path}, **chosen, **changes})


@pytest.fixture
def stores(home):
    """Stores of the digits 3, 7 and 8: numbered from 0, and as a file has them."""
    store(home.root, "three", "378")
    store(home.root, "other", "389")
    listed = home.root / "classes.txt"
    listed.write_text("\n".join("0123456789"))
    store(home.root, "ten", "378", classes=str(listed))
    return home


@pytest.fixture
def named(stores):
    """Id of a run on the three digits, whose names its journal has."""
    return train(spec("three"), local=True, warn=print).run_id


@pytest.fixture
def unnamed(stores):
    """Id of a run on ten digits without names."""
    return train(spec("", data={"kind": "digits"}), local=True, warn=print).run_id


def said(experiment):
    launch = check_launch(experiment, None, local=True, remote=False)
    return " ".join(launch_notes(launch))


def fork(parent, path):
    start = Start(run=parent, step=1, state="trained")
    return spec(path, start=start.model_dump())


def test_a_table_of_more_classes_than_the_data_is_said(stores):
    assert UNUSED in said(spec("three")) and "num_classes" not in said(spec("ten"))


def test_a_table_whose_classes_have_no_names_is_said(stores, unnamed):
    line = said(fork(unnamed, "three"))
    assert UNNAMED in line and UNUSED in line and "--classes FILE` fixes the numbers" in line
    line = said(fork(unnamed, "ten"))
    assert "class 0 of the data, 0, is taken for its class 0" in line and UNUSED not in line


def test_names_are_compared_with_those_of_a_parent(stores, named):
    assert "is taken for" not in said(fork(named, "three"))
    with refused(rf"class 1 of label is 8 in the data, and 7 to run {named}, .*--classes FILE"):
        said(fork(named, "other"))
    with refused(r"class 0 of label is 0 in the data, and 3 to run"):
        said(fork(named, "ten"))


def test_trials_of_a_sweep_are_compared_as_runs_are(stores, named):
    assert _check_trial(fork(named, "three"), stores, False, {})[1] == 1
    with refused(rf"class 1 of label is 8 in the data, and 7 to run {named}"):
        _check_trial(fork(named, "other"), stores, False, {})


def test_names_are_compared_with_those_of_weights(stores, named, tmp_path):
    run = stores.run(named)
    (newest,) = (run.path / "checkpoints").glob("*1")
    files = export_weights(newest, tmp_path / "export", classes=["3", "7", "8"])
    assert files[-1].read_text() == "3\n7\n8\n"
    weights = {"from": str(tmp_path / "export")}
    assert "is taken for" not in said(spec("three", model__init=weights))
    with refused(r"class 1 of label is 8 in the data, and 7 to the weights.*classes\.txt\), or"):
        said(spec("other", model__init=weights))
    loose = weights | {"strict": False}
    assert "class 1 of label is 8 in the data, and 7 to" in said(spec("other", model__init=loose))
    files[-1].unlink()
    assert UNNAMED in said(spec("three", model__init=weights))


@pytest.mark.parametrize(
    "theirs, own, words",
    [
        ([], ["a"], "run x does not name its classes: class 0 of the data, a, is taken"),
        (["a"], [], "the data do not name their classes: class 0 is taken for a of run x"),
        (["a"], ["a"], ""),
        ([], [], ""),
    ],
)
def test_what_one_side_alone_names(theirs, own, words):
    found = unmatched_names("run x", theirs, own)
    assert found.startswith(words) and bool(found) == bool(words)


def test_as_many_classes_are_not_worth_a_word_and_names_are_lines():
    assert unused_numbers(3, 3, ()) == unused_numbers(2, 3, ()) == ""
    assert class_lines(["a b", "c"]) == b"a b\nc\n"
    assert class_lines([]) == class_lines(["a\nb"]) == class_lines([" a"]) == b""

"""Paths in specs: which folder they are taken from, and that no variables are read in them."""

import pytest

from ditlab.spec import files
from ditlab.spec.files import load_experiment
from ditlab.spec.sweep import load_sweep
from support.damage import refused
from support.specs import refusal

SWEEP = """\
name: s
base: {folder}/child.yaml
space: {{optimizer.lr: {{kind: choice, values: [0.1]}}}}
trials: 1
metric: eval/velocity
"""


@pytest.fixture
def lab(tmp_path, monkeypatch, small, write):
    """A parent in `lab/`, its child in `lab/mine/`, and a working directory beside them."""
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    files._warn_once.cache_clear()
    for folder in ("work", "home/stores/known", "lab/mine"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    data = {"data": {"kind": "arrow", "path": "../pets/store"}, "checkpoint": {"storage": "kept"}}
    write("lab/base.yaml", {**small, **data})
    write("lab/mine/child.yaml", {"extends": "../base.yaml"})
    return tmp_path


def child(lab, *overrides):
    return load_experiment(lab / "lab/mine/child.yaml", overrides)


def test_a_path_is_taken_from_the_folder_of_its_own_file(lab, caplog):
    (lab / "pets/store").mkdir(parents=True)
    found = child(lab, "sampling.steps=3")
    assert found.data.path == str(lab / "pets/store")
    assert found.checkpoint.storage == str(lab / "lab/kept")
    assert child(lab, "data.path=pets/more", "checkpoint.storage=here").data.path == str(
        lab / "work/pets/more"
    )
    assert not caplog.records


def test_mixtures_encoders_masks_and_sweeps_have_paths_too(lab, write, small):
    parts = {
        name: {"kind": "arrow", "path": path}
        for name, path in (("a", "./a"), ("b", "known"), ("c", "s3://b/c"))
    }
    mixture = {"kind": "mixture", "parts": parts, "weights": {"a": 1.0, "b": 1.0, "c": 1.0}}
    write("lab/mixture.yaml", {**small, "data": mixture})
    found = load_experiment(lab / "lab/mixture.yaml").data.parts
    assert [found[name].path for name in "abc"] == [str(lab / "lab/a"), "known", "s3://b/c"]
    path = write(
        "lab/masked.yaml",
        {
            "sampling": {"mask": {"path": "ask.bed"}},
            "encoders": {"text": "Qwen/Qwen3-0.6B"},
            "evaluation": {"scorer": {"model": "models/gpt2"}},
        },
    )
    (lab / "lab/Qwen").mkdir()
    assert files.read_with_parents(path) == {
        "sampling": {"mask": {"path": str(lab / "lab/ask.bed")}},
        "encoders": {"text": "Qwen/Qwen3-0.6B"},
        "evaluation": {"scorer": {"model": str(lab / "lab/models/gpt2")}},
    }
    (lab / "lab/Qwen/Qwen3-0.6B").mkdir()
    assert files.read_with_parents(path)["encoders"]["text"] == str(lab / "lab/Qwen/Qwen3-0.6B")
    sweep = SWEEP.format(folder="mine") + "fixed: {checkpoint.storage: ../all}\n"
    axis = (
        "data.path: {kind: choice, values: [./x, ./y]}, seed: {kind: choice, values: [1, 2], "
        "when: {data.path: ./x}}"
    )
    sweep = sweep.replace("{optimizer.lr", f"{{{axis}, optimizer.lr")
    read = load_sweep(write("lab/sweep.yaml", sweep), ["fixed.data.path=../z"])
    assert read.fixed == {"checkpoint.storage": str(lab / "all"), "data.path": str(lab / "z")}
    assert read.space["data.path"].values == (str(lab / "lab/x"), str(lab / "lab/y"))
    assert read.space["seed"].when == {"data.path": str(lab / "lab/x")}
    assert read.base["checkpoint"]["storage"] == str(lab / "lab/kept")


def test_a_plain_name_is_a_store_of_the_home(lab, small, write, caplog):
    path = write("work/plain.yaml", {**small, "data": {"kind": "arrow", "path": "known"}})
    assert load_experiment(path).data.path == "known"
    (lab / "work/known").mkdir()
    assert load_experiment(path).data.path == "known"
    assert load_experiment(path, ["data.path=./known"]).data.path == str(lab / "work/known")
    assert not caplog.records


@pytest.mark.parametrize(
    ("override", "variable"),
    [
        ("data.path=${DATA}/pets", "${DATA}"),
        ("checkpoint.storage=s3://$BUCKET/x", "$BUCKET"),
        ("tracking.uri=http://$HOST:5000", "$HOST"),
        ("tracking.experiment=${USER}", "${USER}"),
    ],
)
def test_variables_are_refused(lab, override, variable):
    assert refusal(child, lab, override).endswith(
        f"{override}: variables such as {variable} are not read in specs; write what it stands for."
    )


def test_variables_of_sweeps_and_of_parents_are_refused(lab, small, write):
    sweep = SWEEP.format(folder="mine")
    for text in (
        sweep.replace("optimizer.lr: {", "data.path: {").replace("[0.1]", "['${X}/a', b]"),
        f"{sweep}fixed: {{data.path: $X}}",
    ):
        with refused("are not read in specs; write what it stands for"):
            load_sweep(write("lab/sweep.yaml", text))
    path = write("lab/x.yaml", {"extends": "$LAB/base.yaml"})
    with refused(r"extends=\$LAB/base\.yaml names no file"):
        load_experiment(path)
    assert load_experiment(
        write("y.yaml", {**small, "tracking": {"experiment": "costs $5 or $more"}})
    )

"""`ditlab eject` and `ditlab runs adopt`: what a file cannot hold, what it says, and its way back."""

import ast
import os
import re
import subprocess
import sys
from functools import partial

import pytest

from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab.spec.files import build_experiment
from ditlab.spec.yaml_text import parse_yaml
from ditlab_addons.check.eject.adopting import EjectedTraining, adopt
from ditlab_addons.check.eject.ejecting import SPEC_FOLLOWS, eject, written_fields
from support.damage import refused
from support.trainings.ejected import eject_into, train_here
from support.trainings.family_specs import FAMILIES, smallest
from support.trainings.proven import MIXTURE

UNFIT = [
    ({"training__precision": "fp16"}, "training.precision=fp16"),
    ({"training__freeze": ["head"]}, "training.freeze"),
    ({"training__lora": {"rank": 2, "targets": ["*"]}}, "training.lora"),
    ({"engine__zero__offload": "cpu"}, "engine.zero.offload=cpu"),
    (
        {
            "optimizer": {"kind": "schedule_free_adamw"},
            "schedule": {"kind": "constant"},
            "training__ema": None,
        },
        "optimizer.kind",
    ),
    ({"schedule": {"kind": "inverse_sqrt", "warmup": 4}}, "schedule.kind=inverse_sqrt"),
    ({"data": MIXTURE}, "data.kind=mixture"),
]


@pytest.mark.parametrize(("changes", "words"), UNFIT)
def test_what_a_file_cannot_hold_is_one_sentence(changes, words, home):
    experiment = smallest("dit", **changes)
    with refused(re.escape(words)):
        eject(experiment, open_data(experiment.data, Home(home)))


def test_written_fields_give_the_same_experiment():
    for family in FAMILIES:
        for changes in ({}, {"optimizer": {"kind": "muon"}}, {"schedule": {"kind": "constant"}}):
            experiment = smallest(family, **changes)
            assert build_experiment(written_fields(experiment), "a test") == experiment


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_linter_and_a_type_checker_pass(family, home, tmp_path):
    file = eject_into(smallest(family), tmp_path)
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True)
    checks = (
        ["ruff", "check", "--isolated", file.name],
        ["mypy", "--config-file", os.devnull, "--ignore-missing-imports", file.name],
    )
    for command in checks:
        done = run([sys.executable, "-m", *command])
        assert done.returncode == 0, done.stdout


@pytest.fixture
def out(ditlab, spec, tmp_path):
    """The file of the small spec."""
    path = tmp_path / "train.py"
    ditlab("eject", spec, "--out", path).ok()
    return path


def test_a_file_stays_where_it_is(ditlab, spec, out):
    text = out.read_text()
    ditlab("eject", spec, "--out", out).refused("--out", "is there already")
    assert out.read_text() == text
    docstring = ast.get_docstring(ast.parse(text))
    own = parse_yaml(docstring.partition(SPEC_FOLLOWS)[2], "train.py")
    assert own["name"] == "small"


def test_settings_that_a_file_leaves_out_are_said(ditlab, spec, tmp_path):
    out = tmp_path / "train.py"
    said = ditlab("eject", spec, "--out", out, "--json", "--set", "engine.zero.stage=3").ok()
    (sentence,) = said.json["left_out"]
    assert "engine.zero.stage=3 is 1 in the file" in sentence


@pytest.mark.slow
def test_a_training_of_a_changed_file_is_adopted(ditlab, out, tmp_path):
    out.write_text(out.read_text().replace("return noise - data", "return 1.0 * (noise - data)"))
    train_here(out, tmp_path / "out")
    with (tmp_path / "out/log.jsonl").open("a") as log:
        log.write('{"step": 5, "train/loss": 1.0}\n{"step": 6, "tra')
    said = ditlab("runs", "adopt", tmp_path / "out", "--json").ok()
    assert "velocity_target" in said.err
    assert "1 lines of the log lie behind the last checkpoint, of step 4" in said.err
    assert said.json["status"] == "finished"
    assert said.json["step"] == 4
    assert {"train/loss", "eval/velocity"} <= said.json["metrics"].keys()
    run = said.json["run_id"]
    listed = ditlab("runs", "--json").ok().json["runs"]
    assert [each["run_id"] for each in listed] == [run]
    ditlab("sample", run, "--num", "2", "--out", tmp_path / "samples").ok()
    ditlab("export", run, "--out", tmp_path / "export").ok()


def test_a_changed_file_does_not_go_on_in_the_folder_of_another(out, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/train.py").write_text("another text")
    with pytest.raises(SystemExit, match="was trained by another text of this file"):
        train_here(out, tmp_path / "out")
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["train.py"]


def test_a_folder_of_something_else_is_refused(ditlab, tmp_path):
    ditlab("runs", "adopt", tmp_path).refused("train.py", "ditlab eject")
    (tmp_path / "train.py").write_text('"""A file."""\n')
    ditlab("runs", "adopt", tmp_path).refused("does not end its docstring with the spec")


@pytest.mark.slow
def test_weights_of_another_network_are_refused(home, tmp_path):
    experiment = smallest("dit", training__steps=4)
    file = eject_into(experiment, tmp_path)
    file.write_text(file.read_text().replace("width: int = 16", "width: int = 32"))
    train_here(file, tmp_path / "out")
    with refused("a changed network comes back as a family of its own"):
        adopt(tmp_path / "out")
    assert not [*home.glob("train/*")]
    assert EjectedTraining(tmp_path / "out").changes(Home.from_environment())

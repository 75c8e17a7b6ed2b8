"""Specs that `ditlab new` writes: the content of a shipped one, each field below its meaning."""

import re

import pytest

from ditlab.spec.files import is_sweep, load_experiment
from ditlab.spec.sweep import load_sweep
from ditlab.spec.sweep_space import check_sweep
from ditlab_addons.starters.starters import describe, shipped, write_commented
from ditlab_models.dit.spec import DiTSpec
from support.damage import refused


@pytest.mark.parametrize("like", shipped())
def test_the_written_spec_is_the_shipped_one(like, tmp_path):
    shown = shipped()[like]
    path = write_commented(str(tmp_path / "mine"), like)
    load, rest = (load_sweep, {"base": 0}) if is_sweep(path) else (load_experiment, {})
    written, own = load(path).to_dict(), load(shown).to_dict()
    assert written | rest | {"name": own["name"]} == own | rest
    if is_sweep(path):
        check_sweep(load(path), like)
        assert load(path).base["name"]
    lines = path.read_text().splitlines()
    comments = [line.strip() for line in lines if line.lstrip().startswith("#")]
    assert describe(shown)[:20] in comments[0] and max(map(len, lines)) <= 110
    assert all(len(comment) > 2 for comment in comments)


def test_fields_stand_below_their_meaning_in_the_order_of_the_reference(tmp_path):
    lines = write_commented(str(tmp_path / "mine.yaml"), "digits/demo").read_text().splitlines()
    top = [line.partition(":")[0] for line in lines if line[:1].isalpha()]
    assert top[:4] == ["name", "seed", "model", "data"]
    assert {"resources", "batch", "training"} < {*top}
    depth = next(number for number, line in enumerate(lines) if line.startswith("  depth:"))
    assert lines[depth - 1] == f"  # {DiTSpec.model_fields['depth'].description}"
    assert "  # Adam with decoupled weight decay." in lines


@pytest.mark.parametrize(
    ("name", "like", "said"),
    [
        ("taken", "digits/dit", "taken.yaml exists, and is left as it is; give another NAME"),
        (
            "mine",
            "digits/dti",
            "--like digits/dti is none of the experiments that come with DiTLab; did you mean",
        ),
        ("-x", "digits/dit", "name='-x' must begin with a letter or digit"),
        (
            "taken.yaml/mine",
            "digits/dit",
            "mine.yaml cannot be written (Not a directory); give another NAME.",
        ),
    ],
)
def test_mistakes_are_told_and_no_file_is_overwritten(tmp_path, name, like, said):
    (tmp_path / "taken.yaml").write_text("mine")
    with refused(re.escape(said)):
        write_commented(str(tmp_path / name), like)
    assert [path.read_text() for path in tmp_path.rglob("*.yaml")] == ["mine"]


def test_new_lists_and_writes(ditlab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = ditlab("new").ok()
    assert "digits/sweep_schedule " in said.out
    assert said.err.endswith("new NAME --like digits/dit\n")
    assert {*ditlab("new", "--list", "--json").json["experiments"]} == {*shipped()}
    said = ditlab("new", "mine", "--like", "digits/dit")
    assert (said.code, said.out) == (0, "mine.yaml\n")
    assert said.err.endswith("train mine.yaml --quick\n")
    for arguments in (["mine"], ["--like", "digits/dit"]):
        ditlab("new", *arguments).refused()

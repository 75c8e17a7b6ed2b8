"""Specs that `ditlab new` writes: the content of a shipped one."""

import pytest

from ditlab.errors import UserError
from ditlab.spec.files import is_sweep, load_experiment
from ditlab.spec.starters import describe, shipped, write_spec
from ditlab.spec.sweep import load_sweep
from ditlab.spec.sweep_space import check_sweep


@pytest.mark.parametrize("like", shipped())
def test_the_written_spec_is_the_shipped_one(like, tmp_path):
    shown = shipped()[like]
    path = write_spec(str(tmp_path / "mine"), like)
    load, rest = (load_sweep, {"base": 0}) if is_sweep(path) else (load_experiment, {})
    written, own = load(path).to_dict(), load(shown).to_dict()
    assert written | rest | {"name": own["name"]} == own | rest
    if is_sweep(path):
        check_sweep(load(path), like)
        assert load(path).base["name"]
    assert describe(shown)[:20] in path.read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("name", "like", "said"),
    [
        ("taken", "digits/dit", "taken.yaml exists, and is left as it is; give another NAME"),
        ("mine", "digits/dti", "--like digits/dti is none of the experiments that come with DiTLab; did you mean"),
        ("-x", "digits/dit", "name='-x' must begin with a letter or digit"),
        ("taken.yaml/mine", "digits/dit", "mine.yaml cannot be written (Not a directory); give another NAME."),
    ],
)
def test_mistakes_are_told_and_no_file_is_overwritten(tmp_path, name, like, said):
    (tmp_path / "taken.yaml").write_text("mine")
    with pytest.raises(UserError) as error:
        write_spec(str(tmp_path / name), like)
    assert said in str(error.value)
    assert [path.read_text() for path in tmp_path.rglob("*.yaml")] == ["mine"]

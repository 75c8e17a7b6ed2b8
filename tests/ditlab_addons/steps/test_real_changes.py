"""A changed field makes exactly the steps again that are made of it: with the real commands."""

import pytest

from ditlab.spec.yaml_text import dump_yaml
from support.command import run_process
from support.trainings.family_specs import smallest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SWEEP = {
    "name": "rates",
    "base": "digits.yaml",
    "space": {"optimizer.lr": {"kind": "grid", "values": [1e-3, 1e-2]}},
    "search": {"kind": "grid"},
    "metric": "eval/velocity",
    "fixed": {"training.steps": 2},
}
OTHER_SPACE = {"space": {"optimizer.lr": {"kind": "grid", "values": [2e-3, 2e-2]}}}
"""Other values, so that another one wins."""
BEGUN = {
    "digits": {"import": "digits"},
    "base": {"train": "digits.yaml", "data": "digits"},
    "grown": {"train": "digits.yaml", "weights-of": "base", "set": {"seed": 1}},
    "other": {"train": "digits.yaml", "for": {"seed": [2, 3]}},
    "scores": {"evaluate": ["base", "other"]},
    "handed": {"export": "grown"},
}
SWEPT = {
    "rates": {"tune": "rates.yaml"},
    "long": {"train": "digits.yaml", "settings-of": "rates", "set": {"seed": 7}},
    "apart": {"train": "digits.yaml", "set": {"seed": 8}},
    "drawn": {"sample": "rates"},
    "page": {"compare": ["long", "apart"]},
}
IMPORTED = {
    "text": {"import": "text", "set": {"source": "texts", "length": 16}},
    "words": {"train": "text.yaml", "data": "text"},
    "seeds": {"train": "text.yaml", "data": "text", "seeds": 2, "set": {"training.steps": 2}},
    "apart": {"train": "digits.yaml"},
    "scores": {"evaluate": ["seeds", "apart"]},
}


@pytest.fixture
def folder(tmp_path):
    constant = {"schedule": {"kind": "constant"}}
    digits = smallest("dit", data__kind="digits", training__steps=2, **constant)
    (tmp_path / "digits.yaml").write_text(dump_yaml(digits.to_dict()))
    text = smallest("dlm", training__steps=3, **constant)
    (tmp_path / "text.yaml").write_text(dump_yaml(text.to_dict()))
    (tmp_path / "rates.yaml").write_text(dump_yaml(SWEEP))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("To be, or not to be, that is the question. " * 40)
    return tmp_path


@pytest.fixture
def make(folder):
    """Function that makes steps, and returns those whose commands ran."""

    def make(steps):
        study = folder / "study.yaml"
        study.write_text(dump_yaml({"name": "study", "steps": steps}))
        said = run_process("make", study, "--json", home=folder / "home", timeout=900).ok()
        assert {each["status"] for each in said.json["steps"]} == {"done"}
        return {line.split(" | ")[0] for line in said.err.splitlines() if "| ditlab " in line}

    return make


@pytest.mark.parametrize(
    ("steps", "path", "value", "again"),
    [
        (BEGUN, "base.set", {"optimizer.lr": 1e-2}, {"base", "grown", "scores", "handed"}),
        (SWEPT, "rates.set", OTHER_SPACE, {"rates", "long", "drawn", "page"}),
        (IMPORTED, "texts", "All the world's a stage. " * 90, {"text", "words", "seeds", "scores"}),
    ],
)
def test_exactly_the_descendants_are_made_again(make, folder, steps, path, value, again):
    all_steps = make(steps)
    assert {name.rpartition("-")[0] or name for name in all_steps} == set(steps)
    assert make(dict(reversed(steps.items()))) == set()
    if path == "texts":
        (folder / "texts" / "a.txt").write_text(value)
        changed = steps
    else:
        step, field = path.split(".")
        changed = steps | {step: steps[step] | {field: value}}
    assert make(changed) == again

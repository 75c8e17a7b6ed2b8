"""Files of steps: what they say, in which order, and what is refused in a sentence."""

import pytest

from ditlab.errors import UserError
from ditlab.spec.yaml_text import dump_yaml
from ditlab_addons.steps.graph import graph_schema, load_graph
from ditlab_addons.steps.tasks import load_checked_graph
from support.damage import refused
from support.trainings.family_specs import smallest

STUDY = """
name: study
steps:
  page: {compare: [base, long]}
  digits: {import: digits}
  base: {train: dit.yaml, data: digits}
  rates: {tune: sweep.yaml, data: digits, set: {trials: 6}}
  long: {train: dit.yaml, settings-of: rates, set: {training.steps: 4000}}
  wide: {train: dit.yaml, weights-of: base, for: {model.width: [64, 128], seed: [1, 2]}}
  scores: {evaluate: [base, wide], quality: 500}
  handed: {export: long, format: diffusers}
"""


@pytest.fixture
def loaded(tmp_path):
    def load(more: str = "", *overrides: str):
        path = tmp_path / "study.yaml"
        path.write_text(STUDY + more)
        return load_graph(path, overrides)

    return load


def test_each_step_comes_after_those_that_it_needs(loaded):
    graph = loaded()
    assert graph.describe() == "11 steps"
    places = {name: number for number, name in enumerate(graph.steps)}
    for step in graph.steps.values():
        assert all(places[name] < places[step.name] for name in step.needed)
    assert graph.steps["wide-3"].values == {"model.width": 128, "seed": 1}
    assert graph.steps["scores"].needed == ("base", "wide-1", "wide-2", "wide-3", "wide-4")
    assert len(graph.with_needed(["wide"])) == 6
    assert [each.name for each in graph.with_needed(["handed"])] == [
        "digits",
        "rates",
        "long",
        "handed",
    ]


def test_settings_of_a_command_line(loaded):
    changed = ("steps.scores.quality=200", "steps.long.set.training.steps=10", "name=other")
    graph = loaded("", *changed)
    assert graph.name == "other"
    assert graph.steps["scores"].step.value("quality") == 200
    assert graph.steps["long"].changes() == {"training.steps": 10}
    with refused(r"--set steps\.scors\.quality=1: steps\.scors is no step; did you mean 'scores'"):
        loaded("", "steps.scors.quality=1")
    assert loaded("  v1.0: {train: x}\n", "steps.v1.0.set.seed=3").steps["v1.0"].changes() == {
        "seed": 3
    }
    for step in ("null", "[1]", "{train: x, set: 3}"):
        with refused(r"steps\.a is no step"):
            loaded(f"  a: {step}\n", "steps.a.set.seed=3")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("{train: x.yaml, data: base}", "data=base makes a training, and data needs data"),
        ("{train: x.yaml, settings-of: base}", "settings-of needs a sweep; name another step"),
        ("{export: basee}", r"export='basee' is no step; did you mean 'base'"),
        ("{export: wide}", "export=wide are 4 steps; name one of them, such as wide-1"),
        (
            "{export: b}\n  b: {train: x, seeds: 3}",
            "export=b trains several seeds, and export needs one run",
        ),
        ("{compare: [base]}", "compare=base is one run; name another as well"),
        ("{train: x.yaml, for: {seed: []}}", r"for\.seed=\[\] must hold at least 1 value"),
        ("{export: base, out: o}\n  b: {export: base, out: p/../o}", "the folder of steps.a"),
        ("{train: x, tune: y}", "one of the fields import, .*; it has train and tune"),
        ("{}", "it has none"),
        ("{train: x, for: {seed: [1]}}\n  a-1: {train: x}", "makes a-1, another step; rename"),
        ("{train: 3}", "train=3 must be text"),
        ("{train: x, weights_of: base}", "weights_of='base' is no known field; did you mean"),
        ("{train: x, weights-of: a}", r"needs itself \(a -> a\)"),
        ("{train: x, weights-of: b}\n  b: {train: x, weights-of: a}", r"\(a -> b -> a\)"),
    ],
)
def test_a_step_that_is_wrong_is_refused(loaded, step, words):
    with pytest.raises(UserError, match=rf"steps\.[ab].*{words}"):
        loaded(f"  a: {step}\n")


def test_a_name_that_is_no_name_is_refused(loaded):
    with refused("name='a b' must begin with a letter or digit and hold only letters"):
        loaded("  a b: {import: digits}\n")


def test_a_step_that_is_not_there_is_refused(loaded):
    with refused("STEP=bse is no step of study; did you mean 'base'"):
        loaded().with_needed(["bse"])


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("{train: spec.yaml, set: {model.depht: 3}}", "has no field 'depht'; did you mean 'depth'"),
        ("{train: nothing.yaml}", "nothing.yaml: no such file"),
        ("{tune: spec.yaml}", "it is an experiment"),
        ("{train: g.yaml}", "a file with `steps` is a graph of steps"),
        ("{import: digist}", "did you mean 'digits'"),
        ("{export: b, format: onnx}\n  b: {train: spec.yaml}", "format=onnx is unknown"),
    ],
)
def test_the_specs_of_steps_are_checked(tmp_path, step, words):
    (tmp_path / "spec.yaml").write_text(dump_yaml(smallest("dit").to_dict()))
    (tmp_path / "g.yaml").write_text(f"name: g\nsteps:\n  a: {step}\n")
    with pytest.raises(UserError, match=rf"g\.yaml: steps\.a: .*{words}"):
        load_checked_graph(tmp_path / "g.yaml")


def test_the_schema_knows_every_kind():
    kinds = graph_schema()["$defs"]
    assert {"ImportStep", "TrainStep", "ExportStep"} <= kinds.keys()
    assert kinds["TrainStep"]["properties"].keys() >= {"train", "weights-of", "settings-of", "for"}

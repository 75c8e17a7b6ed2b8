"""Files of steps: what they say, in which order, and what is refused in a sentence."""

import pytest

from ditlab.errors import UserError
from ditlab_addons.steps.graph import graph_schema, load_graph
from support.damage import refused

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
        ("{compare: [base]}", r"compare=\['base'\]"),
        ("{train: x, tune: y}", "one of the fields import, .*; it has train and tune"),
        ("{}", "it has none"),
        ("{train: 3}", "train=3 must be text"),
        ("{train: x, weights_of: base}", "weights_of='base' is no known field; did you mean"),
        ("{train: x, weights-of: a}", r"needs itself \(a -> a\)"),
        ("{train: x, weights-of: b}\n  b: {train: x, weights-of: a}", r"\(a -> b -> a\)"),
    ],
)
def test_a_step_that_is_wrong_is_refused(loaded, step, words):
    with pytest.raises(UserError, match=rf"steps\.a.*{words}"):
        loaded(f"  a: {step}\n")


def test_a_step_that_is_not_there_is_refused(loaded):
    with refused("STEP=bse is no step of study; did you mean 'base'"):
        loaded().with_needed(["bse"])


def test_the_schema_knows_every_kind():
    kinds = graph_schema()["$defs"]
    assert {"ImportStep", "TrainStep", "ExportStep"} <= kinds.keys()
    assert kinds["TrainStep"]["properties"].keys() >= {"train", "weights-of", "settings-of", "for"}

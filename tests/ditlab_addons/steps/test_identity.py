"""Identities of steps change with everything that changes a result, and with nothing else."""

import os

import pytest

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab_addons.steps.graph import load_graph
from ditlab_addons.steps.ledger import Made
from ditlab_addons.steps.tasks import TaskMaker, decisive, is_there, read_files
from support.damage import refused
from support.sweeps import sweep_of
from support.trainings.family_specs import smallest


@pytest.fixture
def identity(home, tmp_path):
    """Function of the fields of a step that returns the identity of its first command."""
    spec = smallest("dit", data__kind="digits").to_dict()
    (tmp_path / "spec.yaml").write_text(dump_yaml(spec))
    graph = tmp_path / "g.yaml"

    def of(**fields):
        graph.write_text(dump_yaml({"name": "g", "steps": {"a": fields}}))
        maker = TaskMaker(load_graph(graph), Home(home))
        maker.runs.weights = lambda run, step=None: (4, f"weights of {run} at {step}", 1)
        (task,) = maker.tasks(maker.graph.steps["a"], {})
        return task.identity

    return of


def test_settings_that_decide_a_training_count_and_others_do_not(identity):
    base = identity(train="spec.yaml")
    begun = {"run": "1a2b3c4d", "step": 4, "state": "trained"}
    other = {
        identity(train="spec.yaml", set=changes)
        for changes in (
            {"seed": 5},
            {"training.stop": {"metric": "eval/velocity", "patience": 2}},
            {"start": begun},
            {"start": begun | {"run": "5e6f7a8b"}},
            {"start": begun | {"step": 2}},
        )
    }
    assert len(other | {base}) == 6
    for changes in (
        {"name": "other"},
        {"engine.zero.stage": 0},
        {"resources.cpus_per_worker": 1},
        {"sampling.steps": 3},
        {"checkpoint.keep": 1},
    ):
        assert identity(train="./spec.yaml", set=changes) == base


def test_files_count_by_what_they_are(identity, tmp_path):
    source = tmp_path / "texts"
    source.mkdir()
    (source / "a.txt").write_text("To be")
    (source / "gone").symlink_to("nowhere")
    before = identity(**{"import": "text"}, set={"source": "texts", "length": 16})
    again = {"source": "./texts/../texts", "length": 16, "processes": 2}
    assert identity(**{"import": "text"}, set=again) == before
    (source / "a.txt").write_text("Or not")
    assert identity(**{"import": "text"}, set=again) != before
    source.rename(tmp_path / "texts[1]")
    identity(**{"import": "text"}, set={"source": "texts[1]"})
    identity(**{"import": "text"}, set={"source": "texts*/*.txt"})
    with refused("texts is not there"):
        identity(**{"import": "text"}, set=again)


def test_files_that_another_wrote_over_are_no_result(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_text("ours")
    made = read_files({"files": [str(file)]})
    assert is_there(made, None)
    file.write_text("another's")
    assert not is_there(made, None)
    assert not is_there(Made(digest="", place=str(tmp_path / "store")), None)


def test_names_and_places_decide_nothing_of_a_sweep():
    sweep = sweep_of()
    renamed = {**sweep.base, "name": "other", "checkpoint": {"keep": 7}}
    changed = sweep.model_copy(
        update={"base": renamed, "fixed": {"tracking.uri": "file:///x", "data.path": "/there"}}
    )
    assert decisive(sweep).to_dict() == decisive(changed).to_dict()
    slower = sweep.model_copy(update={"fixed": {"optimizer.lr": 1.0}})
    assert decisive(sweep).to_dict() != decisive(slower).to_dict()


def test_paths_in_settings_are_of_the_graph_s_folder(identity, tmp_path, monkeypatch):
    (tmp_path / "weights.safetensors").write_bytes(b"1")
    init = {"model.init": {"from": "weights.safetensors"}}
    before = identity(train="spec.yaml", set=init)
    monkeypatch.chdir(os.sep)
    assert identity(train="spec.yaml", set=init) == before
    (tmp_path / "weights.safetensors").write_bytes(b"22")
    assert identity(train="spec.yaml", set=init) != before
    with pytest.raises(UserError, match=r"nothing\.yaml: no such file"):
        identity(train="nothing.yaml")

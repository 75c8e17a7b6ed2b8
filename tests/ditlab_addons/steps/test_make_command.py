"""`ditlab make` with the real commands: the bits of commands that are typed, kills, and runs that
are there already.
"""

import random
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.records import list_runs
from ditlab_addons.steps.tasks import Runs
from support.command import run_process, start_process
from support.trainings.family_specs import smallest

pytestmark = pytest.mark.timeout(1500)

GRAPH = {
    "name": "study",
    "steps": {
        "digits": {"import": "digits"},
        "base": {"train": "small.yaml", "data": "digits"},
        "grown": {"train": "small.yaml", "weights-of": "base", "set": {"seed": 1}},
        "wide": {"train": "small.yaml", "for": {"seed": [2, 3]}},
        "scores": {"evaluate": ["base", "grown", "wide"]},
        "drawn": {"sample": "base", "num": 4},
        "handed": {"export": "base"},
    },
}
DRAWS = 6
"""Moments of kills."""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    spec = smallest("dit", data__kind="digits", training__steps=4, checkpoint__every=2)
    (folder / "small.yaml").write_text(dump_yaml(spec.to_dict()))
    (folder / "study.yaml").write_text(dump_yaml(GRAPH))
    return folder / "study.yaml"


def make(study, home, *words):
    return run_process("make", study, "--local", "--json", *words, home=home, timeout=600)


def weights(home) -> list[str]:
    """Hashes of the last weights of all finished runs."""
    runs = Runs(Home(home))
    finished = [each.run_id for each in list_runs(Home(home)) if each.status == "finished"]
    return sorted(runs.weights(run_id)[1] for run_id in finished)


@pytest.fixture(scope="module")
def unbroken(study, tmp_path_factory):
    home = tmp_path_factory.mktemp("unbroken")
    said = make(study, home).ok()
    assert {each["status"] for each in said.json["steps"]} == {"done"}
    return home


@pytest.mark.slow
def test_a_second_make_does_nothing(study, unbroken):
    before = {record.run_id for record in list_runs(Home(unbroken))}
    said = make(study, unbroken).ok()
    assert "| ditlab" not in said.err
    assert {record.run_id for record in list_runs(Home(unbroken))} == before


@pytest.mark.slow
def test_commands_that_are_typed_give_the_same_bits_and_count(study, unbroken, tmp_path):
    def type_(*words):
        return run_process(*words, "--json", home=tmp_path).ok().json

    spec = study.parent / "small.yaml"
    run = type_("train", spec, "--local")["run_id"]
    assert set(weights(tmp_path)) < set(weights(unbroken))
    said = make(study, tmp_path, "base").ok()
    assert said.json["steps"][-1]["runs"] == [run]
    assert "| ditlab train" not in said.err
    made = {each["step"]: each for each in make(study, unbroken).ok().json["steps"]}
    metrics = made["scores"]["metrics"][0]
    assert type_("evaluate", run)["metrics"] == pytest.approx(metrics, rel=0, abs=0)
    drawn = next(Path(each) for each in type_("sample", run, "--num", "4")["files"])
    handed = type_("export", run, "--out", tmp_path / "handed")["files"]
    assert_same_files(drawn.parent, Path(made["drawn"]["places"][0]).parent)
    assert_same_files(Path(handed[0]).parent, Path(made["handed"]["places"][0]).parent)


def assert_same_files(one: Path, other: Path) -> None:
    """Assert that two folders have tensors of the same names and bits."""
    names = {file.name for file in one.glob("*.safetensors")}
    assert names and names == {file.name for file in other.glob("*.safetensors")}
    for name in names:
        found = load_file(one / name)
        expected = load_file(other / name)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in found)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(DRAWS))
def test_a_killed_graph_goes_on_to_the_same_results(study, unbroken, tmp_path, number):
    draw = random.Random(number)
    leader = start_process("make", study, "--local", "--at-once", "2", home=tmp_path)
    time.sleep(draw.uniform(1, 40))
    below = []
    if leader.poll() is None:
        below = [each.pid for each in psutil.Process(leader.pid).children(recursive=True)]
    victims = {
        "leader": [leader.pid],
        "worker": below[:1],
        "both": [*reversed(below), leader.pid],
    }[draw.choice(["leader", "worker", "both"])]
    for pid in victims:
        if psutil.pid_exists(pid):
            psutil.Process(pid).send_signal(signal.SIGKILL)
    leader.communicate()
    said = make(study, tmp_path).ok()
    assert {each["status"] for each in said.json["steps"]} == {"done"}
    assert weights(tmp_path) == weights(unbroken)
    assert len(list_runs(Home(tmp_path))) == len(list_runs(Home(unbroken)))
    assert "| ditlab" not in make(study, tmp_path).ok().err


@pytest.mark.slow
def test_a_removed_run_is_made_again(study, tmp_path):
    made = make(study, tmp_path, "grown").ok()
    (run,) = made.json["steps"][-1]["runs"]
    said = run_process("runs", "rm", run, "--yes", home=tmp_path).ok()
    assert f"{run} is step grown of study, needed by no other; `ditlab make`" in said.err
    stage = ("--set", "steps.base.set.engine.zero.stage=0")
    dry = make(study, tmp_path, "grown", "--dry-run", *stage).ok()
    remark = "made with engine.zero.stage 1, not 0; its last bits may differ"
    assert [each["reason"] for each in dry.json["steps"]] == ["", remark, "its result is gone"]
    dry = make(study, tmp_path, "grown", "--dry-run", "--forecast").ok()
    assert [bool(each["forecast"]) for each in dry.json["steps"]] == [False, False, True]
    assert [each["reason"] for each in dry.json["steps"]] == ["", "", "its result is gone"]
    assert make(study, tmp_path, "grown").ok().json["steps"][-1]["runs"] != [run]

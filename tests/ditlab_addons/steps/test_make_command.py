"""`ditlab make` with the real commands: the bits of commands that are typed, kills, and runs that
are there already.
"""

import random
import signal
import time

import psutil
import pytest

from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.records import list_runs
from ditlab_addons.steps.tasks import Runs
from support.command import run_process, start_process
from support.trainings.family_specs import smallest

GRAPH = {
    "name": "study",
    "steps": {
        "digits": {"import": "digits"},
        "base": {"train": "small.yaml", "data": "digits"},
        "grown": {"train": "small.yaml", "weights-of": "base", "set": {"seed": 1}},
        "wide": {"train": "small.yaml", "for": {"seed": [2, 3]}},
        "scores": {"evaluate": ["base", "grown", "wide"]},
        "handed": {"export": "grown"},
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
    return run_process("make", study, "--local", "--json", *words, home=home, OMP_NUM_THREADS="1")


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
    spec = study.parent / "small.yaml"
    typed = ("train", spec, "--local", "--set", "seed=2")
    run_process(*typed, home=tmp_path, OMP_NUM_THREADS="1").ok()
    (record,) = list_runs(Home(tmp_path))
    assert set(weights(tmp_path)) < set(weights(unbroken))
    said = make(study, tmp_path, "wide-1").ok()
    assert said.json["steps"][-1]["runs"] == [record.run_id]
    assert "| ditlab train" not in said.err


@pytest.mark.slow
@pytest.mark.parametrize("number", range(DRAWS))
def test_a_killed_graph_goes_on_to_the_same_results(study, unbroken, tmp_path, number):
    draw = random.Random(number)
    leader = start_process(
        "make", study, "--local", "--at-once", "2", home=tmp_path, OMP_NUM_THREADS="1"
    )
    time.sleep(draw.uniform(1, 40))
    killed = [leader.pid]
    if leader.poll() is None and draw.random() < 0.5:
        killed += [each.pid for each in psutil.Process(leader.pid).children(recursive=True)]
    for pid in reversed(killed):
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
    run_process("runs", "rm", run, "--yes", home=tmp_path).ok()
    dry = make(study, tmp_path, "grown", "--dry-run").ok()
    assert [each["reason"] for each in dry.json["steps"]] == ["", "", "its result is gone"]
    assert make(study, tmp_path, "grown").ok().json["steps"][-1]["runs"] != [run]

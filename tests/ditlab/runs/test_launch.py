"""The record of a launch: as it travels to workers, and what it opens once."""

import json

from ditlab.home import Home
from ditlab.runs.launch import Launch
from ditlab.runs.prepare import check_launch
from ditlab.spec import compiling
from ditlab.training.recovery import MemoryPlan
from support.damage import refused
from support.trainings.workers import tiny


def test_a_launch_is_plain_json_and_comes_back_equal(tmp_path):
    memory = MemoryPlan(microbatch_splits=1, skipped_steps=(3, 4, 5), step=5, attempts=4)
    launch = Launch(
        tiny(),
        Home(tmp_path),
        "abcd1234",
        resumed=True,
        before=tiny(training__steps=2),
        tags={"ditlab.trial": "3"},
        memory=memory,
        trial_channel="trial-x",
        gated=True,
        versions={"ray": "2.60.0"},
        observers=("a.b:c",),
    )
    again = Launch.from_dict(json.loads(json.dumps(launch.to_dict())))
    assert again == launch
    assert again.folder.path == tmp_path / "train" / "abcd1234"
    assert again.checkpoints().location == str(tmp_path / "train" / "abcd1234" / "checkpoints")


def test_checkpoints_of_another_storage_lie_under_the_runs_id(tmp_path):
    storage = str(tmp_path / "elsewhere")
    launch = Launch(tiny(checkpoint={"storage": storage}), Home(tmp_path), "abcd1234")
    assert launch.checkpoints().location == f"{storage}/abcd1234"


def test_a_torch_that_loses_gradients_is_refused_before_a_run_exists(tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path))
    monkeypatch.setattr(compiling, "installed_torch", lambda: "2.11.0+cu130")
    spec = tiny(engine={"compile": True, "zero": {"stage": 3}})
    with refused(r"loses gradients under torch 2\.11\.0; install torch 2\.13 or later"):
        check_launch(spec, None, local=True, remote=False)
    assert not (tmp_path / "train").exists()

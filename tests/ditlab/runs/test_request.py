"""The request of a run as it travels to workers."""

import json
from dataclasses import replace

from ditlab.home import Home
from ditlab.runs.request import RunRequest
from ditlab.training.recovery import MemoryPlan
from support.trainings.workers import tiny


def test_a_request_is_plain_json_and_comes_back_equal(tmp_path):
    memory = MemoryPlan(halvings=1, skipped_steps=(3, 4, 5), step=5, attempts=4)
    request = RunRequest(
        tiny(), "abcd1234", Home(tmp_path), resumed=True, tags={"ditlab.trial": "3"}, memory=memory,
        trial_channel="trial-x", gated=True, versions={"ray": "2.60.0"},
    )  # fmt: skip
    again = RunRequest.from_dict(json.loads(json.dumps(request.to_dict())))
    assert again == request
    assert again.folder.path == tmp_path / "train" / "abcd1234"
    assert again.checkpoints().location == str(tmp_path / "train" / "abcd1234" / "checkpoints")


def test_checkpoints_of_another_storage_lie_under_the_runs_id(tmp_path):
    request = RunRequest(tiny(), "abcd1234", Home(tmp_path), resumed=False)
    elsewhere = replace(request, experiment=tiny(checkpoint={"storage": str(tmp_path / "elsewhere")}))
    assert elsewhere.checkpoints().location == str(tmp_path / "elsewhere" / "abcd1234")


def test_further_tags_are_added():
    request = RunRequest(tiny(), "abcd1234", Home.from_environment(), resumed=False, tags={"a": "1", "b": "2"})
    assert request.with_tags({"b": "3"}).tags == {"a": "1", "b": "3"}

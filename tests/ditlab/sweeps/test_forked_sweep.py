"""A sweep whose trials go on from one checkpoint."""

import pytest

from ditlab.api.sweeps import tune
from ditlab.api.training import train
from ditlab.runs.launch import recorded_checkpoints
from ditlab.spec.sweep import build_sweep
from ditlab.tracking.records import list_runs, read_record
from ditlab_addons.housekeeping.removal import plan_removal, remove_runs
from support.damage import refused
from support.sweeps import prepared, small_sweep, started, sweep_of
from support.trainings.workers import newest, same_state, tiny


@pytest.fixture
def parent(home):
    """Id of a run of three steps."""
    return train(
        tiny(training__steps=3, tracking__uri="http://127.0.0.1:9"), local=True, warn=print
    ).run_id


def test_a_sweep_holds_its_parents_checkpoint_from_its_start_on(home, parent):
    fixed = {"start.run": parent, "start.step": 3}
    one = started(sweep_of(fixed=fixed))
    assert all(trial.experiment.start.point == f"{parent}@3" for trial in one.prepared.trials)
    assert recorded_checkpoints(home.run(parent)).held_digest(3, one.folder.sweep_id)
    with refused(rf"run {parent} is needed by run {one.folder.sweep_id} \(rates\)"):
        plan_removal([parent])
    width = {"model.width": {"kind": "choice", "values": [48]}}
    with refused("has other parameters"):
        prepared(sweep_of(width, fixed=fixed))
    assert [record.run_id for record in list_runs(home)] == [one.folder.sweep_id, parent]


@pytest.mark.slow
def test_trials_on_ray_go_on_from_the_same_checkpoint(ray, home, parent):
    """Each ends in the bits of a fork of its own."""
    base = {**small_sweep()["base"], "resources": {"cpus_per_worker": 1}}
    fixed = {"start.run": parent, "start.step": 3, "training.steps": 5, "evaluation.every": None}
    space = {"optimizer.lr": {"kind": "grid", "values": [1e-3, 3e-4]}}
    result = tune(
        build_sweep(small_sweep(base=base, fixed=fixed, space=space, metric="train/loss"), "test")
    )
    assert result.status == "finished"
    for trial in result.summary.trials:
        folder = home.run(trial.run_id)
        assert read_record(folder).start == f"{parent}@3"
        alone = train(
            folder.spec, ["name=alone", "tracking.uri=http://127.0.0.1:9"], local=True, warn=print
        )
        assert same_state(newest(folder.checkpoints), newest(alone.folder / "checkpoints"))
        remove_runs(alone.run_id)
    with refused(rf"run {parent} is the parent of "):
        plan_removal([parent])
    remove_runs(result.sweep_id)
    assert recorded_checkpoints(home.run(parent)).held_digest(3, result.sweep_id) is None
    assert remove_runs(parent) == [parent]

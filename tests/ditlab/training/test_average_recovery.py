"""Averages over kills, resumes, roll-backs, halved micro-batches, other workers and forks."""

import shutil

import pytest
import torch

from ditlab.averages import START, PowerProfile, snapshot_steps
from ditlab.checkpoints.kept_averages import average_snapshots, open_averages
from ditlab.checkpoints.start_point import StartPoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.spec.start import Start
from support.planted.faulty_losses import faulty, poison
from support.trainings.averaged import (
    SMALL,
    all_snapshots,
    averaged,
    rebuilt,
    relative,
    same_averages,
    same_snapshots,
    snapshots_of,
)
from support.trainings.workers import newest, tiny, train_here, train_workers


def kill_behind(folder, step, unfinished=()):
    """Leave a run as a kill after `step` and before its checkpoint: its snapshots are there, some
    of them torn.
    """
    CheckpointStore.at(folder).files.delete_folder(f"step-{step:08d}")
    for each in unfinished:
        (folder / "averages" / f"step-{each:08d}" / "manifest.json").unlink()


def test_a_resumed_run_has_the_same_averages_and_snapshots(home, tmp_path):
    """Killed between a snapshot and its checkpoint: later snapshots are dropped, and written again
    with those bits.
    """
    experiment = averaged(10, checkpoint__every=4, checkpoint__keep=5)
    train_here(experiment, home, tmp_path / "unbroken")
    train_here(experiment, home, tmp_path / "broken", stop_after=7)
    kill_behind(tmp_path / "broken", 7, unfinished=[6])
    assert max(snapshots_of(tmp_path / "broken").steps()) == 7
    train_here(experiment, home, tmp_path / "broken", stop_after=5)
    left = sorted(path.name for path in (tmp_path / "broken" / "averages").iterdir())
    assert left[-1] == "step-00000005"
    train_here(experiment, home, tmp_path / "broken")
    assert same_averages(tmp_path / "unbroken", tmp_path / "broken")
    assert same_snapshots(tmp_path / "unbroken", tmp_path / "broken")
    assert all(
        len(list(path.iterdir())) == 2 for path in (tmp_path / "broken" / "averages").iterdir()
    )


@pytest.mark.slow
def test_a_step_that_is_rolled_back_to_leaves_the_averages_of_one_that_is_left_out(
    home, tmp_path, monkeypatch
):
    faulty(monkeypatch, lambda step, start, batch, losses: poison(losses) if step == 4 else losses)
    every = {"every": 3, "keep": 5}
    for policy in ("skip", "rollback"):
        experiment = averaged(7, training__non_finite__policy=policy, checkpoint=every)
        _, recorder = train_here(experiment, home, tmp_path / policy)
        assert any("rolled back to step 3" in each for each in recorder.warnings) == (
            policy == "rollback"
        )
    assert same_averages(tmp_path / "skip", tmp_path / "rollback")
    assert same_snapshots(tmp_path / "skip", tmp_path / "rollback")


@pytest.mark.slow
def test_halved_micro_batches_go_on_with_the_averages(home, tmp_path, monkeypatch):
    experiment = averaged(6)
    train_here(experiment, home, tmp_path / "whole")

    def fault(step, start, batch, losses):
        if step >= 2 and len(batch["image"]) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return losses

    faulty(monkeypatch, fault)
    _, recorder = train_here(experiment, home, tmp_path / "halved")
    assert any("micro-batches of 8" in each for each in recorder.warnings)
    expected, found = all_snapshots(tmp_path / "whole"), all_snapshots(tmp_path / "halved")
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_run_that_adds_averages_begins_them_then_and_says_so(home, tmp_path):
    changes = {"model": SMALL, "checkpoint": {"every": None, "keep": 2}}
    plain = tiny(training__steps=12, training__ema__decay=0.95, **changes)
    added = tiny(training__steps=12, training__ema__decay=0.95, training__averages={}, **changes)
    assert plain.content_hash() == added.content_hash()
    train_here(plain, home, tmp_path / "run", stop_after=4)
    _, recorder = train_here(added, home, tmp_path / "run")
    (warning,) = recorder.warnings
    assert warning.startswith(
        "training.averages: the checkpoint of step 4 has none of these lengths; they begin after"
    )
    with newest(tmp_path / "run") as checkpoint:
        assert checkpoint.manifest.scalars[START] == 4
        assert snapshots_of(tmp_path / "run").steps() == snapshot_steps(4, 12, 24)
    changed = plain.replace("training.averages", {"lengths": [0.05, 0.2]})
    train_here(changed, home, tmp_path / "run")
    assert snapshots_of(tmp_path / "run").steps() == []  # none could be combined with what comes


@pytest.mark.slow
@pytest.mark.parametrize("state", ["all", "averaged"])
def test_averages_of_a_fork_begin_with_its_own_first_step(home, tmp_path, state):
    """Its own snapshots are then enough to rebuild others, and the parent's are left as they
    are.
    """
    train_here(averaged(6, checkpoint__every=3, checkpoint__keep=5), home, tmp_path / "parent")
    before = all_snapshots(tmp_path / "parent")
    begin = 3 if state == "all" else 0
    start = Start(run="parent", step=3, state=state)
    experiment = averaged(begin + 10, start=start.model_dump(mode="json"))
    point = StartPoint(start, lambda: CheckpointStore.at(tmp_path / "parent"), "fork")
    _, recorder = train_here(experiment, home, tmp_path / "fork", start=point)
    assert recorder.warnings == []
    assert snapshots_of(tmp_path / "fork").steps() == snapshot_steps(begin, begin + 10, 24)
    with newest(tmp_path / "fork") as checkpoint:
        assert checkpoint.manifest.scalars[START] == begin
        assert checkpoint.manifest.scalars["adam_step"] == begin + 10
    _, average = rebuilt(tmp_path / "fork", PowerProfile(0.2), pytest.fail)
    assert average.combination.profile_error < 0.05
    assert before.keys() == all_snapshots(tmp_path / "parent").keys()


@pytest.mark.slow
def test_snapshots_behind_a_uri(home):
    """They are saved, deleted after a kill and read there as on a disk."""
    store = CheckpointStore.at("memory://averages/run")
    spec = averaged(8, checkpoint__every=3, checkpoint__keep=1)
    for stop_after in (5, None):
        train_here(spec, home, store.location, stop_after)
        if stop_after:
            store.delete_after(3)
    assert store.steps() == [8] and average_snapshots(store).steps() == [1, 2, 3, 4, 5, 6, 7]
    with store.open(8) as checkpoint, open_averages(store, checkpoint, pytest.fail) as kept:
        assert (
            kept.num_snapshots == 7
            and kept.rebuild(PowerProfile(0.25)).combination.profile_error < 1e-3
        )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_exact_resume_of_two_workers_at_every_stage(home, tmp_path):
    """Bit for bit, and from one worker to two and back: near the averages of one, whole snapshots
    by every number.
    """
    changes = {"checkpoint": {"every": 4, "keep": 5}, "batch": {"size": 16, "micro": 8}}
    specs = {}
    for stage in range(4):
        one = averaged(12, engine__zero__stage=stage, **changes)
        specs[stage] = one.replace("resources.workers", 2)
        train_here(one, home, tmp_path / f"{stage}-one")
        train_here(one, home, tmp_path / f"{stage}-moved", stop_after=4)

    def train_all(name):
        train_workers([(two, home, tmp_path / f"{stage}-{name}") for stage, two in specs.items()])

    train_all("two")
    train_all("moved")
    for stage in specs:
        shutil.copytree(tmp_path / f"{stage}-two", tmp_path / f"{stage}-again")
        kill_behind(tmp_path / f"{stage}-again", 12, unfinished=[10])
    train_all("again")
    for stage, two in specs.items():
        assert same_averages(tmp_path / f"{stage}-two", tmp_path / f"{stage}-again"), stage
        assert same_snapshots(tmp_path / f"{stage}-two", tmp_path / f"{stage}-again"), stage
        one = tmp_path / f"{stage}-one"
        moved = tmp_path / f"{stage}-moved"
        kill_behind(moved, 12)
        train_here(two.replace("resources.workers", 1), home, moved)
        assert snapshots_of(moved).steps() == snapshots_of(one).steps()
        found, _ = rebuilt(moved, PowerProfile(0.2), pytest.fail)
        expected, _ = rebuilt(one, PowerProfile(0.2), pytest.fail)
        assert relative(found, expected) < 1e-4, stage

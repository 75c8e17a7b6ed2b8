"""A fork computes its parent's numbers where nothing changed, and the same after a kill as
without one.
"""

import pytest
import torch

from ditlab.checkpoints.start_point import order_changes
from ditlab.runs.launch import recorded_checkpoints
from ditlab.tracking.history import JournalFacts, metric_history
from ditlab.tracking.journal import read_content
from ditlab.tracking.records import list_runs, read_record
from ditlab.training.stepping import Stepper
from support.damage import refused
from support.trainings.forks import small
from support.trainings.workers import newest, same_state


class Killed(BaseException):
    """The end of a process, as a test has it."""


@pytest.fixture
def killed_fork(home, parent, run, monkeypatch):
    """`killed_fork(step, **changes)`: id of a fork from step 3 whose process ended before a step
    (from 1).
    """

    def train_and_die(step, **changes):
        original = Stepper.step

        def skip_or_die(stepper, *arguments):
            if stepper.state.step + 1 == step:
                raise Killed
            return original(stepper, *arguments)

        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(Stepper, "step", skip_or_die)
            run(f"{parent}@3", **changes)
        (fork,) = [record.run_id for record in list_runs(home) if record.run_id != parent]
        return fork

    return train_and_die


def state_of(home, run_id):
    return newest(home.run(run_id).checkpoints)


def steps_logged(home, run_id):
    return metric_history(home.run(run_id))["train/loss"].steps.tolist()


def test_a_fork_without_changes_computes_what_its_parent_did(home, parent, run):
    fork = run(f"{parent}@3", training__steps=6)
    assert same_state(state_of(home, parent), state_of(home, fork.run_id))
    assert steps_logged(home, fork.run_id) == [4, 5, 6]
    folder = home.run(fork.run_id)
    record = read_record(folder)
    assert (record.start, record.parent) == (f"{parent}@3", "")
    assert record.step == record.total_steps == 6
    tags = JournalFacts.of(read_content(folder.journal)).tags
    assert tags["ditlab.forked_from"] == tags["ditlab.lineage"] == f"{parent}@3"


def test_a_fork_of_a_fork_goes_on_as_the_fork_itself_would(home, family, run):
    middle, last = family["middle"], family["last"]
    assert not same_state(state_of(home, family["base"]), state_of(home, middle))
    start = {"run": family["base"], "step": 3}
    changes = {"start": start, "optimizer__lr": 3e-4, "training__steps": 7}
    assert run(None, middle, name="middle", **changes).run_id == middle
    assert same_state(state_of(home, middle), state_of(home, last))
    assert read_record(home.run(last)).start == f"{middle}@6"


@pytest.mark.parametrize("killed, own", [(5, []), pytest.param(8, [6], marks=pytest.mark.slow)])
def test_a_killed_fork_resumes_from_its_parents_checkpoint_then_from_its_own(
    home, parent, run, killed_fork, killed, own
):
    """`auto` takes the fork of this start and no other run; it ends in the bits of one that was not
    killed.
    """
    left = killed_fork(killed, training__steps=8)
    assert recorded_checkpoints(home.run(left)).steps() == own
    for at in (f"{parent}@6", f"{parent}@3"):
        resumed = run(at, "auto", training__steps=8)
        assert (resumed.run_id == left, resumed.status) == (at == f"{parent}@3", "finished")
        assert steps_logged(home, resumed.run_id) == list(range(int(at[-1]) + 1, 9))
    longer = run(None, parent, name="base", training__steps=8)
    assert same_state(state_of(home, longer.run_id), state_of(home, left))


def test_weights_alone_begin_at_step_0_with_a_fresh_optimiser(home, parent, run):
    """At a learning rate that moves nothing, the weights are those of the parent: averaged ones,
    unless asked.
    """
    still = {"optimizer": {"kind": "muon", "lr": 1e-30, "weight_decay": 0.0}, "training__steps": 1}
    averaged = run(f"{parent}@3", weights_only=True, **still)
    trained = run(start={"run": parent, "step": 3, "state": "trained"}, **still)
    with recorded_checkpoints(home.run(parent)).open(3) as reader:
        for fork, is_averaged in ((averaged, True), (trained, False)):
            found = state_of(home, fork.run_id)
            manifest = found.manifest
            assert (manifest.step, manifest.position, manifest.scalars["adam_step"]) == (1, 32, 1)
            wanted = reader.weights(averaged=is_averaged)
            for name, value in found.weights(averaged=False).items():
                assert torch.equal(value, wanted[name])
            assert found.has("momentum")


def test_the_order_of_samples_goes_on_with_the_same_data_seed_and_batch_and_else_begins_again(
    home, parent, run
):
    with recorded_checkpoints(home.run(parent)).open(3) as reader:
        spec = reader.manifest.spec
    other = {"kind": "digits", "hold_out": 0.2}
    for changes, found in (
        ({"training__steps": 9, "optimizer__lr": 1.0, "resources": {"workers": 2}}, []),
        ({"seed": 1}, ["seed=1 (was 0)"]),
        ({"data": other, "batch": {"size": 16}}, ["batch.size=16 (was 32)", "data.hold_out"]),
    ):
        assert order_changes(spec, small(**changes)) == found
    fork = run(f"{parent}@3", training__steps=4, seed=1)
    assert state_of(home, fork.run_id).manifest.position == 32
    assert state_of(home, parent).manifest.position == 6 * 32


def test_a_checkpoint_that_was_written_again_is_not_taken_for_the_one_that_a_fork_began_from(
    home, parent, run, killed_fork
):
    fork = killed_fork(5, training__steps=6)
    (home.run(parent).checkpoints / "step-00000003" / f"fork-{fork}").write_text("0" * 64)
    with refused(rf"step=3: the checkpoint of run {parent} was written again since run {fork}"):
        run(f"{parent}@3", "auto", training__steps=6)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_fork_on_another_zero_stage_goes_on_from_the_same_state(home, parent, run, stage):
    fork = run(f"{parent}@3", training__steps=6, engine__zero={"stage": stage})
    found, wanted = state_of(home, fork.run_id), state_of(home, parent)
    assert found.manifest.position == wanted.manifest.position
    assert found.manifest.scalars == wanted.manifest.scalars
    weights = wanted.weights(averaged=False)
    for name, value in found.weights(averaged=False).items():
        assert torch.allclose(value, weights[name], atol=1e-6)

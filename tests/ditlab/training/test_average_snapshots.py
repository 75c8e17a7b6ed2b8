"""Averages that a run keeps: rebuilt against direct ones, and snapshots that are damaged, refused
or dropped.
"""

import shutil

import pytest

from ditlab.averages import ExponentialProfile, PowerProfile, snapshot_steps
from ditlab.checkpoints.saving import BackgroundSaver, ShardReceipt
from ditlab.checkpoints.start_point import take_over
from ditlab.checkpoints.store import CheckpointStore
from ditlab.engine.engine import Engine
from support.damage import refused
from support.trainings.averaged import averaged, rebuilt, relative, snapshots_of
from support.trainings.checkpoints import flip_bit, shard_of
from support.trainings.workers import newest, train_here

STEPS = 64
LENGTHS = (0.06, 0.075, 0.15, 0.20, 0.25)


@pytest.fixture(scope="module")
def trained(home, tmp_path_factory):
    """A run; and averages of the lengths, computed in float64 from the master weights after every
    step.
    """
    folder = tmp_path_factory.mktemp("trained") / "run"
    direct = {length: {} for length in LENGTHS}
    original = Engine.step

    def step(engine, number, *arguments):
        norm = original(engine, number, *arguments)
        masters = {
            name: values.double()
            for (field, name, _), values in engine.state()
            if field == "master"
        }
        for length, average in direct.items():
            beta = (1 - 1 / (number + 1)) ** (PowerProfile(length).gamma + 1)
            for name, values in masters.items():
                average[name] = beta * average.get(name, 0) + (1 - beta) * values
        return norm

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Engine, "step", step)
        outcome, recorder = train_here(
            averaged(STEPS, checkpoint__every=50, checkpoint__keep=1), home, folder
        )
    assert outcome.status == "finished" and recorder.warnings == []
    return folder, direct


def test_rebuilt_averages_are_within_a_thousandth_of_direct_ones(trained):
    """From 27 snapshots of two averages, lengths 0.05 and 0.10: of lengths between and beyond."""
    folder, direct = trained
    steps = snapshots_of(folder).steps()
    # whatever `checkpoint.keep` says
    assert steps == snapshot_steps(0, STEPS, 24) and len(steps) == 27
    assert len(CheckpointStore.at(folder).steps()) == 1
    errors = {
        length: relative(rebuilt(folder, PowerProfile(length), pytest.fail)[0], direct[length])
        for length in LENGTHS
    }
    assert max(errors.values()) < 1e-3, errors
    assert errors[0.25] > 1e-6  # another profile than those that were kept


def test_the_moving_average_of_the_run_is_rebuilt_approximately(trained):
    folder, _ = trained
    found, average = rebuilt(folder, ExponentialProfile(0.95), pytest.fail)
    with newest(folder) as checkpoint:
        expected = {name: value.double() for name, value in checkpoint.weights(prefix="").items()}
    assert average.combination.profile_error > 1e-4
    assert 1e-9 < relative(found, expected) < 1e-3


def test_a_damaged_snapshot_costs_itself_alone(trained, tmp_path):
    folder, direct = trained
    whole = rebuilt(folder, PowerProfile(0.25), pytest.fail)[1]
    shutil.copytree(folder, tmp_path / "run")
    flip_bit(shard_of(tmp_path / "run" / "averages", 48))
    warnings = []
    found, average = rebuilt(tmp_path / "run", PowerProfile(0.25), warnings.append)
    (warning,) = warnings
    assert (
        "the snapshot of step 48 is skipped, and averages are rebuilt from the others: /" in warning
    )
    assert average.num_snapshots == whole.num_snapshots - 1
    assert relative(found, direct[0.25]) < 5e-3


def test_what_cannot_be_rebuilt_is_refused(trained, tmp_path):
    few = tmp_path / "few"
    shutil.copytree(trained[0], few)
    shutil.rmtree(few / "averages")
    for length, sentence in (
        (0.03, r"--ema 0.03 is shorter than the shortest average .* 0.05; name lengths"),
        (0.25, r"--ema 0.25 cannot be rebuilt from 0 snapshots .* would be off by \d+%"),
    ):
        with refused(sentence):
            rebuilt(few, PowerProfile(length), pytest.fail)
    assert rebuilt(few, PowerProfile(0.1), pytest.fail)[1].combination.profile_error < 1e-9


def test_a_snapshot_that_cannot_be_written_costs_no_step(home, tmp_path, monkeypatch):
    write = BackgroundSaver._write

    def refuse(self, step, shard):
        if self.store.location.endswith("averages") and step == 3:
            return ShardReceipt(shard, failure=("write", "No space left on device"))
        return write(self, step, shard)

    monkeypatch.setattr(BackgroundSaver, "_write", refuse)
    outcome, recorder = train_here(averaged(6), home, tmp_path / "run")
    assert outcome.status == "finished"
    (warning,) = recorder.warnings
    assert warning.startswith(
        "the snapshot of averages of step 3 was not saved (worker 0: No space left on device); "
        "make room"
    )
    assert snapshots_of(tmp_path / "run").steps() == [1, 2, 4, 5]


@pytest.mark.slow
def test_a_checkpoint_exists_after_the_snapshots_before_it(home, tmp_path, monkeypatch):
    """A kill behind the checkpoint costs no snapshot that is not written again."""
    order = []
    run = BackgroundSaver._run

    def slow(self, manifest, *arguments):
        run(self, manifest, *arguments)
        order.append((self.store.location.rsplit("/", 1)[-1], manifest.step))

    monkeypatch.setattr(BackgroundSaver, "_run", slow)
    train_here(averaged(7, checkpoint__every=3, checkpoint__keep=5), home, tmp_path / "run")
    for step in (3, 6):
        assert order.index(("averages", step)) < order.index(("run", step))


@pytest.mark.slow
def test_a_handover_deletes_the_snapshots_of_what_is_given_up(home, tmp_path):
    for name in ("own", "donor"):
        train_here(averaged(3), home, tmp_path / name)
    take_over(CheckpointStore.at(tmp_path / "own"), CheckpointStore.at(tmp_path / "donor"), 3)
    assert snapshots_of(tmp_path / "own").steps() == [] and snapshots_of(tmp_path / "donor").steps()

"""Averages that a run keeps: rebuilt against direct ones, resumed to the bit, snapshots that are dropped or damaged."""

import math
import shutil

import pytest
import torch

from ditlab.averages.combining import KeptAverage, combine
from ditlab.averages.profiles import ExponentialProfile, PowerProfile
from ditlab.averages.snapshot_steps import snapshot_steps
from ditlab.checkpoints.background import BackgroundSaver
from ditlab.checkpoints.handover import take_over
from ditlab.checkpoints.kept_averages import open_averages
from ditlab.checkpoints.snapshots import average_snapshots
from ditlab.checkpoints.store import CheckpointStore
from ditlab.checkpoints.transaction import SaveTransaction, ShardReceipt
from ditlab.engine.engine import Engine
from ditlab.errors import UserError
from support.trainings.workers import newest, same_state, tiny, train_here, train_workers

STEPS = 96
LENGTHS = (0.06, 0.075, 0.15, 0.20, 0.25)
SMALL = {"family": "dit", "image_size": 8, "patch_size": 4, "width": 16, "depth": 1, "num_heads": 2}


def averaged(steps=STEPS, **changes):
    training = {"steps": steps, "ema": {"decay": 0.95}, "averages": {}}
    return tiny(model=SMALL, batch={"size": 16, "micro": 16}, training=training, **changes)


def stores(folder):
    store = CheckpointStore.at(folder)
    return store, average_snapshots(store)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def trained(home, tmp_path_factory):
    """A run; and averages of the lengths, computed in float64 from the master weights after every step."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    direct: dict[float, dict[str, torch.Tensor]] = {length: {} for length in LENGTHS}
    original = Engine.step

    def step(engine, number, *arguments):
        norm = original(engine, number, *arguments)
        for (field, name, _), values in engine.state():
            for length in LENGTHS if field == "master" else ():
                beta = (1 - 1 / (number + 1)) ** (PowerProfile(length).gamma + 1)
                before = direct[length].get(name, torch.zeros(()))
                direct[length][name] = beta * before + (1 - beta) * values.double()
        return norm

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Engine, "step", step)
        outcome, recorder = train_here(averaged(checkpoint={"every": 50, "keep": 1}), home, folder)
    assert outcome.status == "finished" and recorder.warnings == []
    return folder, direct


def relative(found, expected):
    distance = sum(float((found[name].flatten().double() - value).square().sum()) for name, value in expected.items())
    return math.sqrt(distance / sum(float(value.square().sum()) for value in expected.values()))


def rebuilt(folder, profile, warn=pytest.fail):
    with newest(folder) as checkpoint, open_averages(CheckpointStore.at(folder), checkpoint, warn) as kept:
        average = kept.rebuild(profile)
        return average.weights(prefix=""), average


def test_rebuilt_averages_are_within_a_thousandth_of_direct_ones(trained):
    folder, direct = trained
    _, snapshots = stores(folder)
    assert snapshots.steps() == snapshot_steps(0, STEPS, 24)  # whatever `checkpoint.keep` says
    assert len(CheckpointStore.at(folder).steps()) == 1
    for length, expected in direct.items():
        found, _ = rebuilt(folder, PowerProfile(length))
        assert relative(found, expected) < 1e-3, length


def test_the_moving_average_of_the_run_is_rebuilt_approximately(trained):
    folder, _ = trained
    found, average = rebuilt(folder, ExponentialProfile(0.95))
    with newest(folder) as checkpoint:
        expected = {name: value.flatten().double() for name, value in checkpoint.weights(prefix="").items()}
    assert average.combination.profile_error > 1e-4
    assert 1e-9 < relative(found, expected) < 1e-3


def test_a_damaged_snapshot_alone_is_left_out(trained, tmp_path):
    folder, direct = trained
    shutil.copytree(folder, tmp_path / "run")
    shard = next((tmp_path / "run" / "averages").glob("step-*48/shard-*"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    warnings: list[str] = []
    whole = rebuilt(folder, PowerProfile(0.25))[1]
    found, average = rebuilt(tmp_path / "run", PowerProfile(0.25), warnings.append)
    assert len(warnings) == 1 and "is left out, and averages are rebuilt from the others" in warnings[0]
    assert average.num_snapshots == whole.num_snapshots - 1
    assert relative(found, direct[0.25]) < 5e-3


def test_what_cannot_be_rebuilt_is_refused(trained, home, tmp_path):
    folder, _ = trained
    with pytest.raises(UserError, match=r"--ema 0.03 is shorter than the shortest average .* 0.05; name lengths"):
        rebuilt(folder, PowerProfile(0.03))
    shutil.copytree(folder, tmp_path / "few")
    shutil.rmtree(tmp_path / "few" / "averages")
    with pytest.raises(UserError, match=r"--ema 0.25 cannot be rebuilt from 0 snapshots .* would be off by \d+%"):
        rebuilt(tmp_path / "few", PowerProfile(0.25))
    assert rebuilt(tmp_path / "few", PowerProfile(0.1))[1].combination.profile_error < 1e-9
    train_here(tiny(model=SMALL, training__steps=2), home, tmp_path / "none")
    with pytest.raises(UserError, match=r"the checkpoint of step 2 keeps no averages .* set training.averages"):
        rebuilt(tmp_path / "none", PowerProfile(0.1))


def all_snapshots(folder):
    """Bits of every snapshot by step and key."""
    _, snapshots = stores(folder)
    found = {}
    for step in snapshots.steps():
        with snapshots.open(step) as reader:
            for _, field, name, start, stop in reader.manifest.pieces:
                found[step, field, name, start] = reader.read(field, name, start, stop)
            found[step, "scalars"] = torch.tensor(list(reader.manifest.scalars.values()))
    return found


def same_averages(one, two):
    return all(
        torch.equal(one.read(field, name, start, stop), two.read(field, name, start, stop))
        for _, field, name, start, stop in one.manifest.pieces
    )


def test_a_resumed_run_has_the_same_averages_and_snapshots(home, tmp_path):
    """Stopped behind its newest checkpoint: later snapshots are dropped, and written again with the same bits."""
    experiment = averaged(20, checkpoint={"every": 8, "keep": 5})
    train_here(experiment, home, tmp_path / "unbroken")
    train_here(experiment, home, tmp_path / "broken", stop_after=14)
    store, snapshots = stores(tmp_path / "broken")
    store.files.delete_folder("step-00000014")  # as after a kill at step 14
    assert max(snapshots.steps()) == 14
    train_here(experiment, home, tmp_path / "broken", stop_after=9)
    assert max(snapshots.steps()) == 9
    train_here(experiment, home, tmp_path / "broken")
    one, two = newest(tmp_path / "unbroken"), newest(tmp_path / "broken")
    assert same_state(one, two) and same_averages(one, two) and one.has("power_0.05")
    expected, found = all_snapshots(tmp_path / "unbroken"), all_snapshots(tmp_path / "broken")
    assert expected.keys() == found.keys() and all(torch.equal(expected[key], found[key]) for key in expected)


def test_a_run_that_adds_averages_begins_them_then_and_says_so(home, tmp_path):
    plain = tiny(model=SMALL, training={"steps": 12, "ema": {"decay": 0.95}}, checkpoint={"every": None, "keep": 2})
    added = tiny(
        model=SMALL,
        training={"steps": 12, "ema": {"decay": 0.95}, "averages": {}},
        checkpoint={"every": None, "keep": 2},
    )
    assert plain.content_hash() == added.content_hash()
    train_here(plain, home, tmp_path / "run", stop_after=4)
    _, recorder = train_here(added, home, tmp_path / "run")
    (warning,) = recorder.warnings
    assert warning.startswith("training.averages: the checkpoint of step 4 has none of these lengths; they begin after")
    with newest(tmp_path / "run") as checkpoint:
        assert checkpoint.manifest.scalars["averages.start"] == 4
        assert stores(tmp_path / "run")[1].steps() == snapshot_steps(4, 12, 24)
    changed = plain.replace("training.averages", {"lengths": [0.05, 0.2]})
    train_here(changed, home, tmp_path / "run")
    assert stores(tmp_path / "run")[1].steps() == []  # none could be combined with what comes


def test_a_snapshot_that_cannot_be_written_costs_no_step(home, tmp_path, monkeypatch):
    write = SaveTransaction.write

    def refuse(self, state):
        if self.store.location.endswith("averages") and self.manifest.step == 3:
            return ShardReceipt(self.shard, failure=("write", "No space left on device"))
        return write(self, state)

    monkeypatch.setattr(SaveTransaction, "write", refuse)
    outcome, recorder = train_here(averaged(6), home, tmp_path / "run")
    assert outcome.status == "finished"
    (warning,) = recorder.warnings
    assert warning.startswith("the snapshot of averages of step 3 was not saved (worker 0: No space left on device); ")
    assert stores(tmp_path / "run")[1].steps() == [1, 2, 4, 5]


def test_a_checkpoint_exists_after_the_snapshots_before_it(home, tmp_path, monkeypatch):
    """A kill behind the checkpoint costs no snapshot that is not written again."""
    order: list[tuple[str, int]] = []
    run = BackgroundSaver._run

    def slow(self, manifest, *arguments):
        run(self, manifest, *arguments)
        order.append((self.store.location.rsplit("/", 1)[-1], manifest.step))

    monkeypatch.setattr(BackgroundSaver, "_run", slow)
    train_here(averaged(7, checkpoint={"every": 3, "keep": 5}), home, tmp_path / "run")
    for step in (3, 6):
        assert order.index(("averages", step)) < order.index(("run", step))


def test_a_handover_deletes_the_snapshots_of_what_is_given_up(home, tmp_path):
    for name in ("own", "donor"):
        train_here(averaged(6), home, tmp_path / name)
    take_over(CheckpointStore.at(tmp_path / "own"), CheckpointStore.at(tmp_path / "donor"), 6)
    assert stores(tmp_path / "own")[1].steps() == [] and stores(tmp_path / "donor")[1].steps()


def test_profiles_of_a_real_run_are_what_its_snapshots_say(trained):
    """The error that is shown is of the snapshots that are there."""
    folder, _ = trained
    kept = [KeptAverage(length, step) for step in (*snapshot_steps(0, STEPS, 24), STEPS) for length in (0.05, 0.1)]
    shown = rebuilt(folder, PowerProfile(0.2))[1].combination.profile_error
    assert shown == pytest.approx(combine(kept, PowerProfile(0.2), STEPS).profile_error, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_averages_go_from_one_worker_to_two_and_back(home, tmp_path, stage):
    """Steps by one worker, by two, and by one again: near the averages of one; whole snapshots by every number."""
    changes = {
        "engine__zero": {"stage": stage},
        "checkpoint": {"every": 4, "keep": 5},
        "batch": {"size": 16, "micro": 8},
    }
    training = {"steps": 12, "ema": {"decay": 0.95}, "averages": {}}
    one = tiny(model=SMALL, training=training, **changes)
    train_here(one, home, tmp_path / "one")
    train_here(one, home, tmp_path / "moved", stop_after=4)
    two = one.replace_all({"resources.workers": 2})
    train_workers([(two, home, tmp_path / "moved")])
    store, snapshots = stores(tmp_path / "moved")
    store.files.delete_folder("step-00000012")
    train_here(one, home, tmp_path / "moved")
    expected, found = all_snapshots(tmp_path / "one"), rebuilt(tmp_path / "moved", PowerProfile(0.2))[0]
    assert snapshots.steps() == sorted({key[0] for key in expected})
    reference = rebuilt(tmp_path / "one", PowerProfile(0.2))[0]
    flat = {name: value.flatten().double() for name, value in reference.items()}
    assert relative(found, flat) < 1e-4

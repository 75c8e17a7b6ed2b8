"""Training that goes on from a checkpoint, and the average that each checkpoint holds."""

import pytest
import torch

from ditlab.checkpoints.store import CheckpointStore
from ditlab.inputs.noise import derived_seed
from support.trainings.checkpoints import edit_bytes, shard_of
from support.trainings.workers import tiny, train_here


def test_training_goes_on_from_the_one_before(tmp_path):
    """The newest checkpoint loses a bit: the run repeats the steps since the one before, to the
    same weights.
    """
    home, experiment = tmp_path / "home", tiny()
    _, unbroken = train_here(experiment, home, tmp_path / "unbroken")
    train_here(experiment, home, tmp_path / "run")
    edit_bytes(
        shard_of(tmp_path / "run", 6), lambda content: content[:-1] + bytes([content[-1] ^ 1])
    )
    outcome, recorder = train_here(experiment, home, tmp_path / "run")
    assert (outcome.status, sorted(recorder.losses)) == ("finished", [4, 5, 6])
    assert recorder.losses == {step: unbroken.losses[step] for step in (4, 5, 6)}
    assert len(recorder.warnings) == 1 and "Falling back" in recorder.warnings[0]
    one, two = (
        CheckpointStore.at(tmp_path / name).open(6).weights() for name in ("unbroken", "run")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("decay", [0.999, 0.2])
def test_the_average_is_the_closed_form(tmp_path, decay):
    """min(decay, (1 + n) / (10 + n)) at step n, over the weights that the checkpoint of each step
    holds.
    """
    experiment = tiny(
        training={"steps": 5, "ema": {"decay": decay}}, checkpoint={"every": 1, "keep": 9}
    )
    train_here(experiment, tmp_path / "home", tmp_path / "run")
    torch.manual_seed(derived_seed(experiment.seed, "weights"))
    average = {
        name: value.detach().clone()
        for name, value in experiment.family.build_network(experiment.model).named_parameters()
    }
    store = CheckpointStore.at(tmp_path / "run")
    assert store.steps() == [1, 2, 3, 4, 5]
    for step in range(5):
        reader = store.open(step + 1)
        rate = min(decay, (1 + step) / (10 + step))
        weights = reader.weights(averaged=False)
        average = {name: rate * old + (1 - rate) * weights[name] for name, old in average.items()}
        found = reader.weights()
        for name, expected in average.items():
            torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-7)
    assert any(not torch.equal(found[name], weights[name]) for name in weights)

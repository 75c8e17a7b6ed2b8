"""Training that goes on from a checkpoint, and the average that each checkpoint holds."""

import pytest
import torch

from ditlab.checkpoints.store import CheckpointStore
from ditlab.inputs.noise import derived_seed
from support.trainings.checkpoints import flip_bit, shard_of
from support.trainings.workers import newest, same_state, tiny, train_here


def test_training_goes_on_from_the_one_before(tmp_path):
    """The newest checkpoint loses a bit: the run repeats the steps since the one before, to the
    same weights.
    """
    home, experiment = tmp_path / "home", tiny()
    _, unbroken = train_here(experiment, home, tmp_path / "unbroken")
    train_here(experiment, home, tmp_path / "run")
    flip_bit(shard_of(tmp_path / "run", 6))
    outcome, recorder = train_here(experiment, home, tmp_path / "run")
    assert (outcome.status, sorted(recorder.losses)) == ("finished", [4, 5, 6])
    assert recorder.losses == {step: unbroken.losses[step] for step in (4, 5, 6)}
    assert len(recorder.warnings) == 1 and "Falling back" in recorder.warnings[0]
    assert same_state(newest(tmp_path / "unbroken"), newest(tmp_path / "run"))


@pytest.mark.parametrize("decay", [0.999, 0.2])
def test_the_average_is_the_closed_form(tmp_path, decay):
    """min(decay, (1 + n) / (10 + n)) at step n, over the weights that the checkpoint of each step
    holds.
    """
    experiment = tiny(
        training__steps=5, training__ema__decay=decay, checkpoint__every=1, checkpoint__keep=9
    )
    train_here(experiment, tmp_path / "home", tmp_path / "run")
    torch.manual_seed(derived_seed(experiment.seed, "weights"))
    average = dict(experiment.family.build_network(experiment.model).state_dict())
    store = CheckpointStore.at(tmp_path / "run")
    assert store.steps() == [1, 2, 3, 4, 5]
    for step in range(5):
        reader = store.open(step + 1)
        rate = min(decay, (1 + step) / (10 + step))
        weights, found = reader.weights(averaged=False), reader.weights()
        average = {name: rate * old + (1 - rate) * weights[name] for name, old in average.items()}
        torch.testing.assert_close(found, average, rtol=1e-5, atol=1e-7)
    assert any(not torch.equal(found[name], weights[name]) for name in weights)

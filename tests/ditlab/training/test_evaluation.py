"""Held-out figures: the same at every call, whatever the batches and the workers."""

import dataclasses

import pytest
import torch

from ditlab.data.splits import open_data
from ditlab.engine.distributed import Rank
from ditlab.home import Home, RunFolder
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.training.evaluation import draw_samples, read_by_sample, save_by_sample
from support.trainings.held_out import held_out_metrics
from support.trainings.workers import tiny, train_here

CPU = torch.device("cpu")


class Channel:
    """Channel of workers that are done one after the other: the last one sees what all have
    given.
    """

    def __init__(self):
        self.given = []

    def gather(self, thing):
        self.given.append(thing)
        return self.given


@pytest.fixture(scope="module")
def setting(home):
    experiment = tiny()
    torch.manual_seed(0)
    network = experiment.family.build_network(experiment.model)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return experiment, network.eval(), open_data(experiment.data, Home(home)).held_out


def measure(setting, batch_size=64, limit=100, place=(0, 1), channel=None, by_sample=None):
    spec, network, view = setting
    with torch.no_grad():
        return held_out_metrics(
            network,
            spec.family.build_objective(spec.objective, spec.model),
            view,
            ModelInputs(spec.model.batch_fields(), (), CPU),
            batch_size,
            limit,
            Rank(*place, place[0], CPU),
            channel or Channel(),
            by_sample=by_sample,
        )


def test_the_same_at_every_call(setting):
    torch.manual_seed(1)
    one = measure(setting)
    torch.manual_seed(2)
    assert measure(setting) == one
    assert {"velocity", "direction", "velocity_t0"} <= set(one)


@pytest.mark.parametrize("batch_size", [3, 33, 70, 1000])
def test_whatever_the_batches(setting, batch_size):
    assert measure(setting, batch_size, 70) == pytest.approx(measure(setting, 64, 70), rel=1e-5)


def test_whatever_the_seed_of_the_experiment(setting):
    assert measure((tiny(seed=5, batch={"size": 8}), *setting[1:])) == measure(setting)


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_whatever_the_workers(setting, world_size):
    """More workers than batches, too: all take equally many turns, and a spare turn counts for
    nothing.
    """
    channel, by_sample, whole = Channel(), [{} for _ in range(world_size)], {}
    expected = measure(setting, 32, by_sample=whole)
    for rank in range(world_size):
        place = (rank, world_size)
        found = measure(setting, 32, place=place, channel=channel, by_sample=by_sample[rank])
    assert found == expected, "to the bit"
    assert all((by_sample[-1][name] == values).all() for name, values in whole.items())


def test_values_by_sample_are_kept_and_their_means_are_the_metrics(setting, tmp_path):
    """In the run's folder, where a damaged file is none."""
    whole = {}
    means = measure(setting, 64, by_sample=whole)
    assert set(whole) == set(means) and all(len(values) == 100 for values in whole.values())
    found = {name: values.mean() for name, values in whole.items()}
    assert found == pytest.approx(means, rel=1e-12)

    save_by_sample(RunFolder(tmp_path), 7, whole)
    found = read_by_sample(RunFolder(tmp_path), 7)
    assert found["velocity"] == pytest.approx(whole["velocity"], rel=1e-6)
    assert found.keys() == whole.keys()
    (file,) = (tmp_path / "evaluations").iterdir()
    file.write_bytes(file.read_bytes()[:-30])
    assert read_by_sample(RunFolder(tmp_path), 7) == read_by_sample(RunFolder(tmp_path), 8) == {}


def test_the_limit_takes_the_first_samples(setting):
    *parts, view = setting
    first = dataclasses.replace(view, rows=view.rows[:40])
    assert measure(setting, limit=40) != measure(setting, limit=100)
    assert measure((*parts, first), limit=1000) == measure(setting, limit=40)


def test_nothing_held_out_gives_nothing(home):
    experiment = tiny(data={"kind": "digits", "hold_out": 0.0})
    view = open_data(experiment.data, Home(home)).held_out
    assert measure((experiment, experiment.family.build_network(experiment.model), view)) == {}


def test_samples_begin_with_the_same_noise(setting, home):
    experiment, network, _ = setting
    data = open_data(experiment.data, Home(home))
    inputs = ModelInputs.from_experiment(experiment, data.train.columns, CPU)
    sampler, one = draw_samples(network, experiment, data, 4, inputs)
    torch.manual_seed(9)
    _, two = draw_samples(network, experiment, data, 4, inputs)
    assert torch.equal(one.values, two.values)
    assert repr(sampler.show(one)) == repr(sampler.show(two))


def test_evaluating_changes_no_training(home, tmp_path):
    """With evaluations between, the same losses, bit for bit; the same figures at the end."""
    spec = tiny(training__steps=3, evaluation__samples=4, evaluation__limit=40)
    without, with_them, last = (
        train_here(spec.replace("evaluation.every", every), home, tmp_path / str(every))[1]
        for every in (None, 1, 100)
    )
    assert with_them.losses == without.losses
    assert with_them.pictures[-3:] == [1, 2, 3] and last.pictures[-1] == 3
    assert without.pictures == []
    assert with_them.values[3]["eval/velocity"] == last.values[3]["eval/velocity"]
    assert not any("eval/velocity" in values for values in without.values.values())


def test_slices_of_the_average_give_the_same_figures(home, tmp_path, monkeypatch):
    """Weights and average change places a slice at a time, there and back."""
    spec = tiny(evaluation__every=2, evaluation__samples=0, evaluation__limit=40)
    _, whole = train_here(spec, home, tmp_path / "whole")
    monkeypatch.setattr("ditlab.engine.averages.SLICE", 1000)
    _, sliced = train_here(spec, home, tmp_path / "sliced")
    assert sliced.values.keys() == whole.values.keys() and sliced.losses == whole.losses
    assert all(
        sliced.values[step]["eval/velocity"] == whole.values[step]["eval/velocity"]
        for step in (0, 2, 4, 6)
    )

"""State kept in CPU memory: the same training, the same state, and it moves to any other place."""

import math
from contextlib import closing

import pytest
import torch

from ditlab.engine.distributed import single_process
from ditlab.engine.engine import configuration
from support.marks import slow
from support.trainings.engines import (
    Job,
    Pass,
    Step,
    drive_here,
    drive_workers,
    engine_for,
    module_for,
    run_step,
    state_of,
    steps_of,
)
from support.trainings.workers import tiny

CPU = [
    {"stage": 1, "offload": "cpu"},
    {"stage": 2, "offload": "cpu"},
    {"stage": 3, "offload": "cpu"},
    {"stage": 3, "offload_parameters": "cpu"},
    {"stage": 3, "offload": "cpu", "offload_parameters": "cpu"},
]


def named(zero):
    return "-".join(map(str, zero.values()))


OFFLOADED = pytest.mark.parametrize("zero", CPU, ids=named)


def experiment_of(zero, precision="fp32"):
    # Wide enough that partitions exceed the megabyte below which DeepSpeed keeps state in memory
    # after all.
    wide = {"model__width": 128, "model__depth": 1}
    return tiny(**wide, engine__zero=zero, training__precision=precision)


@pytest.fixture(scope="module")
def here():
    return drive_here(Job(experiment_of({"stage": 3}), steps_of()))


@pytest.fixture(scope="module")
def first_step(tmp_path_factory):
    """State after one step without offload."""
    path = tmp_path_factory.mktemp("first") / "one"
    drive_here(Job(experiment_of({"stage": 1}), steps_of(numbers=[0]), save=path))
    return path


@OFFLOADED
def test_it_trains_like_without_and_resumes_bit_identically(here, tmp_path, zero):
    experiment = experiment_of(zero)
    found = drive_here(Job(experiment, steps_of()))
    assert found.losses == pytest.approx(here.losses, rel=1e-6)
    assert found.norms == pytest.approx(here.norms, rel=1e-5)
    drive_here(Job(experiment, steps_of(numbers=range(2)), save=tmp_path / "half"))
    resumed = drive_here(Job(experiment, steps_of(numbers=range(2, 4)), load=tmp_path / "half"))
    assert resumed.losses == found.losses[2:]
    assert resumed.state.equals(found.state)
    # Adam divides by the root of tiny second moments: summation order shows.
    torch.testing.assert_close(found.state.tensors, here.state.tensors, rtol=1e-3, atol=1e-4)


@OFFLOADED
def test_state_moves_there_and_back(here, first_step, tmp_path, zero):
    plain = experiment_of({"stage": 1})
    there = experiment_of(zero)
    drive_here(Job(there, steps_of(numbers=[1, 2]), load=first_step, save=tmp_path / "three"))
    found = drive_here(Job(plain, steps_of(numbers=[3]), load=tmp_path / "three"))
    assert found.losses == pytest.approx(here.losses[3:], rel=1e-6)
    assert found.state.scalars == here.state.scalars


@pytest.mark.parametrize("precision", ["fp32", *slow("bf16")])
@OFFLOADED
def test_a_nan_changes_nothing(zero, precision):
    assert_unchanged_by_a_nan(experiment_of(zero, precision))


def assert_unchanged_by_a_nan(experiment):
    found = drive_here(Job(experiment, steps_of(poisoned=2), kept=(1, 2)))
    reference = drive_here(Job(experiment, steps_of(numbers=[0, 1, 3])))
    assert found.states[2].equals(found.states[1])
    assert found.state.equals(reference.state)


@pytest.mark.slow
def test_two_workers_offload_alike():
    """Four steps, the third with a NaN in one worker's batch."""
    places = [{"stage": 3}, *CPU]
    jobs = [Job(experiment_of(zero), steps_of(2, poisoned=2)) for zero in places]
    expected, *traces = drive_workers(jobs, 2)
    for found, zero in zip(traces, places[1:], strict=True):
        assert [math.isfinite(norm) for norm in found.norms] == [True, True, False, True], zero
        assert found.losses[3:] == pytest.approx(expected.losses[3:], rel=1e-6), zero
        assert found.state.scalars == expected.state.scalars


@pytest.mark.parametrize("zero", [{"stage": 1}, {"stage": 3}, *CPU], ids=named)
def test_evaluation_sees_the_average_and_leaves_training_alone(zero):
    with single_process(use_gpu=False) as rank:
        module = module_for(experiment_of(zero))
        engine = engine_for(experiment_of(zero), rank, 1, module=module)
        for number in range(2):
            run_step(engine, number, [Pass(0)])
        before = state_of(engine)
        inputs = torch.ones(2, 1, 8, 8), torch.full((2,), 0.5)
        with engine.evaluating():
            seen = engine.network(*inputs)
        assert state_of(engine).equals(before)
        loss, norm = run_step(engine, 2, [Pass(1)])
        engine.close()
    reference = module_for(experiment_of(zero))
    with torch.no_grad():
        for name, value in reference.named_parameters():
            value.copy_(before.tensors["ema", name].view(value.shape))
        expected = reference.eval()("network", *inputs)
    torch.testing.assert_close(seen, expected, rtol=1e-5, atol=1e-6)
    unbroken = drive_here(Job(experiment_of(zero), [Step([[Pass(0)]])] * 2 + [Step([[Pass(1)]])]))
    assert (loss, norm) == (unbroken.losses[2], unbroken.norms[2])


@pytest.mark.parametrize("zero", [{"stage": 3}, CPU[2]], ids=named)
def test_a_partition_of_several_groups(here, monkeypatch, zero):
    """DeepSpeed cuts partitions of more than 1e9 values; here of more than 3e5, which updates them
    one at a time.
    """

    def cut(*arguments):
        config = configuration(*arguments)
        config["zero_optimization"]["sub_group_size"] = 300_000
        return config

    monkeypatch.setattr("ditlab.engine.engine.configuration", cut)
    experiment = experiment_of(zero)
    with single_process(use_gpu=False) as rank, closing(engine_for(experiment, rank, 1)) as engine:
        assert len(engine.partitions.flats) > 1
    whole = drive_here(Job(experiment, steps_of()))
    assert whole.losses == pytest.approx(here.losses, rel=1e-6)
    assert_unchanged_by_a_nan(experiment)

"""Muon on several workers, in bf16 and with parameters on the CPU: against a plain reading, and
exact resume.
"""

import pytest
import torch

from support.trainings.engines import Job, Pass, Step, drive_here, drive_workers, module_for
from support.trainings.grouped import (
    SCRIPT,
    SPLIT,
    assert_close,
    muon,
    reference_training,
    resumed,
    steps_of,
)

STAGES = (0, 1, 2, 3)
PARAMETERS_ON_CPU = {"offload_parameters": "cpu"}


def test_two_workers_train_the_same_weights():
    (trace,) = drive_workers([Job(muon(2), SPLIT)], 2)
    assert_close(trace.state, reference_training(muon(), SCRIPT))


@pytest.mark.slow
def test_two_workers_train_the_same_weights_at_every_stage(tmp_path):
    """And what they saved goes on at every other stage on one worker."""
    paths = [tmp_path / f"stage-{stage}" for stage in STAGES]
    traces = drive_workers(
        [Job(muon(stage), SPLIT, save=path) for stage, path in zip(STAGES, paths, strict=True)], 2
    )
    expected = reference_training(muon(), SCRIPT)
    for trace in traces:
        assert_close(trace.state, expected)
    more = Step([[Pass(6), Pass(7)]], number=3)
    expected = reference_training(muon(), [*SCRIPT, more])
    for stage, path in zip(STAGES, reversed(paths), strict=True):
        assert_close(drive_here(Job(muon(stage), [more], load=path)).state, expected)


@pytest.mark.slow
def test_three_workers_with_uneven_slices_train_the_same_weights():
    """A third of this network ends inside matrices, and one worker's share of the work is larger
    than another's.
    """
    script = steps_of(3, range(3))
    one = [Step([[part for (part,) in step.passes]], number=step.number) for step in script]
    traces = drive_workers([Job(muon(stage), script) for stage in STAGES], 3)
    expected = reference_training(muon(), one)
    assert any(weights.numel() % 3 for weights in expected.values())
    for trace in traces:
        assert_close(trace.state, expected)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [2, 3])
def test_several_workers_resume_bit_identically(tmp_path, num_workers):
    experiments = [muon(stage) for stage in STAGES]
    for stage, (unbroken, rest) in zip(
        STAGES, resumed(experiments, num_workers, tmp_path), strict=True
    ):
        assert rest.state.equals(unbroken.state), stage
        assert rest.losses == unbroken.losses[2:], stage


def assert_follows(state, expected):
    """Both ends of the network are where the float32 reading has them, within a part of the way
    that they went.

    Others' gradients are of low rank here, so that rounding decides what Muon makes of their small
    singular values.
    """
    start = {name: each.detach() for name, each in module_for(muon()).named_parameters()}
    for name in ("network.patch_embedding.projection.weight", "network.head.weight"):
        found = state.tensors["master", name].view(expected[name].shape)
        assert (found - expected[name]).norm() < 0.15 * (expected[name] - start[name]).norm(), name
    assert all(values.dtype == torch.float32 for values in state.tensors.values())


def test_bf16_follows_the_float32_reading_on_float32_masters(tmp_path):
    expected = reference_training(muon(), SCRIPT)
    for stage in (1, 3):
        experiment = muon(stage, precision="bf16")
        unbroken = drive_here(Job(experiment, SCRIPT))
        assert_follows(unbroken.state, expected)
        script = [Step(step.passes, number=number) for number, step in enumerate(SCRIPT)]
        drive_here(Job(experiment, script[:1], save=tmp_path / f"{stage}"))
        assert drive_here(Job(experiment, script[1:], load=tmp_path / f"{stage}")).state.equals(
            unbroken.state
        )


@pytest.mark.slow
def test_two_workers_follow_in_bf16_and_with_parameters_on_the_cpu_and_resume(tmp_path):
    expected = reference_training(muon(), SCRIPT)
    experiments = [muon(stage, precision="bf16") for stage in (1, 2, 3)]
    for trace in drive_workers([Job(experiment, SPLIT) for experiment in experiments], 2):
        assert_follows(trace.state, expected)
    on_cpu = muon(3, zero=PARAMETERS_ON_CPU)
    (trace,) = drive_workers([Job(on_cpu, SPLIT)], 2)
    assert_close(trace.state, expected)
    experiments.append(on_cpu)
    for unbroken, rest in resumed(experiments, 2, tmp_path):
        assert rest.state.equals(unbroken.state)


def test_muon_with_parameters_on_the_cpu():
    assert_close(
        drive_here(Job(muon(3, zero=PARAMETERS_ON_CPU), SCRIPT)).state,
        reference_training(muon(), SCRIPT),
    )

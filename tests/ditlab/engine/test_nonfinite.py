"""A non-finite gradient never reaches weights, moments or average: the step is left out, and the next one is clean."""

import math

import pytest

from support.trainings.engines import Job, Pass, Step, drive_here, drive_workers
from support.trainings.workers import tiny

KINDS = [(0, "fp32"), *((stage, precision) for stage in (1, 2, 3) for precision in ("fp32", "bf16"))]
CLIPS = [{"kind": "none"}, {"kind": "norm", "max_norm": 0.5}, {"kind": "zclip"}, {"kind": "zclip_ratio"}]


def experiment_of(stage, precision, clip=None):
    training = {"steps": 6, "ema": {"decay": 0.9}, "precision": precision, "clip": clip or {"kind": "norm"}}
    return tiny(engine__zero={"stage": stage}, training=training)


def scripts(workers, **spoiled):
    """Six steps of two passes a worker, the fourth spoiled; and the five others, each as the step that it was."""

    def step(number, poison=False, **options):
        passes = [
            [Pass(2 * rank, poison=poison and rank == workers - 1), Pass(2 * rank + 1)] for rank in range(workers)
        ]
        return Step(passes, number=number, **options)

    whole = [step(number, **(spoiled if number == 3 else {})) for number in range(6)]
    return whole, [step(number) for number in range(6) if number != 3]


@pytest.mark.parametrize(("stage", "precision"), KINDS)
def test_a_nan_in_a_batch_changes_nothing(stage, precision):
    spoiled, spared = scripts(1, poison=True)
    found = drive_here(Job(experiment_of(stage, precision), spoiled))
    reference = drive_here(Job(experiment_of(stage, precision), spared))
    assert [math.isfinite(norm) for norm in found.norms] == [True, True, True, False, True, True]
    assert found.states[3].equals(found.states[2])  # weights, moments, average and Adam's step count, bit for bit
    assert found.state.equals(reference.state)
    assert found.losses[4:] == reference.losses[3:]
    assert not found.state.equals(found.states[3])


@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: clip["kind"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_an_unhealthy_loss_changes_nothing_whatever_the_clipping(stage, clip):
    """The caller's word: a loss may be infinite where its gradient is not."""
    spoiled, spared = scripts(1, healthy=False)
    found = drive_here(Job(experiment_of(stage, "fp32", clip), spoiled))
    reference = drive_here(Job(experiment_of(stage, "fp32", clip), spared))
    assert all(math.isfinite(norm) for norm in found.norms)
    assert found.states[3].equals(found.states[2])
    assert found.state.equals(reference.state)


def test_a_nan_in_one_of_two_workers_stops_the_update_in_both():
    spoiled, spared = scripts(2, poison=True)
    kinds = [(experiment_of(stage, precision), script) for stage, precision in KINDS for script in (spoiled, spared)]
    traces = iter(drive_workers([Job(experiment, script) for experiment, script in kinds], 2))
    for (stage, precision), found, reference in zip(KINDS, traces, traces, strict=True):
        assert [math.isfinite(norm) for norm in found.norms] == [True, True, True, False, True, True]
        assert found.state.equals(reference.state), (stage, precision)
        assert found.losses[4:] == reference.losses[3:], (stage, precision)

"""A non-finite gradient never reaches weights, moments or average: the step is left out, and the
next one is clean.
"""

import functools
import itertools
import math

import pytest

from support.marks import slow
from support.trainings.engines import Job, drive_here, drive_workers, steps_of
from support.trainings.workers import tiny

KINDS = [(0, "fp32"), *itertools.product((1, 2, 3), ("fp32", "bf16"))]
CLIPS = {
    "none": {"kind": "none"},
    "norm": {"kind": "norm", "max_norm": 0.5},
    "zclip": {"kind": "zclip"},
    "zclip_ratio": {"kind": "zclip_ratio"},
}
BAD = 2


def experiment_of(stage, precision, clip):
    return tiny(
        engine__zero__stage=stage,
        model__depth=1,
        training__precision=precision,
        training__clip=CLIPS[clip],
    )


SPARED = [number for number in range(4) if number != BAD]
"""The other steps, each with the draws that it has among all."""


@functools.cache
def spared(stage, precision, clip):
    return drive_here(Job(experiment_of(stage, precision, clip), steps_of(1, SPARED)))


@pytest.mark.parametrize(("stage", "precision"), KINDS)
def test_a_nan_in_a_batch_changes_nothing(stage, precision):
    found = drive_here(
        Job(experiment_of(stage, precision, "norm"), steps_of(poisoned=BAD), kept=(1, 2))
    )
    reference = spared(stage, precision, "norm")
    assert [math.isfinite(norm) for norm in found.norms] == [True, True, False, True]
    # weights, moments, average and Adam's step count, bit for bit
    assert found.states[2].equals(found.states[1])
    assert found.state.equals(reference.state)
    assert found.losses[3:] == reference.losses[2:]
    assert not found.state.equals(found.states[2])


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("stage", [0, *slow(1, 2), 3])
def test_an_unhealthy_loss_changes_nothing_whatever_the_clipping(stage, clip):
    """The caller's word: a loss may be infinite where its gradient is not."""
    found = drive_here(Job(experiment_of(stage, "fp32", clip), steps_of(spoiled=BAD), kept=(1, 2)))
    assert all(math.isfinite(norm) for norm in found.norms)
    assert found.states[2].equals(found.states[1])
    assert found.state.equals(spared(stage, "fp32", clip).state)


@pytest.mark.slow
def test_a_nan_in_one_of_two_workers_stops_the_update_in_both():
    scripts = steps_of(2, poisoned=BAD), steps_of(2, SPARED)
    jobs = [Job(experiment_of(*kind, "norm"), script) for kind in KINDS for script in scripts]
    traces = iter(drive_workers(jobs, 2))
    for kind, found, reference in zip(KINDS, traces, traces, strict=True):
        assert [math.isfinite(norm) for norm in found.norms] == [True, True, False, True]
        assert found.state.equals(reference.state), kind
        assert found.losses[3:] == reference.losses[2:], kind

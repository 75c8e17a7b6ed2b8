"""Adaptive clipping: the limits it sets, and that a run goes on from its statistics exactly."""

import math
import statistics as plain

import pytest
import torch

from ditlab.engine.distributed import single_process
from ditlab.engine.update import Ratio, ZScore
from ditlab.spec.optimization import RatioZClip, ZClip
from support.trainings.engines import (
    Job,
    Pass,
    drive_here,
    engine_for,
    run_step,
    state_of,
    steps_of,
)
from support.trainings.workers import tiny


def z_score(variance, **fields):
    clip = ZScore(ZClip(z=2.0, warmup=1, **fields))
    clip.load({"clip.count": 1, "clip.mean": 1.0, "clip.variance": variance})
    return clip


def limit(clip, norm):
    return clip.limit(torch.tensor(norm, dtype=torch.float64), torch.tensor(True)).item()


def test_a_spike_is_clipped_by_its_own_z_score():
    """Mean 1, deviation 0.5: a norm of 3 is 4 deviations out, twice z, so it is clipped to half of
    z deviations.
    """
    clip = z_score(0.25, max_norm=None)
    assert limit(clip, 3.0) == 1.5
    # The clipped norm enters mean and then variance, as in the paper.
    mean = 0.97 * 1.0 + 0.03 * 1.5
    assert clip.state()["clip.mean"] == pytest.approx(mean, rel=1e-15)
    assert clip.state()["clip.variance"] == pytest.approx(
        0.97 * 0.25 + 0.03 * (1.5 - mean) ** 2, rel=1e-15
    )
    assert limit(z_score(0.25), 3.0) == 1.0  # the bound is in force
    assert limit(z_score(0.25, max_norm=None), 2.0) == math.inf  # two deviations are no spike
    assert limit(z_score(0.0, max_norm=None), 1.25) == 1.0  # nothing varied: back to the mean
    assert limit(z_score(0.0, max_norm=None), 1.0) == math.inf


def test_warm_up_takes_mean_and_population_variance():
    norms = [0.5, 4.0, 1.5, 2.25]
    clip = ZScore(ZClip(warmup=4))
    assert [limit(clip, norm) for norm in norms] == [1.0] * 4
    found = clip.state()
    assert found["clip.mean"] == pytest.approx(plain.fmean(norms))
    assert found["clip.variance"] == pytest.approx(plain.pvariance(norms))
    assert limit(ZScore(ZClip(max_norm=None)), 1e9) == math.inf


def test_ratio_sets_the_limit_before_the_average_moves():
    clip = Ratio(RatioZClip())
    seen = [(limit(clip, norm), clip.state()["clip.mean"]) for norm in (8.0, 4.0, 100.0)]
    assert seen[0] == (math.inf, 8.0) and seen[1] == (20.0, pytest.approx(7.96))
    assert seen[2] == (pytest.approx(19.9), pytest.approx(0.99 * 7.96 + 0.01 * 19.9))


@pytest.mark.parametrize("clip", [ZScore(ZClip(warmup=1)), Ratio(RatioZClip())])
def test_a_norm_that_is_not_finite_is_not_counted(clip):
    limit(clip, 2.0)
    before = clip.state()
    clip.limit(torch.tensor(math.nan), torch.tensor(False))
    assert clip.state() == before


def adaptive(stage, clip):
    return tiny(engine__zero__stage=stage, model__depth=1, training__clip=clip)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_limit_of_the_step_clips_the_gradient_that_adam_sees(stage):
    """Two steps in, Adam's first moment shows what the last gradient was."""
    with single_process(use_gpu=False) as rank:
        engine = engine_for(adaptive(stage, {"kind": "zclip_ratio", "ratio": 1.0}), rank, 1)
        first = run_step(engine, 0, [Pass(0)])[1]
        before = state_of(engine)
        second = run_step(engine, 1, [Pass(0, 50.0)])[1]  # fifty times the gradient
        after = state_of(engine)
        assert second > 10 * first
        moments = [key for key in after.tensors if key[0] == "exp_avg"]
        seen = [after.tensors[key] - 0.9 * before.tensors[key] for key in moments]
        assert torch.cat(seen).norm() / 0.1 == pytest.approx(first, rel=1e-3)
        # what enters is the clipped norm
        assert engine.scalars()["clip.mean"] == pytest.approx(first)
        engine.close()


@pytest.mark.parametrize(
    "clip", [{"kind": "zclip", "warmup": 2, "z": 0.5}, {"kind": "zclip_ratio", "ratio": 1.0}]
)
@pytest.mark.parametrize("stage", [0, 3])
def test_resume_is_bit_identical(tmp_path, stage, clip):
    experiment = adaptive(stage, clip)
    unbroken = drive_here(Job(experiment, steps_of()))
    drive_here(Job(experiment, steps_of(numbers=range(3)), save=tmp_path / "half"))
    resumed = drive_here(Job(experiment, steps_of(numbers=[3]), load=tmp_path / "half"))
    assert resumed.state.equals(unbroken.state)
    assert unbroken.state.scalars["clip.mean"] > 0

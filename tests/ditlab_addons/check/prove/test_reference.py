"""The reference trainer against torch.optim, closed forms, the engine's own keys and roles."""

import math

import numpy as np
import pytest
import torch

from ditlab.spec.optimization import AdamW, NoClip, NormClip, RatioZClip, ZClip
from ditlab.training.plan import learning_rate
from ditlab_addons.check.prove.reference import (
    ParameterSettings,
    ReferenceTrainer,
    adamw,
    clip,
    muon,
    orthogonalise,
    power_decay,
    schedule_factors,
)
from ditlab_addons.optimizers.muon import Muon
from support.trainings.workers import tiny


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix(*shape, num_parts=1, is_transposed=False):
    return ParameterSettings("matrix", torch.Size(shape), 1.0, 0.0, True, num_parts, is_transposed)


def test_adamw_is_that_of_torch_and_its_scales_are_above_its_terms():
    spec = AdamW(lr=1e-2, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.3).model_dump()
    theirs = torch.nn.Parameter(randn(50))
    optimizer = torch.optim.AdamW(
        [theirs], lr=1e-2, betas=spec["betas"], eps=1e-4, weight_decay=0.3
    )
    weights = theirs.detach().clone()
    state = {name: torch.zeros(50).double() for name in ("exp_avg", "exp_avg_sq")}
    for number in range(1, 6):
        theirs.grad = randn(50, seed=number)
        optimizer.step()
        change, moments, scale = adamw(spec, theirs.grad, state, number)
        assert bool((scale >= change.abs() * (1 - 1e-12)).all())
        weights = weights * (1 - 1e-2 * 0.3) - 1e-2 * change
        state = {name: each[0] for name, each in moments.items()}
        torch.testing.assert_close(weights, theirs.detach(), rtol=1e-12, atol=1e-13)
        for name, (values, size) in moments.items():
            torch.testing.assert_close(
                values, optimizer.state[theirs][name], rtol=1e-12, atol=1e-15
            )
            assert bool((size >= values.abs()).all())


@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_is_that_of_torch_but_for_its_half_precision(nesterov):
    spec = Muon(lr=1e-2, momentum=0.9, nesterov=nesterov).model_dump()
    for shape in ((6, 20), (20, 6)):
        theirs = torch.nn.Parameter(randn(*shape).float())
        optimizer = torch.optim.Muon(
            [theirs],
            lr=1e-2,
            momentum=0.9,
            nesterov=nesterov,
            weight_decay=0.0,
            adjust_lr_fn="match_rms_adamw",
        )
        state = {"momentum": torch.zeros(120).double()}
        for number in range(3):
            theirs.grad = randn(*shape, seed=number + 1).float()
            before = theirs.detach().double().clone()
            optimizer.step()
            change, moments, _ = muon(spec, matrix(*shape), theirs.grad.double().view(-1), state)
            moved = (theirs.detach().double() - before).view(-1)
            assert float((-1e-2 * change - moved).norm()) < 0.03 * float(moved.norm())
            state = {"momentum": moments["momentum"][0]}


def test_matrices_of_a_fused_and_of_a_transposed_weight_are_turned_each_alone():
    spec = Muon(scale="spectral", nesterov=False, weight_decay=0.0).model_dump()
    gradient, zeros = randn(96), {"momentum": torch.zeros(96).double()}
    fused = muon(spec, matrix(12, 8, num_parts=3), gradient, zeros)[0]
    one = muon(spec, matrix(4, 8), gradient[:32], {"momentum": zeros["momentum"][:32]})[0]
    torch.testing.assert_close(fused[:32], one)
    turned = muon(spec, matrix(12, 2, 2, 2, is_transposed=True), gradient, zeros)[0]
    whole = gradient.view(12, 2, 4).transpose(0, 1).reshape(2, 48)
    expected = orthogonalise(whole).view(2, 12, 4).transpose(0, 1).reshape(-1)
    torch.testing.assert_close(turned, expected)
    singular = torch.linalg.svdvals(orthogonalise(randn(5, 9)))
    assert float(singular.min()) > 0.6 and float(singular.max()) < 1.3


def test_clipping_divides_as_torch_does():
    for norm in (0.1, 0.5, 3.0):
        values = torch.nn.Parameter(torch.zeros(1))
        values.grad = torch.tensor([norm])
        torch.nn.utils.clip_grad_norm_([values], 0.5)
        factor, _ = clip(NormClip(max_norm=0.5).model_dump(), norm, {})
        assert norm / factor == pytest.approx(float(values.grad), rel=1e-6)
    assert clip(NoClip().model_dump(), 1e9, {}) == (1, {})


def test_adaptive_limits_are_the_published_ones():
    held = {"clip.count": 2.0, "clip.mean": 1.0, "clip.variance": 0.04}
    zclip = ZClip(z=2.0, decay=0.5, warmup=2, max_norm=None).model_dump()
    factor, statistics = clip(zclip, 2.0, held)
    limit = 1 + 2**2 / 5 * 0.2  # mean + z^2 / z-score * sigma, at a z-score of (2 - 1) / 0.2
    assert factor == pytest.approx((2 + 1e-6) / limit)
    assert statistics["clip.mean"] == pytest.approx(0.5 + 0.5 * limit)
    assert clip(zclip, 1.3, held)[0] == 1
    beginning: dict[str, float] = {}
    for norm in (1.0, 2.0, 6.0):
        _, beginning = clip(ZClip(warmup=5).model_dump(), norm, beginning)
    assert beginning["clip.mean"] == pytest.approx(3.0)
    assert beginning["clip.variance"] == pytest.approx(14 / 3)
    factor, statistics = clip(RatioZClip(ratio=2.0, decay=0.9).model_dump(), 4.0, held)
    assert factor == pytest.approx((4 + 1e-6) / 2) and statistics["clip.mean"] == pytest.approx(1.1)
    assert clip(RatioZClip(ratio=2.0).model_dump(), 4.0, {})[0] == 1


def test_decays_of_averages():
    trainer = ReferenceTrainer(
        tiny(training={"steps": 6, "ema": {"decay": 0.99}, "averages": {}}), 6, 4
    )
    assert [trainer.decays(step, 1)["ema"] for step in (0, 8, 10**6)] == [0.1, 0.5, 0.99]
    assert [*trainer.decays(0, 1)] == ["ema", "power_0.05", "power_0.1"]
    # Karras et al. 2024, table 1 of appendix C: gamma is 16.97 at 0.05 and 6.94 at 0.10.
    for length, gamma in ((0.05, 16.97), (0.10, 6.94)):
        found = math.log(power_decay(length, 100)) / math.log(1 - 1 / 100) - 1
        assert found == pytest.approx(gamma, abs=6e-3)
        assert power_decay(length, 1) == 0


SCHEDULES = [
    {"kind": "constant", "warmup_epochs": 0.5},
    {"kind": "warmup_cosine", "warmup": 9, "final": 0.05},
    {"kind": "warmup_stable_decay", "warmup": 9, "decay_start": 250, "final": 0.05},
    {"kind": "warmup_stable_decay", "warmup_epochs": 0.5, "decay_start": 20, "shape": "linear"},
    {"kind": "stepped_cosine_restart", "cycle": 11, "valley": 0.3, "decay": 0.8, "floor": 0.02},
]


def test_schedules_are_the_loops_own_over_a_whole_plan_and_those_by_hand():
    for fields in SCHEDULES:
        spec = tiny(schedule=fields, training={"steps": 300}).schedule
        loop = [learning_rate(spec, 1.0, step, 300, 40) for step in range(300)]
        np.testing.assert_allclose(
            schedule_factors(spec.model_dump(), np.arange(300), 300, 40), loop, rtol=0, atol=1e-14
        )
    cosine = {"kind": "warmup_cosine", "warmup": 4, "final": 0.1}
    cosine = tiny(schedule=cosine).schedule.model_dump()
    found = schedule_factors(cosine, np.array([0, 3, 4, 299]), 300, 40)
    assert found == pytest.approx([0.25, 1, 1, 0.1], rel=1e-12)
    restarts = {"kind": "stepped_cosine_restart", "cycle": 10, "valley": 0.5, "decay": 0.5}
    found = schedule_factors(restarts | {"floor": 0.1}, np.array([0, 5, 10, 299]), 300, 40)
    assert found == pytest.approx([1, 0.75, 0.5, 0.1])

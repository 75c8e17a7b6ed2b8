"""The reference trainer against torch.optim, closed forms, the engine's own keys and roles."""

import math

import pytest
import torch

from ditlab.engine.update import Ratio, ZScore
from ditlab.spec.optimization import RatioZClip, ZClip
from ditlab.training.plan import learning_rate
from ditlab_addons.check.eject.rules import power_share, rate_factor
from ditlab_addons.check.eject.settings import update_settings
from ditlab_addons.check.prove.reference import ParameterSettings, ReferenceTrainer, clip, muon
from ditlab_addons.optimizers.muon import Muon
from ditlab_models.parameters import ParameterRole
from support.trainings.workers import tiny


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix(*shape, num_parts=1, is_transposed=False):
    role = ParameterRole("matrix", num_parts, is_transposed)
    return ParameterSettings(role, torch.Size(shape), 1.0, 0.0, True)


@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_is_that_of_torch_but_for_its_half_precision(nesterov):
    spec = update_settings(Muon(lr=1e-2, momentum=0.9, nesterov=nesterov))
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


@pytest.mark.parametrize(
    ("kind", "spec"),
    [(ZScore, ZClip(z=1.5, warmup=3, max_norm=5.0)), (Ratio, RatioZClip(ratio=1.5))],
)
def test_adaptive_limits_are_the_engines_own(kind, spec):
    engine, statistics = kind(spec), {}
    for norm in (1.0, 2.0, 1.5, 9.0, 2.5, 1.2):
        limit = engine.limit(torch.tensor(norm, dtype=torch.float64), torch.tensor(True)).item()
        divisor, statistics = clip(spec, norm, statistics)
        assert divisor == pytest.approx(max(1.0, norm / limit), rel=1e-5)
        assert engine.state() == pytest.approx(statistics)


def test_decays_of_averages():
    trainer = ReferenceTrainer(
        tiny(training={"steps": 6, "ema": {"decay": 0.99}, "averages": {}}), 6, 4
    )
    assert [*trainer.decays(0, 1)] == ["ema", "power_0.05", "power_0.1"]
    # Karras et al. 2024, table 1 of appendix C: gamma is 16.97 at 0.05 and 6.94 at 0.10.
    for length, gamma in ((0.05, 16.97), (0.10, 6.94)):
        found = math.log(1 - power_share(length, 100)) / math.log(1 - 1 / 100) - 1
        assert found == pytest.approx(gamma, abs=6e-3)
        assert power_share(length, 1) == 1


SCHEDULES = [
    {"kind": "constant", "warmup_epochs": 0.5},
    {"kind": "warmup_cosine", "warmup": 9, "final": 0.05},
    {"kind": "warmup_stable_decay", "warmup": 9, "decay_start": 250, "final": 0.05},
    {"kind": "warmup_stable_decay", "warmup_epochs": 0.5, "decay_start": 20, "shape": "linear"},
    {"kind": "stepped_cosine_restart", "cycle": 11, "valley": 0.3, "decay": 0.8, "floor": 0.02},
]


def test_schedules_are_the_loops_own_over_a_whole_plan():
    for fields in SCHEDULES:
        spec = tiny(schedule=fields, training={"steps": 300}).schedule
        loop = [learning_rate(spec, 1.0, step, 300, 40) for step in range(300)]
        assert [rate_factor(spec, step, 300, 40) for step in range(300)] == loop

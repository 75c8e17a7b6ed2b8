"""Solvers: orders, numbers of evaluations, recorded states."""

import math

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.pixelhdm.sampling import SOLVERS as PIXELHDM_SOLVERS
from ditlab_models.processes.flow import gaussian_velocity
from ditlab_models.processes.solvers import (
    SOLVERS,
    dpmpp_2m,
    dpmpp_2s,
    euler,
    heun,
    midpoint,
    rk4,
)
from support.models.mixture_flow import carried, velocity_to_mixture

F64 = torch.float64
MEAN, STD = 0.7, 0.4
EVALUATIONS = {euler: 1, heun: 2, midpoint: 2, rk4: 4, dpmpp_2m: 1, dpmpp_2s: 2}


def velocity(x, t):
    return gaussian_velocity(x, t, MEAN, STD)


@pytest.mark.parametrize("solvers", [SOLVERS, PIXELHDM_SOLVERS])
def test_order_on_a_mixture(solvers):
    noise = torch.linspace(-2, 2, 40, dtype=F64)
    exact = carried(noise, start=0.95, end=0.05)
    for name, solver in solvers.items():
        errors = []
        for steps in (160, 320):
            times = torch.linspace(0.05, 0.95, steps + 1, dtype=F64)
            errors.append((solver(velocity_to_mixture, noise, times) - exact).abs().max().item())
        order = {"euler": 1, "rk4": 4}.get(name, 2)
        assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.1), name


@pytest.mark.parametrize("solver", EVALUATIONS)
def test_evaluations_and_records_a_step(solver):
    calls, states = [], []
    times = torch.linspace(0.9, 0.1, 8, dtype=F64)
    end = solver(lambda x, t: calls.append(t) or x, torch.ones(1, dtype=F64), times, states.append)
    assert len(calls) == 7 * EVALUATIONS[solver]
    assert len(states) == 7 and torch.equal(states[-1], end)


def test_uneven_grids_are_followed():
    times = torch.linspace(1, 0, 101, dtype=F64) ** 2
    noise = torch.randn(20, dtype=F64)
    end = SOLVERS["rk4"](velocity, noise, times)
    assert_close(end, MEAN + STD * noise, rtol=0, atol=1e-6)

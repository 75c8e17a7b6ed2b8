"""Solvers: orders, numbers of evaluations, recorded states."""

import math

import pytest
import torch
from torch.testing import assert_close

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
from support.models.mixture_flow import carried, mixture_velocity

F64 = torch.float64
MEAN, STD = 0.7, 0.4
EVALUATIONS = {euler: 1, heun: 2, midpoint: 2, rk4: 4, dpmpp_2m: 1, dpmpp_2s: 2}


def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return gaussian_velocity(x, t, MEAN, STD)


def grid(steps: int) -> torch.Tensor:
    return torch.linspace(1, 0, steps + 1, dtype=F64)


NOISE = torch.linspace(-2, 2, 40, dtype=F64)
MIXTURE_END = carried(NOISE, start=1, end=0)


@pytest.mark.parametrize(
    ("name", "order"), [("euler", 1), ("heun", 2), ("midpoint", 2), ("rk4", 4)]
)
def test_order_on_a_mixture(name, order):
    errors = [
        (SOLVERS[name](mixture_velocity, NOISE, grid(steps)) - MIXTURE_END).abs().max().item()
        for steps in (160, 320)
    ]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.05)


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

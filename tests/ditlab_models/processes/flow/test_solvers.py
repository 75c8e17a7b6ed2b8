"""Solvers: orders, numbers of evaluations, recorded states."""

import math

import pytest
import torch

from ditlab_models.processes.flow import gaussian_velocity, point_velocity
from ditlab_models.processes.solvers import SOLVERS, heun_then_euler
from support.models.mixture_flow import carried, mixture_velocity

F64 = torch.float64
MEAN, STD = 0.7, 0.4
EVALUATIONS = {"euler": 1, "heun": 2, "midpoint": 2, "rk4": 4}


def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return gaussian_velocity(x, t, MEAN, STD)


def grid(steps: int) -> torch.Tensor:
    return torch.linspace(1, 0, steps + 1, dtype=F64)


NOISE = torch.linspace(-2, 2, 40, dtype=F64)
MIXTURE_END = carried(NOISE, start=1, end=0)


def slope(name: str, field, exact: torch.Tensor) -> float:
    """Measured order: the decrease of the largest error from 160 steps to 320."""

    def error(steps: int) -> float:
        return (SOLVERS[name](field, NOISE, grid(steps)) - exact).abs().max().item()

    return math.log2(error(160) / error(320))


# On a Gaussian's flow, and there alone, the midpoint method gains an order.
@pytest.mark.parametrize(
    ("name", "order"), [("euler", 1), ("heun", 2), ("midpoint", 3), ("rk4", 4)]
)
def test_order_on_one_gaussian_whose_endpoint_is_known(name, order):
    assert slope(name, velocity, MEAN + STD * NOISE) == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize(
    ("name", "order"), [("euler", 1), ("heun", 2), ("midpoint", 2), ("rk4", 4)]
)
def test_order_on_a_mixture(name, order):
    assert slope(name, mixture_velocity, MIXTURE_END) == pytest.approx(order, abs=0.05)


def test_euler_lands_on_a_single_point_of_data_exactly():
    point = torch.tensor([0.25, -1.5], dtype=F64)
    for steps in (1, 3, 50):
        noise = torch.randn(20, 2, dtype=F64)
        landed = SOLVERS["euler"](lambda x, t: point_velocity(x, t, point), noise, grid(steps))
        torch.testing.assert_close(landed, point.expand(20, 2), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", SOLVERS)
def test_evaluations_a_step(name):
    calls = []
    SOLVERS[name](lambda x, t: calls.append(t) or x, torch.ones(1), torch.linspace(1, 0, 8))
    assert len(calls) == 7 * EVALUATIONS[name]


@pytest.mark.parametrize("name", SOLVERS)
def test_both_directions_of_time_give_the_same_samples(name):
    noise = torch.randn(20, dtype=F64)
    down = SOLVERS[name](velocity, noise, grid(16))
    up = SOLVERS[name](lambda x, t: -velocity(x, 1 - t), noise, grid(16).flip(0))
    torch.testing.assert_close(up, down, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SOLVERS)
def test_every_step_is_recorded_and_the_last_is_returned(name):
    states = []
    noise = torch.randn(5, dtype=F64)
    end = SOLVERS[name](velocity, noise, grid(6), states.append)
    assert len(states) == 6
    assert torch.equal(states[-1], end)


def test_uneven_grids_are_followed():
    times = torch.linspace(1, 0, 101, dtype=F64) ** 2
    noise = torch.randn(20, dtype=F64)
    end = SOLVERS["rk4"](velocity, noise, times)
    torch.testing.assert_close(end, MEAN + STD * noise, rtol=0, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 50])
def test_heun_with_an_euler_step_at_the_end_spares_one_evaluation(steps):
    calls = []
    heun_then_euler(lambda x, t: calls.append(float(t)) or x, torch.ones(1), grid(steps))
    assert len(calls) == 2 * steps - 1
    assert 0 not in calls  # the grid's last time


def test_heun_with_an_euler_step_at_the_end_keeps_its_order():
    errors = [
        (heun_then_euler(mixture_velocity, NOISE, grid(n)) - MIXTURE_END).abs().max().item()
        for n in (160, 320)
    ]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.15)

"""DPM-Solver++ on straight lines: exactness, orders, evaluations. Noise is at t = 0."""

import math

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.processes.flow import point_velocity
from ditlab_models.processes.solvers import dpmpp_2m, dpmpp_2s, euler
from support.models.mixture_flow import velocity_to_mixture

F64 = torch.float64
EPS = 0.05
NOISE = torch.linspace(-2, 2, 40, dtype=F64)
SOLVERS = {"2m": dpmpp_2m, "2s": dpmpp_2s}


def grid(steps):
    return torch.linspace(EPS, 1 - EPS, steps + 1, dtype=F64)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (F64, 1e-14)])
def test_data_at_one_point_is_met_exactly_in_any_number_of_steps(name, dtype, tolerance):
    point = torch.tensor([0.25, -0.5], dtype=dtype)
    noise = torch.randn(20, 2, dtype=dtype)
    for steps in (1, 3, 50):
        landed = SOLVERS[name](
            lambda x, t: point_velocity(x, t, point, noise_at=0), noise, grid(steps)
        )
        # The same line from the noise at t = EPS on: x_t = point + (1 - t) / (1 - EPS) (noise -
        # point).
        expected = point + EPS / (1 - EPS) * (noise - point)
        assert_close(landed, expected, rtol=0, atol=tolerance)


def test_the_first_step_is_eulers_in_the_data_prediction():
    """DDIM, which on straight lines is Euler's method."""
    times = grid(1)
    assert_close(
        dpmpp_2m(velocity_to_mixture, NOISE, times), euler(velocity_to_mixture, NOISE, times)
    )


def test_the_second_evaluation_lies_midway_in_log_snr_not_in_time():
    times, calls = torch.tensor([0.2, 0.9], dtype=F64), []
    dpmpp_2s(lambda x, t: calls.append(float(t)) or velocity_to_mixture(x, t), NOISE, times)
    midway = (math.log(0.2 / 0.8) + math.log(0.9 / 0.1)) / 2
    assert calls == pytest.approx([0.2, 1 / (1 + math.exp(-midway))])


def test_2m_extrapolates_the_data_prediction_in_log_snr_on_uneven_grids():
    a, b = 0.3, 0.2
    times = torch.tensor([0.1, 0.25, 0.6, 0.7], dtype=F64)
    calls = []

    def velocity(x, t):
        calls.append((float(t), x.clone()))
        return (a + b * torch.logit(t) - x) / (1 - t)

    end = dpmpp_2m(velocity, NOISE, times)
    (_, _), (t, x), (t_next, x_next) = calls
    h = math.log(t_next / (1 - t_next)) - math.log(t / (1 - t))
    h_before = math.log(t / (1 - t)) - math.log(0.1 / 0.9)
    now, before = a + b * math.log(t / (1 - t)), a + b * math.log(0.1 / 0.9)
    # D in the middle of the step, had it a constant slope
    extrapolated = now + (now - before) / h_before * h / 2
    expected = (1 - t_next) / (1 - t) * x - t_next * math.expm1(-h) * extrapolated
    assert_close(x_next, expected, rtol=0, atol=1e-12)
    assert end.shape == NOISE.shape and len(calls) == 3


@pytest.mark.parametrize("name", SOLVERS)
def test_float32_states_stay_float32_on_a_float64_grid(name):
    assert SOLVERS[name](velocity_to_mixture, NOISE.float(), grid(3)).dtype == torch.float32

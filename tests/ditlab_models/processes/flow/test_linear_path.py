"""Straight-line flows: round trips, both directions of time, exact velocities."""

import torch
from torch.testing import assert_close

from ditlab_models.processes.flow import (
    endpoints,
    interpolate,
    point_velocity,
    velocity_target,
)

F64 = torch.float64


def lines():
    return (*torch.randn(2, 16, 3, 4, dtype=F64), torch.rand(16, dtype=F64))


def test_ends_are_data_and_noise_exactly():
    data, noise, _ = lines()
    zeros, ones = torch.zeros(16, dtype=F64), torch.ones(16, dtype=F64)
    assert torch.equal(interpolate(data, noise, zeros), data)
    assert torch.equal(interpolate(data, noise, ones), noise)
    assert torch.equal(interpolate(data, noise, zeros, noise_at=0), noise)


def test_target_to_velocity_to_endpoints_and_back():
    data, noise, t = lines()
    x_t, velocity = interpolate(data, noise, t), velocity_target(data, noise)
    x0, x1 = endpoints(x_t, velocity, t)
    assert_close(x0, data)
    assert_close(x1, noise)
    assert_close(velocity_target(x0, x1), velocity)


def test_both_conventions_are_one_flow_from_two_ends():
    data, noise, t = lines()
    assert_close(
        interpolate(data, noise, t, noise_at=0), interpolate(data, noise, 1 - t, noise_at=1)
    )
    assert torch.equal(
        velocity_target(data, noise, noise_at=0), -velocity_target(data, noise, noise_at=1)
    )


def test_the_true_data_give_the_true_velocity_in_both_directions_of_time():
    data, noise, t = lines()
    for noise_at in (0, 1):
        x_t = interpolate(data, noise, t, noise_at)
        found = point_velocity(x_t, t.view(-1, 1, 1), data, noise_at)
        assert_close(found, velocity_target(data, noise, noise_at))

"""The sampler of both networks."""

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.contract import SampleRequest
from ditlab_models.processes.draws import draw_samples
from ditlab_models.processes.flow import gaussian_velocity
from ditlab_models.processes.flow_sampling import class_columns
from support.damage import refused
from support.models.draws import Answering, perturb, seeded

F64 = torch.float64
STILL = Answering(lambda x, t, label=None: torch.zeros_like(x))


@pytest.fixture
def build(family, small):
    """A sampler of the family with these settings, for its small model with changes."""

    def make(model=(), **sampling):
        spec = small(**dict(model))
        return family.build_sampler(family.sampling(**sampling), spec, family.objective())

    return make


@pytest.mark.parametrize(
    ("solver", "evaluations"), [("euler", 1), ("heun", 2), ("midpoint", 2), ("rk4", 4)]
)
def test_a_constant_velocity_is_integrated_exactly_at_the_documented_cost(
    build, solver, evaluations
):
    network = Answering(lambda x, t: torch.full_like(x, 0.5))
    sampler = build(solver=solver, steps=5)
    samples = sampler.sample(network, {}, 3, seeded(1), trajectory=True)
    assert samples.trajectory.shape == (6, 3, 1, 8, 8)
    assert torch.equal(samples.trajectory[0, 0], torch.randn(1, 8, 8, generator=seeded(1)))
    assert_close(samples.values, samples.trajectory[0] - 0.5)
    assert [len(x) for x, _ in network.calls] == [3] * 5 * evaluations


def test_conditions(build):
    plain = build()
    assert plain.conditions(5) == {}
    classes = build(model={"num_classes": 3})
    assert classes.conditions(5)["label"].tolist() == [0, 1, 2, 0, 1]
    assert classes.conditions(2, SampleRequest(label=2))["label"].tolist() == [2, 2]
    for label in (3, -1):
        with refused(rf"label={label} is no class .*num_classes=3\); choose .* 0 to 2", ValueError):
            classes.conditions(2, SampleRequest(label=label))


def test_samples_in_batches_take_their_part_of_given_noise(build, family, small):
    network = perturb(family.build_network(small()))
    noise = torch.randn(4, 1, 8, 8)
    sampler = build(steps=4)
    whole = sampler.sample(network, {}, 4, seeded(), noise=noise)
    parts = draw_samples(sampler, network, {}, 4, seeded(5), 3, noise=noise)
    assert_close(parts.values, whole.values)


def test_a_gaussian_flow_carries_noise_to_its_closed_form_in_float64(build):
    """x(0) = mean + std x(1): the error left is that of 200 Runge-Kutta steps, and far below
    float32's.
    """
    noise = torch.randn(3, 1, 8, 8, dtype=F64)
    sampler = build(solver="rk4", steps=200)
    exact = Answering(lambda x, t: gaussian_velocity(x, t.view(-1, 1, 1, 1), 0.3, 0.2), F64)
    samples = sampler.sample(exact, {}, 3, seeded(), noise=noise)
    assert_close(samples.values, 0.3 + 0.2 * noise, rtol=0, atol=2e-9)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (
            torch.zeros(3, 1, 8, 8),
            r"noise has the shape \(3, 1, 8, 8\), and samples begin with \(2, 1, 8, 8\) here",
        ),
        (
            torch.zeros(2, 1, 8, 8, dtype=torch.int64),
            "noise holds int64, and samples begin with finite numbers",
        ),
        (torch.full((2, 1, 8, 8), torch.nan), "noise holds NaN or infinities"),
    ],
)
def test_noise_that_does_not_fit_is_refused(build, noise, message):
    sampler = build(steps=1)
    with refused(message, ValueError):
        sampler.sample(STILL, {}, 2, seeded(), noise=noise)
    for shape in ((3, 1, 8, 8), ()):
        with refused("and 2 samples are drawn; give it a first axis of 2", ValueError):
            draw_samples(sampler, STILL, {}, 2, seeded(), 1, noise=torch.zeros(shape))


def test_show_names_classes_and_counts_those_without_a_name(build):
    sampler = build(steps=1, model={"num_classes": 4})
    sampler.class_names = ["cat", "", "dog"]
    samples = sampler.sample(STILL, sampler.conditions(4), 4, seeded())
    figure = sampler.show(samples)
    (grid,) = figure.panels
    assert list(grid.captions) == ["cat", "1", "dog", "3"] and grid.columns == 4
    assert grid.images.min() >= 0 and grid.images.max() <= 1
    assert figure.alt == "4 samples of cat, 1, dog, 3, in turn, 4 in a row"


@pytest.mark.parametrize(
    ("num", "num_classes", "columns"),
    [
        (30, 10, 10),
        (64, 10, 8),
        (64, 2, 8),
        (20, 3, 10),
        (5, 3, 5),
        (68, 0, 10),
        (16, 1, 8),
    ],
)
def test_a_column_is_a_class_unless_the_last_row_would_be_mostly_empty(num, num_classes, columns):
    assert class_columns(num, num_classes) == columns

"""Figures of the image families: finite values, drawn lazily, the same whatever other kinds are
drawn.
"""

import numpy as np
import pytest
import torch

from support.figures import check_figure

KINDS = {
    "dit": [
        "samples",
        "trajectory",
        "denoising",
        "loss_by_time",
        "noise_schedule",
        "patches",
        "positions",
        "attention",
        "adaln",
        "features",
    ],
    "unet": [
        "samples",
        "trajectory",
        "denoising",
        "loss_by_time",
        "noise_schedule",
        "time_shift",
        "features",
    ],
}
STATIC = {
    "dit": {"patches", "positions", "time_embedding", "noise_schedule", "forward_pass"},
    "unet": {"time_embedding", "noise_schedule", "forward_pass"},
}


def draw(family, spec, batch, perturb, kinds=None):
    torch.manual_seed(0)
    network = family.build_network(spec)
    perturb(network)
    objective = family.build_objective(family.objective(), spec)
    sampler = family.build_sampler(family.sampling(steps=6), spec, family.objective())
    generator = torch.Generator().manual_seed(0)
    return objective, objective.figures(network, batch, sampler, generator, kinds)


@pytest.mark.parametrize("changes", [{}, {"num_classes": 10}, {"channels": 3}, {"channels": 2}])
def test_all_kinds_are_drawn(family, small, perturb, changes):
    spec = small(**changes)
    batch = {"image": 2 * torch.rand(4, *spec.image_shape) - 1, "label": torch.arange(4)}
    objective, figures = draw(family, spec, batch, perturb)
    drawn = dict(figures)
    assert list(drawn) == list(objective.figure_kinds()) == KINDS[family.name]
    for figure in drawn.values():
        check_figure(figure)


def test_one_kind_is_the_same_alone(family, small, batch, perturb):
    _, every = draw(family, small(), batch, perturb)
    together = dict(every)["trajectory"]
    _, one = draw(family, small(), batch, perturb, ["trajectory"])
    ((kind, alone),) = one
    assert kind == "trajectory"
    assert np.array_equal(alone.panels[0].images, together.panels[0].images)


def test_adaln_zero_shows_its_gate(family, small, batch, perturb):
    if family.name != "dit":
        pytest.skip("adaLN is DiT's")
    _, figures = draw(family, small(adaln="zero"), batch, perturb, ["adaln"])
    ((_, figure),) = figures
    check_figure(figure)
    assert [panel.title for panel in figure.panels[:3]] == ["scale(t)", "shift(t)", "gate(t)"]


def test_static_figures_need_no_weights(family, small):
    state = torch.get_rng_state()
    figures = family.static_figures(small())
    assert set(figures) == STATIC[family.name]
    for figure in figures.values():
        check_figure(figure)
    assert torch.equal(torch.get_rng_state(), state)

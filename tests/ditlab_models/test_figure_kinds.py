"""Every kind of figure of every family, from untrained networks; values that are known in closed
form.
"""

import re

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from ditlab_models.figure_kinds.attention import catch_attention
from ditlab_models.figure_kinds.embeddings import rotary_similarity
from ditlab_models.figure_kinds.network import principal_components
from ditlab_models.figures import Curve, Figure, Lines
from ditlab_models.layers.attention import GatedAttention, SelfAttention
from ditlab_models.layers.rope import rotate, rotation
from ditlab_models.processes.flow import point_velocity
from ditlab_models.processes.flow_figures import (
    STRIP_NOISE,
    FlowProbe,
    denoising_figure,
    flow_schedule_figure,
    loss_by_time_figure,
    time_density,
)
from ditlab_models.processes.specs import LogitNormalTime, UniformTime
from support.figures import check_figure
from support.models.figure_networks import SETTINGS, figure_network

ONLY = {
    "region": {"imputation"},
    "region-ddpm": {"imputation", "trajectory", "denoising", "loss_by_time"},
    "dlm": {"samples", "trajectory", "denoising", "loss_by_noise"},
    "dit": {"patches", "positions", "attention", "adaln"},
    "unet": {"time_shift"},
    "pixelhdm": {
        "samples",
        "trajectory",
        "denoising",
        "loss_by_time",
        "patches",
        "attention",
        "adaln",
    },
}
"""Kinds that these have beside others."""


@pytest.mark.parametrize("name", SETTINGS)
def test_all_kinds_are_drawn(name):
    made = figure_network(name)
    before = {key: value.clone() for key, value in made.network.state_dict().items()}
    drawn = made.draw()
    assert list(drawn) == list(made.objective.figure_kinds())
    assert ONLY.get(name, set()) <= set(drawn) and {"noise_schedule", "features"} <= set(drawn)
    state = torch.get_rng_state()
    static = made.static()
    assert torch.equal(torch.get_rng_state(), state)
    assert {"forward_pass", "time_embedding", "noise_schedule"} <= set(static)
    for figure in (*drawn.values(), *static.values()):
        for each in (figure, *figure.frames):
            check_figure(each)
    assert all(torch.equal(value, before[key]) for key, value in made.network.state_dict().items())
    again = figure_network(name).network.state_dict()
    assert all(torch.equal(value, before[key]) for key, value in again.items())
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in made.network.modules()
    )


def test_one_kind_is_the_same_alone():
    made = figure_network("dit")
    together, alone = made.draw()["trajectory"], made.draw("trajectory")["trajectory"]
    assert np.array_equal(alone.panels[0].images, together.panels[0].images)


def test_adaln_zero_shows_its_gate():
    figure = figure_network("dit-class").draw("adaln")["adaln"]
    assert [panel.title for panel in figure.panels[:3]] == ["scale(t)", "shift(t)", "gate(t)"]


@pytest.mark.parametrize("name", SETTINGS)
def test_linear_maps_of_a_forward_pass_are_the_networks(name):
    made = figure_network(name)
    (diagram,) = made.static()["forward_pass"].panels
    shapes = {(p.shape[0], p.numel() // p.shape[0]) for p in made.network.parameters()}
    maps = [
        (int(b), int(a))
        for box in diagram.boxes
        for a, b in re.findall(r"Linear (\d+) → (\d+)", box.detail)
    ]
    assert maps or name.startswith("unet")
    assert all(each in shapes for each in maps), (maps, shapes)


def test_noise_schedule_of_a_flow():
    data, ratio, density = flow_schedule_figure(LogitNormalTime(eps=0.05), noise_at=0).panels
    np.testing.assert_allclose(data.curves[0].y, data.curves[0].x)  # data at t = 1
    (curve,) = ratio.curves
    at = {round(t, 3): value for t, value in zip(curve.x, curve.y, strict=True)}
    assert at[0.5] == pytest.approx(0) and at[0.9] == pytest.approx(20 * np.log10(9))
    (drawn,) = density.curves
    assert np.trapezoid(drawn.y, drawn.x) == pytest.approx(1, abs=1e-3)
    t = np.linspace(0.4, 0.6, 2001)
    assert np.trapezoid(time_density(LogitNormalTime(eps=0.05), t), t) == pytest.approx(
        0.3487, abs=1e-4
    )
    assert (time_density(UniformTime(), t) == 1).all()


def test_noise_schedule_of_regions():
    betas, factors, shares, ratio = figure_network("region").static()["noise_schedule"].panels
    bar = shares.curves[0].y
    assert bar[-1] == pytest.approx(4.0358298e-5, rel=1e-6)
    assert shares.title == "As much noise as signal from t = 259 on"
    np.testing.assert_allclose(factors.curves[0].y ** 2 + factors.curves[1].y ** 2, 1)
    assert betas.curves[0].y[-1] == pytest.approx(0.02) and ratio.curves[0].y[0] == pytest.approx(
        40, abs=1e-3
    )


def test_noise_schedule_of_tokens():
    sigma, share, rate = figure_network("dlm").static()["noise_schedule"].panels
    (curve,) = sigma.curves
    assert curve.y[100] == pytest.approx((0.001 * 1.0) ** 0.5)
    assert share.curves[0].y[-1] == pytest.approx(1 - np.exp(-1))
    np.testing.assert_allclose(rate.curves[0].y, curve.y * np.log(1000))


def test_rotary_similarity_is_that_of_turned_vectors():
    width, distance = 8, np.arange(6)
    vector = torch.ones(6, width)
    turned = rotate(vector, rotation(torch.arange(6), width))
    cosine = (turned @ turned[0]) / width
    np.testing.assert_allclose(rotary_similarity(distance, width), cosine.numpy(), atol=1e-6)


def test_a_perfect_network_guesses_the_image_and_has_no_loss():
    point = torch.rand(1, 1, 4, 4)
    image = point.expand(3, 1, 4, 4)
    noise = torch.randn(3, 1, 4, 4)
    probe = FlowProbe(lambda x, t: point_velocity(x, t.view(-1, 1, 1, 1), point), image, noise)
    panels = denoising_figure(probe).panels
    columns = len(STRIP_NOISE) + 1
    assert len(panels) == 3
    for panel in panels:
        np.testing.assert_allclose(
            panel.images[columns:], np.broadcast_to(panel.images[0], (columns, 4, 4)), atol=1e-5
        )
        assert list(panel.captions[columns + 1 :]) == ["MSE 0.000"] * len(STRIP_NOISE)
    network, pixels, nothing = loss_by_time_figure(probe).panels[0].curves
    np.testing.assert_allclose(network.y, 0, atol=1e-6)
    np.testing.assert_allclose(pixels.y, 0, atol=1e-6)  # one image: its mean tells all
    np.testing.assert_allclose(nothing.y, (noise - image).square().mean().item(), rtol=1e-5)


def test_weights_of_attention_make_the_layers_output():
    x = torch.randn(2, 5, 8)
    rope = rotation(torch.arange(5), 4)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    plain = SelfAttention(8, 2)
    (weights,) = catch_attention([plain], lambda: plain(x, mask=mask, rope=rope))
    values = plain.heads(x[:1])[2][0]
    mixed = (torch.from_numpy(weights) @ values).transpose(0, 1).flatten(1)
    assert_close(plain.out(mixed), plain(x, mask=mask, rope=rope)[0])
    assert (weights[:, 0, 1:] == 0).all()
    gated = GatedAttention(8, 4, 2)
    keys = torch.tensor([[True] * 4 + [False]] * 2)
    (weights,) = catch_attention([gated], lambda: gated(x, key_mask=keys))
    values = gated.heads(x[:1], None)[2].repeat_interleave(2, dim=1)[0]
    mixed = (torch.from_numpy(weights) @ values).transpose(0, 1) * gated.gates(x)[0]
    assert_close(gated.out(mixed.flatten(1)), gated(x, key_mask=keys)[0])
    assert (weights[..., -1] == 0).all()


def test_axes_that_turn_alike_share_a_curve():
    panels = figure_network("pixelhdm").static()["positions"].panels
    (lines,) = [panel for panel in panels if isinstance(panel, Lines)]
    values = [tuple(curve.y) for curve in lines.curves]
    assert len(set(values)) == len(values)
    assert sorted(", ".join(curve.label for curve in lines.curves).split(", ")) == [
        "column",
        "row",
        "text position",
    ]


def test_principal_components():
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(200, 2)) * [5, 1]
    found = principal_components(scores @ np.array([[0, 1, 0], [0, 0, -1]]) + [3, 2, 1])
    assert found.shares.sum() == pytest.approx(1) and found.shares[0] > 0.9
    assert abs(np.corrcoef(found.scores[:, 0], scores[:, 0])[0, 1]) == pytest.approx(1, abs=1e-2)


def test_alternative_text_names_what_is_drawn():
    figure = figure_network("dit").static()["noise_schedule"]
    for part in ("Training times: uniform", "data, noise"):
        assert part in figure.alternative_text
    strange = Figure(
        [Lines([Curve(np.arange(2), np.arange(2), "\ud800 a\x00b" + "c" * 5000)])], "two\nlines"
    )
    text = strange.alternative_text
    assert text.startswith("two lines. Curves: a b") and text.encode() and len(text) == 1000

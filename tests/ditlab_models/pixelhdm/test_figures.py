"""PixelHDM's figures, with both kinds of text encoder."""

import numpy as np
import pytest
import torch
from torch import nn

from ditlab_models.figures import ImageGrid
from ditlab_models.pixelhdm.family import FAMILY
from ditlab_models.pixelhdm.spec import PixelHDMObjectiveSpec, PixelHDMSamplingSpec, PixelHDMSpec
from ditlab_models.pixelhdm.text_encoder import caption_bytes
from support.figures import check_figure

KINDS = [
    "samples", "trajectory", "denoising", "loss_by_time", "receptive_field", "patches", "attention", "attention_steps",
    "attention_gates", "adaln", "features", "paths", "noise_schedule", "guidance", "frequency_weights",
]  # fmt: skip
SIZE = (16, 24)


def model(**changes):
    sizes = {"width": 16, "pixel_width": 4, "patch_size": 8, "patch_depth": 3, "pixel_depth": 2, "num_heads": 2}
    sizes |= {"num_kv_heads": 1, "mrope_widths": (2, 2, 4), "bottleneck_width": 8, "time_width": 8}
    return PixelHDMSpec(**{**sizes, "max_resolution": 64, "text_length": 12, "text_depth": 1, **changes})


def batch_of(spec, num=5):
    generator = torch.Generator().manual_seed(0)
    batch = {"image": 2 * torch.rand(num, 3, *SIZE, generator=generator) - 1}
    if spec.text_encoder == "learned":
        return batch | {"caption": caption_bytes([f"digit {number}" for number in range(num)], 12)}
    text = torch.randn(num, 4, spec.width, generator=generator)
    return batch | {"text": text, "text_mask": torch.ones(num, 4, dtype=torch.bool), "text_pooled": text.mean(1)}


def draw(spec, network, kinds=None, sampling=None, quality=90):
    objective_spec = PixelHDMObjectiveSpec(
        weights={"alignment": 0.0}, frequency={"quality": quality}, alignment_block=1
    )
    settings = {"steps": 4, "height": SIZE[0], "width": SIZE[1], **(sampling or {})}
    sampler = FAMILY.build_sampler(PixelHDMSamplingSpec(**settings), spec, objective_spec)
    objective = FAMILY.build_objective(objective_spec, spec)
    generator = torch.Generator().manual_seed(0)
    return objective.figure_kinds(), dict(objective.figures(network, batch_of(spec), sampler, generator, kinds))


@pytest.mark.parametrize("text_encoder", ["learned", "frozen"])
def test_all_kinds_are_drawn_of_finite_numbers(text_encoder, perturb):
    spec = model(text_encoder=text_encoder)
    network = FAMILY.build_network(spec)
    perturb(network)
    kinds, figures = draw(spec, network)
    assert list(kinds) == list(figures) == KINDS
    for figure in (each for drawn in figures.values() for each in (drawn, *drawn.frames)):
        check_figure(figure)


def test_samples_are_of_held_out_captions_at_the_samplers_size():
    spec = model(text_encoder="learned")
    _, figures = draw(spec, FAMILY.build_network(spec), ["samples"])
    (grid,) = figures["samples"].panels
    assert grid.images.shape == (5, *SIZE, 3)
    assert list(grid.captions) == [f"digit {number}" for number in range(5)]


def test_prompts_of_the_spec_need_no_encoder_here():
    """Without a frozen encoder, captions of the batch replace the prompts."""
    spec = model()
    _, figures = draw(
        spec, FAMILY.build_network(spec), ["samples"], {"prompts": ("a cat",), "negative_prompt": "a dog"}
    )
    assert len(figures["samples"].panels[0].images) == 5


@pytest.mark.parametrize("projects", [True, False])
def test_a_trajectory_goes_from_noise_to_data(projects):
    spec = model()
    _, figures = draw(spec, FAMILY.build_network(spec), ["trajectory"], {"steps": 3, "final_projection": projects})
    figure = figures["trajectory"]
    (grid,) = figure.panels
    assert isinstance(grid, ImageGrid) and len(figure.frames) == 4 + projects
    times = ["t=0.05", "t=0.35", "t=0.65", "t=0.95", *(["t=1.00"] if projects else [])]
    assert list(grid.captions) == times * 4
    assert figure.title.endswith("noise at t=0.05 to data at t=1" if projects else "to data at t=0.95")


@pytest.mark.parametrize("gate", ["headwise", "elementwise"])
def test_gates_are_half_open_before_training_and_show_who_opens(gate):
    spec = model(gate=gate)
    network = FAMILY.build_network(spec)
    _, figures = draw(spec, network, ["attention_gates"])
    panels = figures["attention_gates"].panels
    assert [panel.values.shape for panel in panels] == [(3, 2)] * 3 + [(2, 2)] * 3
    assert all((panel.values == 0.5).all() for panel in panels)

    class Opened(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.tensor([0.0, 4.0]).repeat_interleave(self.out_features // 2)

    network.patch_blocks[1].attention.gate.__class__ = Opened
    _, figures = draw(spec, network, ["attention_gates"])
    for panel in figures["attention_gates"].panels[:3]:
        expected = np.full((3, 2), 0.5)
        expected[1, 1] = 1 / (1 + np.exp(-4))
        np.testing.assert_allclose(panel.values, expected, rtol=1e-6)


def test_padded_text_does_not_show_in_gates(perturb):
    spec = model()
    network = FAMILY.build_network(spec)
    perturb(network)
    objective = FAMILY.build_objective(PixelHDMObjectiveSpec(weights={"alignment": 0.0}), spec)
    batch = batch_of(spec)
    padded = {**batch, "text": nn.functional.pad(batch["text"], (0, 0, 0, 3), value=9.0)}
    padded["text_mask"] = nn.functional.pad(batch["text_mask"], (0, 3))
    one, two = (
        next(objective.figures(network, each, None, torch.Generator().manual_seed(0), ["attention_gates"]))[1]
        for each in (batch, padded)
    )
    for first, second in zip(one.panels, two.panels, strict=True):
        np.testing.assert_allclose(first.values, second.values, atol=1e-6)


def test_frequency_weights_are_those_of_the_quality():
    _, figures = draw(model(), None, ["frequency_weights"], quality=50)
    luma_steps, chroma_steps, luma, chroma = (panel.values for panel in figures["frequency_weights"].panels)
    assert luma_steps[0, 0] == 16 and chroma_steps[0, 0] == 17
    np.testing.assert_allclose(luma * luma_steps, (luma * luma_steps)[0, 0], rtol=1e-6)
    assert luma.mean() == pytest.approx(1) and chroma.mean() == pytest.approx(1)
    state = torch.get_rng_state()
    static = FAMILY.static_figures(PixelHDMSpec())
    assert static["frequency_weights"].panels[0].values[0, 0] == 3
    assert torch.equal(torch.get_rng_state(), state)

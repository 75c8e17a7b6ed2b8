"""PixelHDM's figures, with both kinds of text encoder."""

import pytest
import torch

from ditlab_models.figures import ImageGrid
from ditlab_models.pixelhdm.family import FAMILY
from ditlab_models.pixelhdm.spec import PixelHDMObjectiveSpec, PixelHDMSamplingSpec, PixelHDMSpec
from ditlab_models.pixelhdm.text_encoder import caption_bytes
from support.figures import check_figure
from support.models.draws import seeded
from support.models.pixelhdm_samplers import FROZEN

SIZE = (16, 24)


def model(**changes):
    return PixelHDMSpec(**{**FROZEN, "text_length": 12, **changes})


def batch_of(spec, num=5):
    generator = seeded()
    batch = {"image": 2 * torch.rand(num, 3, *SIZE, generator=generator) - 1}
    if spec.text_encoder == "learned":
        return batch | {"caption": caption_bytes([f"digit {number}" for number in range(num)], 12)}
    text = torch.randn(num, 4, spec.width, generator=generator)
    return batch | {
        "text": text,
        "text_mask": torch.ones(num, 4, dtype=torch.bool),
        "text_pooled": text.mean(1),
    }


def draw(spec, network, kinds=None, sampling=None):
    objective_spec = PixelHDMObjectiveSpec(weights={"alignment": 0.0}, alignment_block=1)
    settings = {"steps": 4, "height": SIZE[0], "width": SIZE[1], **(sampling or {})}
    sampler = FAMILY.build_sampler(PixelHDMSamplingSpec(**settings), spec, objective_spec)
    objective = FAMILY.build_objective(objective_spec, spec)
    generator = seeded()
    return objective.figure_kinds(), dict(
        objective.figures(network, batch_of(spec), sampler, generator, kinds)
    )


def test_all_kinds_are_drawn_with_a_frozen_encoder(perturb):
    spec = model()
    network = FAMILY.build_network(spec)
    perturb(network)
    kinds, figures = draw(spec, network)
    assert list(kinds) == list(figures)
    for figure in figures.values():
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
        spec,
        FAMILY.build_network(spec),
        ["samples"],
        {"prompts": ("a cat",), "negative_prompt": "a dog"},
    )
    assert len(figures["samples"].panels[0].images) == 5


@pytest.mark.parametrize("projects", [True, False])
def test_a_trajectory_goes_from_noise_to_data(projects):
    spec = model()
    _, figures = draw(
        spec, FAMILY.build_network(spec), ["trajectory"], {"steps": 3, "final_projection": projects}
    )
    figure = figures["trajectory"]
    (grid,) = figure.panels
    assert isinstance(grid, ImageGrid) and len(figure.frames) == 4 + projects
    times = ["t=0.05", "t=0.35", "t=0.65", "t=0.95", *(["t=1.00"] if projects else [])]
    assert list(grid.captions) == times * 4
    assert figure.title.endswith(
        "noise at t=0.05 to data at t=1" if projects else "to data at t=0.95"
    )

"""PixelHDM's figures of samples."""

import pytest

from ditlab_models.figures import ImageGrid
from ditlab_models.pixelhdm.family import FAMILY
from ditlab_models.pixelhdm.spec import PixelHDMObjectiveSpec, PixelHDMSamplingSpec
from support.models.draws import seeded
from support.models.figure_networks import figure_network


def draw(kind, name="pixelhdm-frozen", **sampling):
    """Draw a kind with these settings of sampling."""
    made = figure_network(name)
    settings = PixelHDMSamplingSpec(**{"steps": 3, "height": 16, "width": 24, **sampling})
    sampler = FAMILY.build_sampler(settings, made.spec, PixelHDMObjectiveSpec())
    ((_, figure),) = made.objective.figures(made.network, made.batch, sampler, seeded(), [kind])
    return figure


def test_samples_are_of_held_out_captions_at_the_samplers_size():
    (grid,) = draw("samples", "pixelhdm").panels
    assert grid.images.shape == (4, 16, 24, 3)
    assert list(grid.captions) == [f"digit {number}" for number in range(4)]


def test_prompts_of_the_spec_need_no_encoder_here():
    """Without a frozen encoder, captions of the batch replace the prompts."""
    figure = draw("samples", prompts=("a cat",), negative_prompt="a dog")
    assert len(figure.panels[0].images) == 4


@pytest.mark.parametrize("projects", [True, False])
def test_a_trajectory_goes_from_noise_to_data(projects):
    figure = draw("trajectory", final_projection=projects)
    (grid,) = figure.panels
    assert isinstance(grid, ImageGrid) and len(figure.frames) == 4 + projects
    times = ["t=0.05", "t=0.35", "t=0.65", "t=0.95", *(["t=1.00"] if projects else [])]
    assert list(grid.captions) == times * 4
    assert figure.title.endswith(
        "noise at t=0.05 to data at t=1" if projects else "to data at t=0.95"
    )

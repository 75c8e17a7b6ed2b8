"""Figures and pictures of PixelHDM's samples."""

import numpy as np
import torch

from denoisers.contract import SampleRequest
from support.models.pixelhdm_samplers import Towards, draw, prompts, sampler_of


def test_several_prompts_get_a_row_each():
    sampler = sampler_of()
    drawn = draw(sampler, Towards(), 6, SampleRequest(prompts=prompts("red", "blue")))
    (grid,) = sampler.show(drawn).panels
    assert grid.columns == 3 and grid.captions == ["red"] * 3 + ["blue"] * 3
    assert grid.images.shape == (6, 16, 24, 3)
    one = draw(sampler, Towards(), 6, SampleRequest(prompts=prompts("red")))
    assert sampler.show(one).panels[0].columns == 8


def test_pictures_hold_all_settings_that_reproduce_them():
    start = torch.zeros(3, 16, 24)
    request = SampleRequest(prompts=prompts("12345"), negative_prompt="né", seed=9, start=start, strength=0.5)
    sampler = sampler_of(interval=(0.1, 0.9), rescale=0.25)
    pictures = sampler.pictures(draw(sampler, Towards(), 2, request))
    assert [picture.settings["seed"] for picture in pictures] == ["9", "10"]
    assert pictures[1].settings == {
        "prompt": "12345", "negative_prompt": "né", "seed": "10", "strength": "0.5", "size": "16x24", "solver": "heun",
        "steps": "4", "guidance": "3", "guidance_schedule": "constant", "min_scale": "1", "interval": "0.1 0.9",
        "rescale": "0.25", "eps": "0.05", "final_projection": "true",
    }  # fmt: skip
    assert pictures[0].pixels.dtype == np.uint8 and pictures[0].pixels.shape == (16, 24, 3)


def test_pixels_are_rounded_to_the_nearest_of_256_values():
    sampler = sampler_of(guidance=1.0)
    drawn = draw(sampler, Towards(), 1, SampleRequest(prompts=prompts("12345")))  # 0.05 in [-1, 1]
    assert (sampler.pictures(drawn)[0].pixels == round(255 * 1.05 / 2)).all()

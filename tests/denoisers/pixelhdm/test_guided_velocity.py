"""Guidance of PixelHDM's samples: directions, schedules, rescaling, batches of the network."""

import pytest
import torch

from denoisers.contract import SampleRequest
from support.models.pixelhdm_samplers import Towards, draw, prompts, sampler_of


def test_guidance_leads_from_the_null_condition_or_the_negative_prompt_through_the_text():
    """Towards 0.05 from 0 (null) or from 0.02 (negative), three times as far; the last evaluation is projected."""
    common = {"prompts": prompts("12345"), "seed": 0}
    plain = draw(sampler_of(), Towards(), 1, SampleRequest(**common)).values
    torch.testing.assert_close(plain, torch.full_like(plain, 0.15), rtol=0, atol=1e-5)
    away = draw(sampler_of(), Towards(), 1, SampleRequest(**common, negative_prompt="12")).values
    torch.testing.assert_close(away, torch.full_like(away, 0.02 + 3 * 0.03), rtol=0, atol=1e-5)
    of_spec = draw(sampler_of(negative_prompt="12"), Towards(), 1, SampleRequest(**common)).values
    assert torch.equal(of_spec, away)


def test_one_pass_of_both_inside_the_interval_and_of_one_outside():
    network = Towards()
    sampler = sampler_of(solver="euler", steps=8, interval=(0.3, 0.7), final_projection=False)
    draw(sampler, network, 3, SampleRequest(prompts=prompts("a")))
    assert network.sizes == [6 if 0.3 < t < 0.7 else 3 for t in network.times]
    assert {3, 6} == set(network.sizes)


def test_a_schedule_at_its_least_scale_is_the_conditional_model():
    network = Towards()
    draw(
        sampler_of(solver="euler", steps=10, guidance_schedule="quadratic"),
        network,
        1,
        SampleRequest(prompts=prompts("a")),
    )
    assert network.sizes[0] == 2 and network.sizes[-1] == 1


def test_phi_brings_the_contrast_back():
    """Rescaled fully, the guided velocity has the conditional one's standard deviation over an image."""

    class Loud(Towards):
        def forward(self, x, t, condition, keep=None):
            base = torch.linspace(-1, 1, x[0].numel()).view_as(x[0])
            return base * torch.where(keep, 2.0, 1.0).view(-1, 1, 1, 1)

    moved = {}
    for phi in (0.0, 1.0):
        sampler = sampler_of(solver="euler", steps=1, rescale=phi, final_projection=False)
        drawn = draw(sampler, Loud(), 1, SampleRequest(prompts=prompts("a"), seed=0), trajectory=True)
        moved[phi] = (drawn.trajectory[1] - drawn.trajectory[0]).std()
    assert moved[0.0] / moved[1.0] == pytest.approx((1 + 3 * 1) / 2, rel=1e-4)


def test_the_networks_batch_is_bounded_by_memory(monkeypatch):
    """10 guided images of 16x24: 20 rows, in parts of 8 with a limit of that size."""
    sampler, request = sampler_of(solver="euler", steps=1, final_projection=False), SampleRequest(prompts=prompts("a"))
    whole = draw(sampler, Towards(), 10, request).values
    monkeypatch.setattr("denoisers.pixelhdm.sampling.MAX_MODULATIONS", 8 * 6 * 4 * 16 * 24)
    network = Towards()
    assert torch.equal(draw(sampler, network, 10, request).values, whole)
    assert network.sizes == [8, 8, 4]

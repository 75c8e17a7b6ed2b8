"""PixelHDM's sampler: dependence of an image on its conditions, solvers, cost."""

import math
from dataclasses import replace

import pytest
import torch

from denoisers.contract import SampleRequest
from denoisers.pixelhdm.family import FAMILY
from denoisers.pixelhdm.sampling import SOLVERS
from denoisers.pixelhdm.spec import PixelHDMSpec
from denoisers.processes.draws import seeded_normal
from support.models.mixture_flow import carried, velocity_to_mixture
from support.models.pixelhdm_samplers import LEARNED, Towards, draw, prompts, sampler_of


@pytest.fixture
def network(perturb):
    made = FAMILY.build_network(PixelHDMSpec(**LEARNED))
    perturb(made)
    return made


def test_an_image_is_its_seeds_whatever_the_batch(network):
    sampler, network = sampler_of(), network.double()
    both = draw(sampler, network, 6, SampleRequest(prompts=prompts("a cat", "a longer dog"), seed=3)).values
    alone = draw(sampler, network, 1, SampleRequest(prompts=prompts("a longer dog"), seed=5)).values
    torch.testing.assert_close(both[5:], alone)
    other = draw(sampler, network, 1, SampleRequest(prompts=prompts("a longer dog"), seed=6)).values
    assert (other - alone).abs().max() > 0.1


def test_seeds_from_the_generator_are_returned_and_reproduce_the_images(network):
    sampler = sampler_of()
    drawn = draw(sampler, network, 2, SampleRequest(prompts=prompts("a cat")))
    again = draw(sampler, network, 1, SampleRequest(prompts=prompts("a cat"), seed=int(drawn.conditions["seed"][1])))
    torch.testing.assert_close(again.values, drawn.values[1:], rtol=1e-4, atol=1e-5)


def test_the_first_samples_do_not_depend_on_their_number(network):
    sampler, request = sampler_of(), SampleRequest(prompts=prompts("a cat"))
    few, many = (draw(sampler, network, num, request).values for num in (2, 5))
    torch.testing.assert_close(many[:2], few, rtol=1e-4, atol=1e-5)


def test_prompts_negative_prompts_and_guidance_all_count(network):
    common = {"prompts": prompts("a cat"), "seed": 0}
    drawn = [
        draw(sampler_of(guidance=guidance), network, 1, SampleRequest(**{**common, **more})).values
        for guidance, more in [
            (3.0, {}), (1.0, {}), (3.0, {"negative_prompt": "a dog"}), (3.0, {"prompts": prompts("a dog")})
        ]
    ]  # fmt: skip
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert not torch.allclose(one, other, atol=1e-5)


def test_text_that_is_padded_for_a_longer_one_draws_the_same(network):
    sampler = sampler_of()
    alone = draw(sampler, network, 1, SampleRequest(prompts=prompts("cat"), seed=0)).values
    beside = draw(sampler, network, 2, SampleRequest(prompts=prompts("cat", "a very long caption"), seed=0)).values
    torch.testing.assert_close(beside[:1], alone, rtol=0, atol=2e-3)


@pytest.mark.parametrize(("dtype", "expected"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_samples_are_float32_or_better_whatever_the_weights(network, dtype, expected):
    drawn = draw(sampler_of(), network.to(dtype), 1, SampleRequest(prompts=prompts("a cat"), seed=0))
    assert drawn.values.dtype == expected and drawn.values.isfinite().all()


@pytest.mark.parametrize("start", [None, torch.full((3, 16, 24), 0.5)])
def test_given_noise_is_where_images_begin(network, start):
    """The noise of the seeds gives their images, without a seed; noise beside seeds is refused."""
    sampler, strength = sampler_of(), 1.0 if start is None else 0.5
    request = SampleRequest(prompts=prompts("a cat"), start=start, strength=strength)
    seeded_request = replace(request, seed=3)
    noise = seeded_normal([3, 4], (3, 16, 24))
    drawn = draw(sampler, network, 2, seeded_request)
    again = draw(sampler, network, 2, request, noise=noise)
    assert torch.equal(again.values, drawn.values)
    assert "seed" not in again.conditions and "seed" not in sampler.pictures(again)[0].settings
    assert draw(sampler, network, 2, request, noise=noise.double()).values.dtype == torch.float64
    with pytest.raises(ValueError, match="noise was given beside seed=3"):
        draw(sampler, network, 2, seeded_request, noise=noise)
    with pytest.raises(ValueError, match=r"samples begin with \(2, 3, 16, 24\)"):
        draw(sampler, network, 2, request, noise=noise[:, :, :8])


def test_any_size_that_patches_divide(network):
    drawn = draw(sampler_of(), network, 1, SampleRequest(prompts=prompts("a"), size=(64, 8)))
    assert drawn.values.shape == (1, 3, 64, 8)


@pytest.mark.parametrize(
    ("solver", "evaluations"), [("euler", 50), ("heun", 99), ("dpmpp_2m", 50), ("midpoint", 100), ("dpmpp_2s", 100)]
)
def test_evaluations_of_fifty_steps(solver, evaluations):
    for projected in (False, True):
        network = Towards()
        sampler = sampler_of(solver=solver, steps=50, final_projection=projected)
        draw(sampler, network, 1, SampleRequest(prompts=prompts("a")))
        assert len(network.times) == evaluations + projected
    assert network.times[0] == pytest.approx(0.05) and network.times[-1] == pytest.approx(0.95)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_lands_on_data_at_one_point(solver):
    network = Towards()
    drawn = draw(sampler_of(solver=solver, guidance=1.0), network, 2, SampleRequest(prompts=prompts("12345")))
    torch.testing.assert_close(drawn.values, torch.full_like(drawn.values, 0.05), rtol=0, atol=2e-6)


@pytest.mark.parametrize("solver", SOLVERS)
def test_measured_order_is_the_documented_one(solver):
    noise = torch.linspace(-2, 2, 40, dtype=torch.float64)

    def end(steps):
        times = torch.linspace(0.05, 0.95, steps + 1, dtype=torch.float64)
        return SOLVERS[solver].integrate(velocity_to_mixture, noise, times)

    exact = carried(noise, start=0.95, end=0.05)
    errors = [(end(steps) - exact).abs().max().item() for steps in (80, 160)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(SOLVERS[solver].order, abs=0.15)


def test_frames_are_noise_the_steps_and_the_projection():
    sampler = sampler_of(guidance=1.0)
    drawn = draw(sampler, Towards(), 2, SampleRequest(prompts=prompts("a"), seed=4), trajectory=True)
    assert drawn.trajectory.shape == (6, 2, 3, 16, 24)
    assert torch.equal(drawn.trajectory[0], seeded_normal([4, 5], (3, 16, 24)))
    assert torch.equal(drawn.trajectory[-1], drawn.values)


def test_networks_that_predict_the_image_draw_the_same():
    request = SampleRequest(prompts=prompts("12345"), seed=0)
    one = draw(sampler_of(), Towards(), 1, request).values
    other = draw(sampler_of(prediction="image"), Towards("image"), 1, request).values
    torch.testing.assert_close(other, one, rtol=0, atol=1e-5)


def test_an_image_to_start_from_is_kept_the_better_the_less_strength():
    class Still(Towards):
        def forward(self, x, t, condition, keep=None):
            self.times.append(float(t[0]))
            return torch.zeros_like(x)

    start = torch.linspace(-1, 1, 16 * 24).view(16, 24).expand(3, -1, -1)
    errors = []
    for strength, steps in ((0.01, 1), (0.25, 5), (0.6, 12), (1.0, 20)):
        network = Still()
        request = SampleRequest(prompts=prompts("a"), seed=0, start=start, strength=strength)
        sampler = sampler_of(solver="euler", steps=20, guidance=1.0, final_projection=False)
        drawn = draw(sampler, network, 2, request)
        t0 = 0.05 + (1 - strength) * 0.9
        assert len(network.times) == steps and network.times[0] == pytest.approx(t0)
        noise = seeded_normal([0, 1], (3, 16, 24))
        torch.testing.assert_close(drawn.values, t0 * start + (1 - t0) * noise, rtol=0, atol=1e-5)
        errors.append((drawn.values - start).abs().mean())
    assert errors == sorted(errors)


@pytest.mark.slow
def test_compiled_networks_draw_the_same(network):
    request = SampleRequest(prompts=prompts("a cat"), seed=0)
    plain, compiled = (draw(sampler_of(compile=value), network, 2, request).values for value in (False, True))
    torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-4)

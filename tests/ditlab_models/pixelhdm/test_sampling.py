"""Sampling: grids of time, solvers, guidance, seeds, starts from an image; conditions and pictures
of samples.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from ditlab_models.contract import Prompt, RealRows, SampleRequest
from ditlab_models.pixelhdm.family import FAMILY
from ditlab_models.pixelhdm.sampling import SOLVERS, prompt_bytes, to_texts
from ditlab_models.pixelhdm.spec import PixelHDMSpec
from ditlab_models.processes.draws import seeded_normal
from support.damage import refused
from support.models.draws import perturb, seeded
from support.models.pixelhdm_samplers import (
    FROZEN,
    LEARNED,
    Towards,
    ask,
    draw,
    encode,
    sampler_of,
)


@pytest.fixture
def network():
    return perturb(FAMILY.build_network(PixelHDMSpec(**LEARNED)))


def test_an_image_is_its_seeds_whatever_the_batch(network):
    sampler, network = sampler_of(), network.double()
    both = draw(sampler, network, 6, ask("a cat", "a longer dog", seed=3)).values
    alone = draw(sampler, network, 1, ask("a longer dog", seed=5)).values
    assert_close(both[5:], alone)
    other = draw(sampler, network, 1, ask("a longer dog", seed=6)).values
    assert (other - alone).abs().max() > 0.1


def test_seeds_from_the_generator_are_returned_and_reproduce_the_images(network):
    sampler = sampler_of()
    drawn = draw(sampler, network, 2, ask("a cat"))
    again = draw(sampler, network, 1, ask("a cat", seed=int(drawn.conditions["seed"][1])))
    assert_close(again.values, drawn.values[1:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("start", [None, torch.full((3, 16, 24), 0.5)])
def test_the_noise_of_seeds_gives_their_images_without_a_seed(network, start):
    sampler = sampler_of()
    request = ask("a cat", start=start, strength=1.0 if start is None else 0.5)
    noise = seeded_normal([3, 4], (3, 16, 24))
    drawn = draw(sampler, network, 2, replace(request, seed=3))
    again = draw(sampler, network, 2, request, noise=noise)
    assert torch.equal(again.values, drawn.values)
    assert "seed" not in again.conditions and "seed" not in sampler.pictures(again)[0].settings
    assert draw(sampler, network, 2, request, noise=noise.double()).values.dtype == torch.float64
    with refused("noise was given beside seed=3", ValueError):
        draw(sampler, network, 2, replace(request, seed=3), noise=noise)


def test_any_size_that_patches_divide(network):
    drawn = draw(sampler_of(), network, 1, ask("a", size=(64, 8)))
    assert drawn.values.shape == (1, 3, 64, 8)


def test_evaluations_of_fifty_steps():
    """Two a step but one in the last, and one of the final projection."""
    for projected in (False, True):
        network = Towards()
        draw(sampler_of(steps=50, final_projection=projected), network, 1, ask("a"))
        assert len(network.times) == 99 + projected
    assert network.times[0] == pytest.approx(0.05) and network.times[-1] == pytest.approx(0.95)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_lands_on_data_at_one_point(solver):
    network = Towards()
    drawn = draw(sampler_of(solver=solver, guidance=1.0), network, 2, ask("12345"))
    assert_close(drawn.values, torch.full_like(drawn.values, 0.05), rtol=0, atol=2e-6)


def test_networks_that_predict_the_image_draw_the_same():
    request = ask("12345", seed=0)
    one = draw(sampler_of(), Towards(), 1, request).values
    other = draw(sampler_of(prediction="image"), Towards("image"), 1, request).values
    assert_close(other, one, rtol=0, atol=1e-5)


def test_an_image_to_start_from_is_kept_the_better_the_less_strength():
    class Still(Towards):
        def forward(self, x, t, condition, keep=None):
            self.times.append(float(t[0]))
            return torch.zeros_like(x)

    start = torch.linspace(-1, 1, 16 * 24).view(16, 24).expand(3, -1, -1)
    errors = []
    for strength, steps in ((0.01, 1), (0.25, 5), (0.6, 12), (1.0, 20)):
        network = Still()
        request = ask("a", seed=0, start=start, strength=strength)
        sampler = sampler_of(solver="euler", steps=20, guidance=1.0, final_projection=False)
        drawn = draw(sampler, network, 2, request)
        t0 = 0.05 + (1 - strength) * 0.9
        assert len(network.times) == steps and network.times[0] == pytest.approx(t0)
        noise = seeded_normal([0, 1], (3, 16, 24))
        assert_close(drawn.values, t0 * start + (1 - t0) * noise, rtol=0, atol=1e-5)
        errors.append((drawn.values - start).abs().mean())
    assert errors == sorted(errors)


@pytest.mark.slow
def test_compiled_networks_draw_the_same(network):
    request = ask("a cat", seed=0)
    plain, compiled = (
        draw(sampler_of(compile=value), network, 2, request).values for value in (False, True)
    )
    assert_close(compiled, plain, rtol=1e-3, atol=1e-4)


def test_guidance_leads_from_the_null_condition_or_the_negative_prompt_through_the_text():
    """Towards 0.05 from 0 (null) or from 0.02 (negative), three times as far; the last evaluation
    is projected.
    """
    request = ask("12345", seed=0)
    plain = draw(sampler_of(), Towards(), 1, request).values
    assert_close(plain, torch.full_like(plain, 0.15), rtol=0, atol=1e-5)
    negative = replace(request, negative_prompt="12")
    away = draw(sampler_of(), Towards(), 1, negative).values
    assert_close(away, torch.full_like(away, 0.02 + 3 * 0.03), rtol=0, atol=1e-5)
    of_spec = draw(sampler_of(negative_prompt="12"), Towards(), 1, request).values
    assert torch.equal(of_spec, away)


def test_one_pass_of_both_inside_the_interval_and_of_one_outside():
    network = Towards()
    sampler = sampler_of(solver="euler", steps=8, interval=(0.3, 0.7), final_projection=False)
    draw(sampler, network, 3, ask("a"))
    assert network.sizes == [6 if 0.3 < t < 0.7 else 3 for t in network.times]
    assert {3, 6} == set(network.sizes)


def test_phi_brings_the_contrast_back(network):
    """Rescaled fully, the guided velocity has the conditional one's standard deviation over an
    image.
    """
    conditions = sampler_of().conditions(1, ask("a"))
    x = torch.randn(1, 3, 16, 24)
    t = torch.tensor(0.5)
    plain, guided, rescaled = (
        sampler_of(**changes).velocity(network, conditions)(x, t).std()
        for changes in ({"guidance": 1.0}, {}, {"rescale": 1.0})
    )
    assert_close(rescaled, plain)
    assert (guided / plain - 1).abs() > 1e-3


def test_the_networks_batch_is_bounded_by_memory(monkeypatch):
    """10 guided images of 16x24: 20 rows, in parts of 8 with a limit of that size."""
    sampler, request = (
        sampler_of(solver="euler", steps=1, final_projection=False),
        ask("a"),
    )
    whole = draw(sampler, Towards(), 10, request).values
    monkeypatch.setattr("ditlab_models.pixelhdm.sampling.MAX_MODULATIONS", 8 * 6 * 4 * 16 * 24)
    network = Towards()
    assert torch.equal(draw(sampler, network, 10, request).values, whole)
    assert network.sizes == [8, 8, 4]


def test_each_prompt_gets_equally_many_samples_in_order():
    conditions = sampler_of().conditions(4, ask("a", "été", seed=7))
    assert to_texts(conditions["prompt"]) == ["a", "a", "été", "été"]
    assert torch.equal(conditions["caption"], conditions["prompt"])
    assert conditions["seed"].tolist() == [7, 8, 7, 8]
    assert conditions["size"].tolist() == [[16, 24]] * 4
    uneven = sampler_of(prompts=("a", "b", "c")).conditions(5)
    assert to_texts(uneven["prompt"]) == ["a", "a", "b", "b", "c"]


def test_prompts_of_a_request_go_before_the_specs_and_these_before_captions():
    rows = RealRows({"caption": prompt_bytes(["from a row", "another"])}, {}, {}, None)
    sampler = sampler_of(prompts=("of the spec",))
    assert sampler.takes_rows == "none"
    assert to_texts(sampler.conditions(1, ask("asked", rows=rows))["prompt"]) == ["asked"]
    assert to_texts(sampler.conditions(1, SampleRequest(rows=rows))["prompt"]) == ["of the spec"]
    without = sampler_of()
    assert without.takes_rows == "conditions" and tuple(without.row_fields) == ("caption",)
    assert to_texts(without.conditions(2, SampleRequest(rows=rows))["prompt"]) == [
        "from a row",
        "another",
    ]


def test_frozen_encoders_read_prompts_and_negative_prompts():
    request = ask("ab", "c", negative_prompt="long one", encode=encode)
    conditions = sampler_of(FROZEN).conditions(2, request)
    for name, values in encode(["ab", "c"]).items():
        assert_close(conditions[name][:, : values.shape[1]] if values.ndim > 1 else values, values)
    assert conditions["text_mask"].sum(1).tolist() == [2, 1]
    assert conditions["text"].shape == conditions["negative_text"].shape == (2, 8, 32)
    assert conditions["negative_text_mask"].all() and conditions["negative_text_pooled"].shape == (
        2,
        32,
    )
    assert to_texts(conditions["negative_prompt"]) == ["long one"] * 2


def test_rows_of_cached_features_are_conditions_with_their_captions():
    rows = RealRows(
        encode(["four", "no"]),
        {"caption": prompt_bytes(["four", "no"]).numpy().astype(np.uint8)},
        {},
        None,
    )
    sampler = sampler_of(FROZEN)
    conditions = sampler.conditions(2, SampleRequest(rows=rows))
    assert torch.equal(conditions["text_mask"], rows.batch["text_mask"])
    assert to_texts(conditions["prompt"]) == ["four", "no"]
    unnamed = sampler.conditions(2, SampleRequest(rows=RealRows(rows.batch, {}, {}, None)))
    assert "prompt" not in unnamed
    drawn = sampler.sample(Towards(), unnamed, 2, seeded())
    assert (
        sampler.show(drawn).panels[0].captions == []
        and "prompt" not in sampler.pictures(drawn)[0].settings
    )


@pytest.mark.parametrize(
    ("texts", "conditions", "message"),
    [
        ([" "], {}, r"prompt=' ' holds no text"),
        (["x" * 25], {}, r"is 25 bytes long.*model\.text_length=24\); shorten it\."),
        (["\udcff"], {}, r"is no text in UTF-8"),
        (
            ["a"],
            {"size": (20, 16)},
            r"height=20 is no multiple of model\.patch_size=8; set height to 16 or 24\.",
        ),
        (
            ["a"],
            {"size": (16, 128)},
            r"width=128 is not between 1 and model\.max_resolution=64; set width to 64 or less",
        ),
        (["a"], {"seed": -1}, r"seed=-1 must lie between 0"),
        (["a"], {"strength": 0.0}, r"strength=0 must lie above 0 and be at most 1"),
        (["a"], {"strength": 0.5}, r"strength=0\.5 needs an image to start from"),
        (
            ["a"],
            {"start": torch.zeros(3, 8, 8)},
            r"start has the shape \(3, 8, 8\), and samples of size 16x24.*resize",
        ),
        (["a"], {"negative_prompt": ""}, r"negative_prompt='' holds no text"),
        ([], {}, "name a prompt"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(texts, conditions, message):
    with pytest.raises(ValueError, match=message) as caught:
        sampler_of().conditions(2, ask(*texts, **conditions))
    assert str(caught.value).endswith(".")


def test_requests_that_need_an_encoder_guidance_or_no_place_are_refused():
    with refused(r"needs the frozen text encoder .* set encoders\.text", ValueError):
        sampler_of(FROZEN).conditions(1, ask("a"))
    message = r"changes nothing without guidance .*set sampling\.guidance above 1"
    with refused(message, ValueError):
        sampler_of(guidance=1.0).conditions(1, ask("a", negative_prompt="b"))
    with refused(r"sampling\.prompts='x+\.\.\.' is 60 bytes long", ValueError):
        sampler_of(prompts=("x" * 60,))
    placed = SampleRequest(prompts=[Prompt("a", 5)])
    with refused(r"prompt='a' was placed at token 5.*leave the place out\.", ValueError):
        sampler_of().conditions(2, placed)


def test_several_prompts_get_a_row_each():
    sampler = sampler_of()
    drawn = draw(sampler, Towards(), 6, ask("red", "blue"))
    (grid,) = sampler.show(drawn).panels
    assert grid.columns == 3 and grid.captions == ["red"] * 3 + ["blue"] * 3
    assert grid.images.shape == (6, 16, 24, 3)
    one = draw(sampler, Towards(), 6, ask("red"))
    assert sampler.show(one).panels[0].columns is None  # as many as their number asks for


def test_pictures_hold_all_settings_that_reproduce_them():
    start = torch.zeros(3, 16, 24)
    request = ask("12345", negative_prompt="né", seed=9, start=start, strength=0.5)
    sampler = sampler_of(interval=(0.1, 0.9), rescale=0.25)
    pictures = sampler.pictures(draw(sampler, Towards(), 2, request))
    assert [picture.settings["seed"] for picture in pictures] == ["9", "10"]
    assert pictures[1].settings == {
        "prompt": "12345",
        "negative_prompt": "né",
        "seed": "10",
        "strength": "0.5",
        "size": "16x24",
        "solver": "heun",
        "steps": "4",
        "guidance": "3",
        "guidance_schedule": "constant",
        "min_scale": "1",
        "interval": "0.1 0.9",
        "rescale": "0.25",
        "eps": "0.05",
        "final_projection": "true",
    }
    assert pictures[0].pixels.dtype == np.uint8 and pictures[0].pixels.shape == (16, 24, 3)


def test_pixels_are_rounded_to_the_nearest_of_256_values():
    sampler = sampler_of(guidance=1.0)
    drawn = draw(sampler, Towards(), 1, ask("12345"))  # 0.05 in [-1, 1]
    assert (sampler.pictures(drawn)[0].pixels == round(255 * 1.05 / 2)).all()

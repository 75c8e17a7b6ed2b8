"""Conditions of PixelHDM's samples: prompts, seeds and sizes of a request, the spec or rows."""

import numpy as np
import pytest
import torch

from denoisers.contract import Prompt, RealRows, SampleRequest
from denoisers.pixelhdm.sampling import to_bytes, to_texts
from support.models.pixelhdm_samplers import FROZEN, Towards, encode, prompts, sampler_of, seeded


def test_each_prompt_gets_equally_many_samples_in_order():
    conditions = sampler_of().conditions(4, SampleRequest(prompts=prompts("a", "été"), seed=7))
    assert to_texts(conditions["prompt"]) == ["a", "a", "été", "été"]
    assert torch.equal(conditions["caption"], conditions["prompt"])
    assert conditions["seed"].tolist() == [7, 8, 7, 8]
    assert conditions["size"].tolist() == [[16, 24]] * 4
    uneven = sampler_of(prompts=("a", "b", "c")).conditions(5)
    assert to_texts(uneven["prompt"]) == ["a", "a", "b", "b", "c"]


def test_prompts_of_a_request_go_before_the_specs_and_these_before_captions():
    rows = RealRows({"caption": to_bytes(["from a row", "another"])}, {}, {}, None)
    sampler = sampler_of(prompts=("of the spec",))
    assert sampler.takes_rows == "none"
    assert to_texts(sampler.conditions(1, SampleRequest(prompts=prompts("asked"), rows=rows))["prompt"]) == ["asked"]
    assert to_texts(sampler.conditions(1, SampleRequest(rows=rows))["prompt"]) == ["of the spec"]
    without = sampler_of()
    assert without.takes_rows == "conditions" and tuple(without.row_fields) == ("caption",)
    assert to_texts(without.conditions(2, SampleRequest(rows=rows))["prompt"]) == ["from a row", "another"]
    with pytest.raises(ValueError, match="name a prompt"):
        without.conditions(2)


def test_frozen_encoders_read_prompts_and_negative_prompts():
    request = SampleRequest(prompts=prompts("ab", "c"), negative_prompt="long one", encode=encode)
    conditions = sampler_of(FROZEN).conditions(2, request)
    for name, values in encode(["ab", "c"]).items():
        torch.testing.assert_close(conditions[name][:, : values.shape[1]] if values.ndim > 1 else values, values)
    assert conditions["text_mask"].sum(1).tolist() == [2, 1]
    assert conditions["text"].shape == conditions["negative_text"].shape == (2, 8, 32)
    assert conditions["negative_text_mask"].all() and conditions["negative_text_pooled"].shape == (2, 32)
    assert to_texts(conditions["negative_prompt"]) == ["long one"] * 2


def test_rows_of_cached_features_are_conditions_with_their_captions():
    rows = RealRows(encode(["four", "no"]), {"caption": to_bytes(["four", "no"]).numpy().astype(np.uint8)}, {}, None)
    sampler = sampler_of(FROZEN)
    conditions = sampler.conditions(2, SampleRequest(rows=rows))
    assert torch.equal(conditions["text_mask"], rows.batch["text_mask"])
    assert to_texts(conditions["prompt"]) == ["four", "no"]
    unnamed = sampler.conditions(2, SampleRequest(rows=RealRows(rows.batch, {}, {}, None)))
    assert "prompt" not in unnamed
    drawn = sampler.sample(Towards(), unnamed, 2, seeded())
    assert sampler.show(drawn).panels[0].captions == [] and "prompt" not in sampler.pictures(drawn)[0].settings


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"label": 3}, r"label=3 was given to a model without classes"),
        ({"prompts": [Prompt("a", 5)]}, r"prompt='a' was placed at token 5.*leave the place out\."),
        ({"prompts": prompts(" ")}, r"prompt=' ' holds no text"),
        ({"prompts": prompts("x" * 25)}, r"is 25 bytes long.*model\.text_length=24\); shorten it\."),
        ({"prompts": prompts("\udcff")}, r"is no text in UTF-8"),
        ({"size": (20, 16)}, r"height=20 is no multiple of model\.patch_size=8; set height to 16 or 24\."),
        ({"size": (16, 128)}, r"width=128 is not between 1 and model\.max_resolution=64; set width to 64 or less"),
        ({"seed": -1}, r"seed=-1 must lie between 0"),
        ({"strength": 0.0}, r"strength=0 must lie above 0 and be at most 1"),
        ({"strength": 0.5}, r"strength=0\.5 needs an image to start from"),
        ({"start": torch.zeros(3, 8, 8)}, r"start has the shape \(3, 8, 8\), and samples of size 16x24.*resize"),
        ({"negative_prompt": ""}, r"negative_prompt='' holds no text"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(request_, message):
    with pytest.raises(ValueError, match=message) as caught:
        sampler_of().conditions(2, SampleRequest(**{"prompts": prompts("a"), **request_}))
    assert str(caught.value).endswith(".")


def test_requests_that_need_an_encoder_or_guidance_are_refused():
    with pytest.raises(ValueError, match=r"needs the frozen text encoder .* set encoders\.text"):
        sampler_of(FROZEN).conditions(1, SampleRequest(prompts=prompts("a")))
    with pytest.raises(ValueError, match=r"changes nothing without guidance .*set sampling\.guidance above 1"):
        sampler_of(guidance=1.0).conditions(1, SampleRequest(prompts=prompts("a"), negative_prompt="b"))
    with pytest.raises(ValueError, match=r"sampling\.prompts='x+\.\.\.' is 60 bytes long"):
        sampler_of(prompts=("x" * 60,))

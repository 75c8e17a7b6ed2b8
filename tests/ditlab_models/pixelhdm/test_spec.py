"""PixelHDM's specs: times, batch fields, and what guidance needs."""

import pytest
from pydantic import ValidationError

from ditlab_models.pixelhdm.family import FAMILY
from ditlab_models.pixelhdm.spec import PixelHDMObjectiveSpec, PixelHDMSamplingSpec, PixelHDMSpec


@pytest.mark.parametrize("head_width", range(6, 66, 2))
def test_the_remedy_for_widths_of_axes_is_one(head_width):
    with pytest.raises(ValidationError) as caught:
        PixelHDMSpec(width=16 * head_width, mrope_widths=(2, 2, 62))
    remedy = str(caught.value).split("set model.mrope_widths to [")[1].split("]")[0]
    PixelHDMSpec(width=16 * head_width, mrope_widths=tuple(map(int, remedy.split(", "))))


def test_times_keep_from_both_ends_where_only_their_middle_is_set():
    """A spec such as a sweep over `objective.time.mean` makes."""
    objective = PixelHDMObjectiveSpec.model_validate(
        {"time": {"kind": "logit_normal", "mean": 0.4}}
    )
    assert objective.time.model_dump() == {
        "kind": "logit_normal",
        "mean": 0.4,
        "std": 1.0,
        "eps": 0.05,
    }


def test_batch_fields_of_a_frozen_and_of_a_learned_encoder():
    image, text, mask, pooled = PixelHDMSpec().batch_fields()
    assert (image.shape, image.value_range, image.multiple_of, image.at_most) == (
        (3, -1, -1),
        (-1.0, 1.0),
        16,
        1024,
    )
    assert (text.shape, text.dtype, text.at_most) == ((-1, 1024), "float32", 512)
    assert (mask.shape, mask.dtype, pooled.shape) == ((-1,), "bool", (1024,))
    _, caption = PixelHDMSpec(text_encoder="learned", text_length=64).batch_fields()
    assert (caption.name, caption.dtype, caption.num_classes, caption.at_most) == (
        "caption",
        "int64",
        256,
        64,
    )


def test_image_features_are_needed_where_they_are_aligned_with():
    (features,) = PixelHDMObjectiveSpec().batch_fields(PixelHDMSpec())
    assert (features.name, features.shape) == ("image_features", (-1, 768))
    without = PixelHDMObjectiveSpec.model_validate({"weights": {"alignment": 0.0}})
    assert without.batch_fields(PixelHDMSpec()) == ()


def test_guidance_away_from_a_negative_prompt_needs_no_null_condition():
    model = PixelHDMSpec(condition_dropout=0.0)
    FAMILY.build_sampler(
        PixelHDMSamplingSpec(negative_prompt="blurry"), model, PixelHDMObjectiveSpec()
    )
    FAMILY.build_sampler(PixelHDMSamplingSpec(guidance=1.0), model, PixelHDMObjectiveSpec())

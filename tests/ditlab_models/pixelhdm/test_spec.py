"""PixelHDM's specs: the base setting, and what is refused with the option, its value and the
remedy.
"""

import pytest
from pydantic import ValidationError

from ditlab_models.pixelhdm.family import FAMILY
from ditlab_models.pixelhdm.spec import PixelHDMObjectiveSpec, PixelHDMSamplingSpec, PixelHDMSpec


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        (
            PixelHDMSpec,
            {"width": 1000},
            "model.width=1000 is no multiple of model.num_heads=16; set model.width to "
            "992 or 1008.",
        ),
        (
            PixelHDMSpec,
            {"num_kv_heads": 5},
            "model.num_heads=16 is no multiple of model.num_kv_heads=5; set "
            "model.num_heads to 15 or 20.",
        ),
        (
            PixelHDMSpec,
            {"width": 512},
            (
                "model.mrope_widths=[16, 24, 24] are not three positive even numbers that add "
                "up to a head's width (model.width / model.num_heads = 32); set "
                "model.mrope_widths to [8, 12, 12]."
            ),
        ),
        (PixelHDMSpec, {"mrope_widths": [15, 25, 24]}, "set model.mrope_widths to [16, 24, 24]."),
        (PixelHDMSpec, {"mrope_widths": [0, 32, 32]}, "set model.mrope_widths to [16, 24, 24]."),
        (
            PixelHDMSpec,
            {"width": 64},
            "(model.width / model.num_heads = 4); make model.width / model.num_heads an even "
            "number of at least 6.",
        ),
        (
            PixelHDMSpec,
            {"mlp_ratio": 1.3331},
            "set model.mlp_ratio to 1.3330078 for a width of 1365.",
        ),
        (
            PixelHDMSpec,
            {"pixel_width": 15, "mlp_ratio": 2.5},
            "model.mlp_ratio=2.5 makes an MLP 37.5 wide (model.pixel_width=15)",
        ),
        (
            PixelHDMSpec,
            {"max_resolution": 1000},
            "model.max_resolution=1000 is no multiple of model.patch_size=16; "
            "set model.max_resolution to 992 or 1008.",
        ),
        (PixelHDMSpec, {"time_width": 9}, "set model.time_width to 8 or 10."),
        (
            PixelHDMObjectiveSpec,
            {"weights": {"velocity": 0.0, "frequency": 0.0}},
            (
                "objective.weights.velocity and objective.weights.frequency are both 0, so "
                "nothing trains the output; set objective.weights.velocity to 1."
            ),
        ),
        (
            PixelHDMObjectiveSpec,
            {"prediction": "image", "time": {"kind": "uniform"}},
            (
                "objective.prediction=image divides by 1 - t, which these objective.time let "
                "come near 0; set objective.time to {kind: logit_normal, eps: 0.05}, or "
                "objective.prediction to velocity."
            ),
        ),
        (
            PixelHDMSamplingSpec,
            {"interval": [0.8, 0.2]},
            "sampling.interval=[0.8, 0.2] is no interval of time (0 <= "
            "t_start < t_end <= 1); set sampling.interval to [0.0, 1.0].",
        ),
        (
            PixelHDMSamplingSpec,
            {"interval": [-0.1, 0.2]},
            "sampling.interval=[-0.1, 0.2] is no interval of time",
        ),
        (
            PixelHDMSamplingSpec,
            {"interval": [0.5, 0.5]},
            "sampling.interval=[0.5, 0.5] is no interval of time",
        ),
        (
            PixelHDMSamplingSpec,
            {"guidance": 0.5},
            "sampling.guidance=0.5 is below sampling.min_scale=1, which would "
            "take its place; set sampling.min_scale to 0.5 or less.",
        ),
    ],
)
def test_messages_name_the_option_its_value_and_the_remedy(spec, changes, message):
    with pytest.raises(ValidationError) as caught:
        spec.model_validate(changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "changes", "option"),
    [
        (PixelHDMSpec, {"gate": "none"}, "gate"),
        (PixelHDMSpec, {"condition_dropout": 1.0}, "condition_dropout"),
        (PixelHDMSpec, {"rope_base": 1.0}, "rope_base"),
        (PixelHDMObjectiveSpec, {"weights": {"alignment": -0.5}}, "weights.alignment"),
        (PixelHDMObjectiveSpec, {"weights": {"repa": 0.5}}, "weights.repa"),
        (PixelHDMObjectiveSpec, {"frequency": {"quality": 101}}, "frequency.quality"),
        (PixelHDMObjectiveSpec, {"alignment_block": 0}, "alignment_block"),
        (PixelHDMSamplingSpec, {"solver": "rk4"}, "solver"),
        (PixelHDMSamplingSpec, {"guidance": -1.0}, "guidance"),
        (PixelHDMSamplingSpec, {"rescale": 1.5}, "rescale"),
        (PixelHDMSamplingSpec, {"eps": 0.5}, "eps"),
        (PixelHDMSamplingSpec, {"guidance_schedule": "cubic"}, "guidance_schedule"),
    ],
)
def test_values_out_of_range_are_refused_by_name(spec, changes, option):
    with pytest.raises(ValidationError) as caught:
        spec.model_validate(changes)
    assert ".".join(str(part) for part in caught.value.errors()[0]["loc"]) == option


@pytest.mark.parametrize("spec", [FAMILY.model, FAMILY.objective, FAMILY.sampling])
def test_specs_survive_the_way_through_json(spec):
    assert spec.model_validate_json(spec().model_dump_json()) == spec()


@pytest.mark.parametrize("head_width", range(6, 66, 2))
def test_the_remedy_for_widths_of_axes_is_one(head_width):
    with pytest.raises(ValidationError) as caught:
        PixelHDMSpec(width=16 * head_width, mrope_widths=(2, 2, 62))
    remedy = str(caught.value).split("set model.mrope_widths to [")[1].split("]")[0]
    PixelHDMSpec(width=16 * head_width, mrope_widths=tuple(map(int, remedy.split(", "))))


def test_base_setting_of_objective_and_sampling():
    objective = PixelHDMObjectiveSpec()
    assert objective.weights.model_dump() == {"velocity": 1.0, "frequency": 1.0, "alignment": 0.5}
    assert objective.time.model_dump() == {
        "kind": "logit_normal",
        "mean": 0.0,
        "std": 1.0,
        "eps": 0.05,
    }
    assert (objective.alignment_block, objective.alignment_until) == (8, 250_000)
    sampling = PixelHDMSamplingSpec()
    assert (sampling.solver, sampling.steps, sampling.guidance) == ("heun", 50, 7.5)


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


def test_the_aligned_block_must_be_one_of_the_models():
    objective, model = PixelHDMObjectiveSpec(alignment_block=17), PixelHDMSpec()
    message = r"objective\.alignment_block=17 is none of the model\.patch_depth=16 patch blocks; set .* to 1 to 16, or"
    with pytest.raises(ValueError, match=message):
        FAMILY.build_objective(objective, model)
    FAMILY.build_objective(
        PixelHDMObjectiveSpec(weights={"velocity": 1.0, "alignment": 0.0}, alignment_block=17),
        model,
    )


@pytest.mark.parametrize(
    ("model", "sampling", "message"),
    [
        (
            {},
            {"height": 250},
            r"sampling\.height=250 is no multiple of model\.patch_size=16; set sampling\.height to 240",
        ),
        (
            {},
            {"width": 2048},
            r"sampling\.width=2048 is not between 1 and model\.max_resolution=1024; set sampling\.width",
        ),
        (
            {"condition_dropout": 0.0},
            {},
            r"sampling\.guidance=7\.5 needs a null condition seen in training",
        ),
    ],
)
def test_samplers_that_the_model_cannot_serve_are_refused(model, sampling, message):
    with pytest.raises(ValueError, match=message):
        FAMILY.build_sampler(
            PixelHDMSamplingSpec(**sampling), PixelHDMSpec(**model), PixelHDMObjectiveSpec()
        )


def test_guidance_away_from_a_negative_prompt_needs_no_null_condition():
    model = PixelHDMSpec(condition_dropout=0.0)
    FAMILY.build_sampler(
        PixelHDMSamplingSpec(negative_prompt="blurry"), model, PixelHDMObjectiveSpec()
    )
    FAMILY.build_sampler(PixelHDMSamplingSpec(guidance=1.0), model, PixelHDMObjectiveSpec())

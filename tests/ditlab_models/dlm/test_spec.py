"""The language model's specs: batch fields, and refusals with the option, its value and the
remedy.
"""

import math

import pytest
from pydantic import ValidationError

from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.spec import BlockSampling, DLMObjectiveSpec, DLMSamplingSpec, DLMSpec


def test_batch_fields():
    (field,) = DLMSpec(length=64, vocabulary=257).batch_fields()
    assert (field.name, field.shape, field.dtype, field.num_classes) == (
        "tokens",
        (64,),
        "int64",
        257,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"width": 500},
            "model.width=500 is no multiple of model.num_heads=8; set model.width to 496 or 512.",
        ),
        (
            {"width": 24},
            (
                "model.width=24 is no multiple of 16 (rotary positions turn pairs of entries "
                "of each of model.num_heads=8 heads); set model.width to 16 or 32."
            ),
        ),
        (
            {"block_size": 100},
            "model.block_size=100 does not divide model.length=1024; set model.block_size to 64 or "
            "128.",
        ),
        (
            {"block_size": 2048},
            "model.block_size=2048 does not divide model.length=1024; set model.block_size to "
            "1024.",
        ),
        (
            {"time_width": 9},
            (
                "model.time_width=9 is no multiple of 2 (half cosines, half sines); set "
                "model.time_width to 8 or 10."
            ),
        ),
        ({"mlp_ratio": 1.333}, "set model.mlp_ratio to 1.3320312 for a width of 682."),
    ],
)
def test_messages_name_the_option_its_value_and_the_remedy(changes, message):
    with pytest.raises(ValidationError) as caught:
        DLMSpec(**changes)
    assert caught.value.error_count() == 1
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "changes", "option"),
    [
        (DLMSpec, {"vocabulary": 1}, "vocabulary"),
        (DLMSpec, {"length": 0}, "length"),
        (DLMSpec, {"block_size": 0}, "block_size"),
        (DLMSpec, {"depth": 0}, "depth"),
        (DLMSpec, {"num_heads": 0}, "num_heads"),
        (DLMSpec, {"mlp_ratio": math.inf}, "mlp_ratio"),
        (DLMSpec, {"condition_width": 0}, "condition_width"),
        (DLMObjectiveSpec, {"scale_by_sigma": True}, "scale_by_sigma"),
        (DLMObjectiveSpec, {"score": "linear"}, "score"),
        (DLMObjectiveSpec, {"time_min": 1.0}, "time_min"),
        (DLMObjectiveSpec, {"weights": {"score_entropy": 0.0}}, "weights.score_entropy"),
    ],
)
def test_values_out_of_range_are_refused_by_name(spec, changes, option):
    with pytest.raises(ValidationError) as caught:
        spec.model_validate(changes)
    assert ".".join(str(part) for part in caught.value.errors()[0]["loc"]) == option


def test_scale_by_sigma_is_refused_with_the_reason():
    with pytest.raises(ValidationError, match="belongs to the absorbing graph"):
        DLMObjectiveSpec(scale_by_sigma=True)


@pytest.mark.parametrize(
    ("sampling", "model", "message"),
    [
        (
            {"block": BlockSampling()},
            {},
            r"sampling\.block needs .* \(model\.block_size is null\); set",
        ),
        (
            {},
            {"block_size": 128},
            r"sampling\.block is null, .*model\.block_size=128 .*set sampling\.block to \{\}",
        ),
        (
            {"length": 2048},
            {},
            r"sampling\.length=2048 .*model\.length=1024\); set sampling\.length to 1024 or less",
        ),
        (
            {"length": 200, "block": BlockSampling()},
            {"block_size": 128},
            r"sampling\.length=200 is no multiple of model\.block_size=128; set sampling\.length to 128 or 256",
        ),
    ],
)
def test_sampling_that_does_not_fit_the_model_is_refused(sampling, model, message):
    with pytest.raises(ValueError, match=message):
        FAMILY.build_sampler(DLMSamplingSpec(**sampling), DLMSpec(**model), DLMObjectiveSpec())


def test_default_steps():
    assert DLMSamplingSpec().num_steps == 128
    assert DLMSamplingSpec(block=BlockSampling()).num_steps == 50
    assert DLMSamplingSpec(block=BlockSampling(), steps=7).num_steps == 7

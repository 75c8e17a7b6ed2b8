"""Wrong specs are refused with the option, its value and the remedy."""

import pytest
from pydantic import ValidationError

from ditlab_models.dit.spec import DiTObjectiveSpec, DiTSamplingSpec, DiTSpec
from ditlab_models.processes.specs import LogitNormalTime
from ditlab_models.unet.spec import UNetSamplingSpec, UNetSpec


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        (
            DiTSpec,
            {"image_size": 30},
            "model.image_size=30 is no multiple of model.patch_size=4; set model.image_size "
            "to 28 or 32.",
        ),
        (DiTSpec, {"image_size": 2}, "set model.image_size to 4."),
        (
            DiTSpec,
            {"width": 250},
            "model.width=250 is no multiple of model.num_heads=8; set model.width to 248 or 256.",
        ),
        (
            DiTSpec,
            {"width": 258, "num_heads": 3},
            "model.width=258 is no multiple of 4 (sine and cosine of row and "
            "column get a quarter of it each); set model.width to 252 or 264.",
        ),
        (
            DiTSpec,
            {"mlp_ratio": 1.333},
            "model.mlp_ratio=1.333 makes an MLP 341.248 wide (model.width=256); set "
            "model.mlp_ratio to 1.3320312 for a width of 341.",
        ),
        (
            UNetSpec,
            {"image_size": 30},
            "model.image_size=30 is no multiple of 4 (it is halved twice); set "
            "model.image_size to 28 or 32.",
        ),
        (
            UNetSpec,
            {"width": 60},
            "model.width=60 is no multiple of 8 (the groups of its norms); set model.width to "
            "56 or 64.",
        ),
        (UNetSpec, {"time_width": 9}, "set model.time_width to 8 or 10."),
        (DiTObjectiveSpec, {"weights": {"velocity": 0.0}}, "set objective.weights.velocity to 1."),
    ],
)
def test_messages_name_the_option_its_value_and_the_remedy(spec, changes, message):
    with pytest.raises(ValidationError) as caught:
        spec.model_validate(changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "changes", "option"),
    [
        (DiTSpec, {"num_classes": 0}, "num_classes"),
        (DiTSpec, {"label_dropout": 1.0}, "label_dropout"),
        (DiTSpec, {"depth": 0}, "depth"),
        (DiTSpec, {"width": 4}, "width"),
        (DiTSpec, {"adaln": "six"}, "adaln"),
        (DiTSpec, {"dept": 3}, "dept"),
        (DiTSpec, {"depth": "3"}, "depth"),
        (DiTSpec, {"time_scale": float("nan")}, "time_scale"),
        (UNetSpec, {"channels": 0}, "channels"),
        (DiTObjectiveSpec, {"weights": {"velocity": -1.0}}, "weights.velocity"),
        (DiTObjectiveSpec, {"weights": {"direction": float("inf")}}, "weights.direction"),
        (DiTObjectiveSpec, {"weights": {"velocty": 1.0}}, "weights.velocty"),
        (DiTObjectiveSpec, {"time": {"kind": "cosine"}}, "time"),
        (DiTObjectiveSpec, {"time": {"kind": "logit_normal", "std": 0.0}}, "time.logit_normal.std"),
        (DiTSamplingSpec, {"steps": 0}, "steps"),
        (DiTSamplingSpec, {"solver": "dopri5"}, "solver"),
        (UNetSamplingSpec, {"guidance": -1.0}, "guidance"),
    ],
)
def test_values_out_of_range_are_refused_by_name(spec, changes, option):
    with pytest.raises(ValidationError) as caught:
        spec.model_validate(changes)
    assert ".".join(str(part) for part in caught.value.errors()[0]["loc"]) == option


def test_specs_survive_the_way_through_json():
    spec = DiTObjectiveSpec.model_validate({"time": {"kind": "logit_normal", "mean": -1, "std": 2}})
    assert spec.time == LogitNormalTime(mean=-1.0, std=2.0)
    assert DiTObjectiveSpec.model_validate_json(spec.model_dump_json()) == spec
    assert DiTObjectiveSpec.model_validate(spec.model_dump()) == spec


def test_batch_fields(small):
    (image,) = small().batch_fields()
    assert (image.name, image.shape, image.dtype, image.value_range) == (
        "image",
        (1, 8, 8),
        "float32",
        (-1.0, 1.0),
    )
    _, label = small(num_classes=10).batch_fields()
    assert (label.name, label.shape, label.dtype, label.num_classes) == ("label", (), "int64", 10)


def test_guidance_needs_what_it_guides_with(family, small):
    guided_prediction = family.sampling(guidance=3.0)
    objective = family.objective()
    with pytest.raises(
        ValueError, match=r"sampling\.guidance=3 needs a conditional model .*num_classes"
    ):
        family.build_sampler(guided_prediction, small(), objective)
    with pytest.raises(
        ValueError, match=r"sampling\.guidance=3 needs a null class .*label_dropout=0"
    ):
        family.build_sampler(guided_prediction, small(num_classes=10, label_dropout=0.0), objective)
    family.build_sampler(guided_prediction, small(num_classes=10), objective)
    family.build_sampler(family.sampling(), small(num_classes=10, label_dropout=0.0), objective)

"""Specs of all families: wrong ones are refused with the option, its value and the remedy."""

import pytest
from pydantic import ValidationError

from ditlab_models.dit.spec import DiTObjectiveSpec, DiTSamplingSpec, DiTSpec
from ditlab_models.dlm.spec import DLMObjectiveSpec, DLMSpec
from ditlab_models.families import families
from ditlab_models.pixelhdm.spec import PixelHDMObjectiveSpec, PixelHDMSamplingSpec, PixelHDMSpec
from ditlab_models.processes.specs import LinearBetas, LogitNormalTime, TokenNoiseSchedule
from ditlab_models.region.spec import RegionObjectiveSpec, RegionSpec
from ditlab_models.unet.spec import UNetSpec
from support.damage import refused


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        (
            DiTSpec,
            {"image_size": 30},
            "model.image_size=30 is no multiple of model.patch_size=4; set model.image_size to 28 or 32.",
        ),
        (
            DiTSpec,
            {"width": 250},
            "model.width=250 is no multiple of model.num_heads=8; set model.width to 248 or 256.",
        ),
        (
            DiTSpec,
            {"width": 258, "num_heads": 3},
            "model.width=258 is no multiple of 4 (sine and cosine of row and column get a quarter of it each); set model.width to 252 or 264.",
        ),
        (
            DiTSpec,
            {"mlp_ratio": 1.333},
            "model.mlp_ratio=1.333 makes an MLP 341.248 wide (model.width=256); set model.mlp_ratio to 1.3320312 for a width of 341.",
        ),
        (DiTSpec, {"mlp_norm_eps": 1e-5}, "model.mlp_norm_eps=1e-05 needs model.adaln=zero"),
        (
            UNetSpec,
            {"image_size": 30},
            "model.image_size=30 is no multiple of 4 (it is halved twice); set model.image_size to 28 or 32.",
        ),
        (
            UNetSpec,
            {"width": 60},
            "model.width=60 is no multiple of 8 (the groups of its norms); set model.width to 56 or 64.",
        ),
        (DiTObjectiveSpec, {"weights": {"velocity": 0.0}}, "set objective.weights.velocity to 1."),
        (
            LinearBetas,
            {"beta_start": 0.02, "beta_end": 0.0001},
            "objective.noise.beta_end=0.0001 is below objective.noise.beta_start=0.02",
        ),
        (
            RegionSpec,
            {"num_heads": 3, "width": 33, "positions": "sinusoidal"},
            "model.width=33 is no multiple of 2 (sines and cosines alternate); set model.width to 30 or 36.",
        ),
        (RegionObjectiveSpec, {"weights": {"masked": 0.0}}, "objective.weights are all 0"),
        (
            DLMSpec,
            {"width": 24},
            "model.width=24 is no multiple of 16 (rotary positions turn pairs of entries of each of model.num_heads=8 heads); set model.width to 16 or 32.",
        ),
        (
            DLMSpec,
            {"block_size": 100},
            "model.block_size=100 does not divide model.length=1024; set model.block_size to 64 or 128.",
        ),
        (
            DLMSpec,
            {"block_size": 2048},
            "model.block_size=2048 does not divide model.length=1024; set model.block_size to 1024.",
        ),
        (
            DLMSpec,
            {"time_width": 9},
            "model.time_width=9 is no multiple of 2 (half cosines, half sines); set model.time_width to 8 or 10.",
        ),
        (
            DLMObjectiveSpec,
            {"scale_by_sigma": True},
            "objective.scale_by_sigma=true belongs to the absorbing graph",
        ),
        (
            TokenNoiseSchedule,
            {"sigma_min": 0.5, "sigma_max": 0.1},
            "objective.noise.sigma_max=0.1 is not above objective.noise.sigma_min=0.5",
        ),
        (
            PixelHDMSpec,
            {"num_kv_heads": 5},
            "model.num_heads=16 is no multiple of model.num_kv_heads=5; set model.num_heads to 15 or 20.",
        ),
        (
            PixelHDMSpec,
            {"width": 512},
            "model.mrope_widths=[16, 24, 24] are not three positive even numbers that add up to a head's width (model.width / model.num_heads = 32); set model.mrope_widths to [8, 12, 12].",
        ),
        (PixelHDMSpec, {"mrope_widths": [15, 25, 24]}, "set model.mrope_widths to [16, 24, 24]."),
        (
            PixelHDMSpec,
            {"width": 64},
            "(model.width / model.num_heads = 4); make model.width / model.num_heads an even number of at least 6.",
        ),
        (
            PixelHDMSpec,
            {"pixel_width": 15, "mlp_ratio": 2.5},
            "model.mlp_ratio=2.5 makes an MLP 37.5 wide (model.pixel_width=15)",
        ),
        (
            PixelHDMSpec,
            {"max_resolution": 1000},
            "model.max_resolution=1000 is no multiple of model.patch_size=16; set model.max_resolution to 992 or 1008.",
        ),
        (
            PixelHDMObjectiveSpec,
            {"weights": {"velocity": 0.0, "frequency": 0.0}},
            "objective.weights.velocity and objective.weights.frequency are both 0, so nothing trains the output; set objective.weights.velocity to 1.",
        ),
        (
            PixelHDMObjectiveSpec,
            {"prediction": "image", "time": {"kind": "uniform"}},
            "objective.prediction=image divides by 1 - t, which these objective.time let come near 0; set objective.time to {kind: logit_normal, eps: 0.05}, or objective.prediction to velocity.",
        ),
        (
            PixelHDMSamplingSpec,
            {"interval": [0.8, 0.2]},
            "sampling.interval=[0.8, 0.2] is no interval of time (0 <= t_start < t_end <= 1); set sampling.interval to [0.0, 1.0].",
        ),
        (
            PixelHDMSamplingSpec,
            {"interval": [0.5, 0.5]},
            "sampling.interval=[0.5, 0.5] is no interval of time",
        ),
        (
            PixelHDMSamplingSpec,
            {"guidance": 0.5},
            "sampling.guidance=0.5 is below sampling.min_scale=1, which would take its place; set sampling.min_scale to 0.5 or less.",
        ),
    ],
)
def test_messages_name_the_option_its_value_and_the_remedy(spec, changes, message):
    with pytest.raises(ValidationError) as caught:
        spec.model_validate(changes)
    assert caught.value.error_count() == 1 and message in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "option", "value"),
    [
        (DiTSpec, "num_classes", 0),
        (DiTSpec, "width", 4),
        (DiTSpec, "adaln", "six"),
        (DiTSpec, "dept", 3),
        (DiTSpec, "time_scale", float("nan")),
        (DiTObjectiveSpec, "weights.velocity", -1.0),
        (DiTObjectiveSpec, "time", {"kind": "cosine"}),
        (LogitNormalTime, "eps", 0.5),
        (DiTSamplingSpec, "guidance", -1.0),
        (PixelHDMSpec, "condition_dropout", 1.0),
        (PixelHDMSpec, "rope_base", 1.0),
        (PixelHDMObjectiveSpec, "frequency.quality", 101),
        (PixelHDMSamplingSpec, "rescale", 1.5),
        (DLMSpec, "vocabulary", 1),
        (DLMObjectiveSpec, "time_min", 1.0),
        (DLMObjectiveSpec, "weights.score_entropy", 0.0),
        (DLMObjectiveSpec, "noise.sigma_min", 0.0),
    ],
)
def test_values_out_of_range_are_refused_by_name(spec, option, value):
    for key in reversed(option.split(".")):
        value = {key: value}
    with pytest.raises(ValidationError) as caught:
        spec.model_validate(value)
    assert ".".join(map(str, caught.value.errors()[0]["loc"])) == option


@pytest.mark.parametrize(
    ("name", "model", "objective", "sampling", "message"),
    [
        (
            "dit",
            {},
            {},
            {"guidance": 3.0},
            r"sampling\.guidance=3 needs a conditional model .*num_classes",
        ),
        (
            "unet",
            {"num_classes": 10, "label_dropout": 0.0},
            {},
            {"guidance": 3.0},
            r"sampling\.guidance=3 needs a null class .*label_dropout=0",
        ),
        (
            "region",
            {},
            {},
            {"solver": "ddim"},
            "sampling.solver=ddim needs a network trained to take noise away",
        ),
        (
            "region",
            {"corruption": "ddpm"},
            {},
            {"solver": "ddpm", "steps": 1001},
            "sampling.steps=1001 is more than the timesteps there are",
        ),
        (
            "region",
            {"corruption": "ddpm"},
            {"noise": {"beta_end": 1e-3}},
            {},
            r"objective\.noise\.beta_end=0\.001 .* leaves alpha_bar=0\.57",
        ),
        (
            "dlm",
            {},
            {},
            {"block": {}},
            r"sampling\.block needs .* \(model\.block_size is null\); set",
        ),
        (
            "dlm",
            {"block_size": 128},
            {},
            {},
            r"sampling\.block is null, .*model\.block_size=128 .*set sampling\.block to \{\}",
        ),
        (
            "dlm",
            {},
            {},
            {"length": 2048},
            r"sampling\.length=2048 .*model\.length=1024\); set sampling\.length to 1024 or less",
        ),
        (
            "dlm",
            {"block_size": 128},
            {},
            {"length": 200, "block": {}},
            r"sampling\.length=200 is no multiple of model\.block_size=128; set sampling\.length to 128 or 256",
        ),
        (
            "pixelhdm",
            {},
            {"alignment_block": 17},
            {},
            r"objective\.alignment_block=17 is none of the model\.patch_depth=16 patch blocks; set .* to 1 to 16, or",
        ),
        (
            "pixelhdm",
            {},
            {},
            {"height": 250},
            r"sampling\.height=250 is no multiple of model\.patch_size=16; set sampling\.height to 240",
        ),
        (
            "pixelhdm",
            {},
            {},
            {"width": 2048},
            r"sampling\.width=2048 is not between 1 and model\.max_resolution=1024; set sampling\.width",
        ),
        (
            "pixelhdm",
            {"condition_dropout": 0.0},
            {},
            {},
            r"sampling\.guidance=7\.5 needs a null condition seen in training",
        ),
    ],
)
def test_specs_that_do_not_fit_each_other_are_refused(name, model, objective, sampling, message):
    family = families()[name]
    specs = (family.model(**model), family.objective(**objective), family.sampling(**sampling))
    spec, objective, sampling = specs
    with refused(message, ValueError):
        family.build_objective(objective, spec)
        family.build_sampler(sampling, spec, objective)


def test_specs_survive_the_way_through_json():
    spec = DiTObjectiveSpec.model_validate({"time": {"kind": "logit_normal", "mean": -1, "std": 2}})
    assert spec.time == LogitNormalTime(mean=-1.0, std=2.0)
    for family in families().values():
        for each in (spec, family.model(), family.objective(), family.sampling()):
            assert type(each).model_validate_json(each.model_dump_json()) == each


def test_batch_fields(small):
    (image,) = small().batch_fields()
    assert (image.name, image.shape, image.dtype) == ("image", (1, 8, 8), "float32")
    assert image.value_range == (-1.0, 1.0)
    _, label = small(num_classes=10).batch_fields()
    assert (label.name, label.shape, label.dtype, label.num_classes) == ("label", (), "int64", 10)

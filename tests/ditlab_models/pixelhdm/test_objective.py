"""PixelHDM's objective: closed forms, metrics, alignment and its end, refusals."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from ditlab_models.pixelhdm.family import FAMILY
from ditlab_models.pixelhdm.spec import PixelHDMObjectiveSpec, PixelHDMSpec
from ditlab_models.processes.draws import batch_means
from ditlab_models.processes.frequency_loss import YCBCR, frequency_error, frequency_weights
from ditlab_models.processes.specs import UniformTime
from support.damage import refused
from support.models.draws import KeyedNoise, seeded
from support.models.pixelhdm_samplers import FROZEN

FEATURE_WIDTH = 6


def model(**changes):
    sizes = {"width": 16, "patch_depth": 3, "mrope_widths": (2, 2, 4), "text_length": 4}
    return PixelHDMSpec(**{**FROZEN, **sizes, **changes})


def objective(spec=None, **changes):
    defaults = {"alignment_block": 2, "alignment_width": FEATURE_WIDTH, "alignment_until": 100}
    return FAMILY.build_objective(PixelHDMObjectiveSpec(**{**defaults, **changes}), spec or model())


def batch_of(num=4, height=16, width=24, spec=None, features=True):
    generator = seeded(3)

    def normal(*shape):
        return torch.randn(num, *shape, generator=generator)

    spec = spec or model()
    batch = {"image": normal(3, height, width).clamp(-1, 1), "text": normal(4, spec.width)}
    batch |= {"text_mask": torch.ones(num, 4, dtype=torch.bool), "text_pooled": normal(spec.width)}
    num_patches = height * width // spec.patch_size**2
    return {**batch, "image_features": normal(num_patches, FEATURE_WIDTH)} if features else batch


class Answers(nn.Module):
    """A network that returns `answer(z_t, t)`, and random features on request; records its
    inputs.
    """

    def __init__(self, answer):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.answer = answer
        self.calls = []

    def forward(self, x, t, condition, keep=None, features_after=None):
        self.calls.append((x, t, condition, keep, features_after))
        output = self.scale * self.answer(x, t)
        if features_after is None:
            return output
        num_patches = x.shape[2] * x.shape[3] // 64
        generator = seeded(4)
        features = torch.randn(num_patches, 16, generator=generator).expand(len(x), -1, -1)
        return output, self.scale * features


def zeros(x, t):
    return torch.zeros_like(x)


def test_a_prediction_of_0_errs_by_the_velocitys_second_moment():
    """1 + E[x^2]; and in YCbCr, for x = 0, by the squared lengths of its rows, as noise has all
    frequencies alike.
    """
    batch = batch_of(64, 32, 32)
    found = objective().loss(Answers(zeros), batch, KeyedNoise())
    assert found["velocity"].item() == pytest.approx(
        1 + batch["image"].square().mean().item(), rel=0.01
    )
    batch["image"] = torch.zeros_like(batch["image"])
    found = objective().loss(Answers(zeros), batch, KeyedNoise())
    assert found["frequency"].item() == pytest.approx(
        torch.tensor(YCBCR).square().sum(1).mean().item(), rel=0.01
    )


def test_components_are_those_of_the_velocity_at_z_t():
    """z_t = t x + (1 - t) eps, from the named draws; an image predicted is the velocity (x - z_t) /
    (1 - t).
    """
    batch, source = batch_of(), KeyedNoise()
    image, noise = batch["image"], source.normal("noise", batch["image"].shape)
    t = 0.05 + 0.9 * source.normal("time", (4,)).sigmoid()
    wide = t.view(-1, 1, 1, 1)
    for prediction in ("velocity", "image"):
        network = Answers(lambda x, t: x.sin())
        built = objective(prediction=prediction, frequency={"quality": 50})
        found = built.loss(network, batch, KeyedNoise())
        ((z_t, times, condition, _, after),) = network.calls
        assert_close(times, t)
        assert_close(z_t, wide * image + (1 - wide) * noise)
        assert set(condition) == {"text", "text_mask", "text_pooled"} and after == 2
        velocity = z_t.sin() if prediction == "velocity" else (z_t.sin() - z_t) / (1 - wide)
        target = image - noise
        assert_close(found["velocity"], (velocity - target).square().mean())
        assert_close(found["frequency"], frequency_error(velocity, target, frequency_weights(50)))


def test_a_share_of_samples_loses_its_text_in_training_alone():
    batch = batch_of(4000, 8, 8, features=False)
    network = Answers(zeros)
    objective().loss(network, batch, KeyedNoise())
    objective(model(condition_dropout=0.0)).loss(network, batch, KeyedNoise())
    objective().metrics(network, batch, KeyedNoise())
    dropped, kept, *held_out = [keep for _, _, _, keep, _ in network.calls]
    assert dropped.dtype == torch.bool and dropped.float().mean().item() == pytest.approx(
        0.9, abs=0.015
    )
    assert kept.all() and held_out == [None] * 4


def test_features_retire():
    built = objective(alignment_until=100)
    assert list(built.retired_fields(99)) == [] and list(built.retired_fields(100)) == [
        "image_features"
    ]
    assert list(objective(weights={"alignment": 0.0}).retired_fields(10**6)) == []


def test_without_features_the_rest_goes_on_and_the_head_has_a_gradient_of_0():
    built = objective()
    whole = built.loss(Answers(zeros), batch_of(), KeyedNoise())
    network = Answers(zeros)
    found = built.loss(network, batch_of(features=False), KeyedNoise())
    assert found.keys() == {"velocity", "frequency"} and network.calls[0][4] is None
    assert all(torch.equal(value, whole[name]) for name, value in found.items())
    sum(found.values()).backward()
    assert all((each.grad == 0).all() for each in built.modules.parameters())


def test_metrics_go_through_each_quarter_of_sampled_times_from_noise():
    network = Answers(zeros)
    batch = batch_of(200, 8, 8)
    objective(time=UniformTime()).metrics(network, batch, KeyedNoise())
    assert len(network.calls) == 4
    for quarter, (z_t, t, *_) in enumerate(network.calls):
        assert 0.05 + 0.225 * quarter <= t.min() and t.max() < 0.05 + 0.225 * (quarter + 1) + 1e-6
        middle = 0.05 + 0.225 * (quarter + 0.5)
        assert t.mean().item() == pytest.approx(middle, abs=0.02)
        left = (1 - t).square().mean() + (
            t.square() * batch["image"].square().mean((1, 2, 3))
        ).mean()
        assert z_t.square().mean().item() == pytest.approx(left.item(), rel=0.03)  # noise first


def test_metrics_without_features_lack_alignment():
    found = batch_means(objective().metrics(Answers(zeros), batch_of(features=False), KeyedNoise()))
    assert "alignment" not in found and "frequency" in found
    plain = objective(weights={"alignment": 0.0})
    assert "alignment" not in plain.metric_names()
    assert "alignment" not in batch_means(plain.metrics(Answers(zeros), batch_of(), KeyedNoise()))


def test_images_of_no_whole_blocks_are_refused_where_the_loss_needs_them():
    spec = model(patch_size=4)
    batch = batch_of(2, 20, 24, spec)
    with refused(
        r"objective.weights.frequency=1 compares .* 20 x 24 .* to 0, or take images", ValueError
    ):
        objective(spec).loss(
            Answers(zeros), {**batch, "image_features": torch.zeros(2, 7, 6)}, KeyedNoise()
        )
    without = objective(spec, weights={"frequency": 0.0, "alignment": 0.0})
    assert set(without.loss(Answers(zeros), batch, KeyedNoise())) == {"velocity"}
    assert "frequency" not in batch_means(without.metrics(Answers(zeros), batch, KeyedNoise()))
    assert "frequency" not in without.metric_names()


def test_features_of_other_patches_are_refused():
    batch = batch_of()
    batch["image_features"] = batch["image_features"][:, :-1]
    with refused(
        r"image_features are of 5 patches, and images of 16 x 24 pixels have 6", ValueError
    ):
        objective().loss(Answers(zeros), batch, KeyedNoise())

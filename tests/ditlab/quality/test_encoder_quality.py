"""Distances on features of the image encoder that an experiment names."""

import shutil

import numpy as np
import pytest
import torch

from ditlab.data.splits import open_data
from ditlab.encoders.checkpoint import encoder_digest
from ditlab.home import Home
from ditlab.quality import QUALITY_METRICS, check_quality, quality_ineligibility, quality_names
from ditlab.quality.eligibility import find_basis
from ditlab.quality.features import ImageEncoder, frechet_distance
from ditlab.quality.images import image_batches, images_per_batch
from ditlab.quality.sample_quality import QualityReference
from ditlab.spec.data import ArrowData
from support.damage import refused
from support.datasets.tiny_encoders import write_image_encoder
from support.datasets.writing import image_store
from support.models.draws import seeded
from support.trainings.workers import tiny

pytest.importorskip("transformers")

CPU = torch.device("cpu")
ENCODER_FIGURES = ("quality/frechet_dino", "quality/kernel_dino", "quality/kernel_dino_error")
NEAREST = ("quality/nearest", "quality/nearest_held_out")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """Patches of 4 pixels, 24 features each."""
    return write_image_encoder(tmp_path_factory.mktemp("encoder"))


def store(folder, shape, num=400, classes=False):
    """Smooth gradients of a random direction."""
    rows, columns = (np.linspace(-1, 1, size) for size in shape[1:])
    slopes = np.random.default_rng(0).normal(size=(2, num, shape[0], 1, 1))
    values = np.tanh(slopes[0] * rows[:, None] + slopes[1] * columns) * 127.5 + 127.5
    labels = {"label": (slopes[0].mean((1, 2, 3)) > 0).astype(np.int64)} if classes else {}
    return {**image_store(folder, values.astype(np.uint8), **labels), "hold_out": 0.25}


def opened(tmp_path, encoder, shape=(3, 16, 16), **made):
    spec = store(tmp_path / "store", shape, **made)
    data = open_data(ArrowData(**spec), Home(tmp_path))
    return data, find_basis(data, shape, ImageEncoder(str(encoder), torch.float32))


def real_images_of(basis):
    return torch.cat(list(image_batches(basis.data.held_out, basis.image, CPU)))


def test_images_without_classes_are_measured_by_the_encoder(tmp_path, encoder):
    """Worse images are further away, and real ones near."""
    data, basis = opened(tmp_path, encoder)
    reference = QualityReference(basis, Home(tmp_path))
    real = real_images_of(basis)
    noise = torch.randn(real.shape, generator=seeded())
    near, far, lost = (reference.measure(images) for images in (real, real + 0.3 * noise, noise))
    assert tuple(near) == (*NEAREST, *ENCODER_FIGURES) == basis.metrics(from_captions=True)
    for name in ENCODER_FIGURES[:2]:
        assert near[name] < far[name] < lost[name]
    assert abs(near["quality/kernel_dino"]) < 3 * near["quality/kernel_dino_error"]
    assert not Home(tmp_path).classifiers.exists()
    found = find_basis(data, (3, 16, 16))
    assert "no images (3, 16, 16) with class indices" in found and "encoders.image names" in found


def test_features_are_means_over_patches_scaled_to_the_real_ones(tmp_path, encoder):
    """Features by transformers itself: the tokens behind the class token and four registers."""
    from transformers import AutoModel

    _, basis = opened(tmp_path, encoder)
    reference = QualityReference(basis, Home(tmp_path))
    network = AutoModel.from_pretrained(encoder).eval()
    mean = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
    std = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)

    @torch.no_grad()
    def features(images):
        found = network(pixel_values=((images + 1) / 2 - mean) / std)
        return found.last_hidden_state[:, 5:].mean(1)

    compared = features(torch.cat(list(image_batches(reference.real.reference, basis.image, CPU))))
    real = features(real_images_of(basis))
    scale = compared.square().mean().rsqrt()
    expected = frechet_distance(scale * compared, scale * real)
    found = reference.measure(real_images_of(basis))["quality/frechet_dino"]
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.usefixtures("few_steps")
def test_classifier_and_encoder_stand_side_by_side(tmp_path, encoder):
    """The classifier's figures are the same with an encoder as without."""
    data, basis = opened(tmp_path, encoder, classes=True)
    real = real_images_of(basis)
    both = QualityReference(basis, Home(tmp_path)).measure(real)
    alone = QualityReference(find_basis(data, (3, 16, 16)), Home(tmp_path)).measure(real)
    assert tuple(both) == (*QUALITY_METRICS, *ENCODER_FIGURES)
    assert alone == {name: both[name] for name in QUALITY_METRICS}


def test_large_images_are_measured_by_the_encoder_alone(tmp_path, encoder):
    """The nearest ones are looked for among images averaged to 64 pixels a side: a copy is still a
    copy.
    """
    _, basis = opened(tmp_path, encoder, shape=(3, 80, 72), num=300, classes=True)
    reference = QualityReference(basis, Home(tmp_path))
    copies = torch.cat(list(image_batches(reference.real.train, basis.image, CPU, 40)))
    found = reference.measure(copies)
    assert tuple(found) == (*NEAREST, *ENCODER_FIGURES)
    assert found["quality/nearest"] == 0 < found["quality/nearest_held_out"]
    sides = (28, 256, 4096)
    assert [images_per_batch((3, side, side)) for side in sides] == [512, 85, 1]


def test_an_encoder_counts_by_its_weights_not_by_its_place(tmp_path, encoder):
    moved = shutil.copytree(encoder, tmp_path / "moved")
    digest = encoder_digest(str(encoder), "fp32")
    assert encoder_digest(str(moved), "fp32") == digest != encoder_digest(str(moved), "bf16")
    weights = moved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    assert encoder_digest(str(moved), "fp32") != digest
    assert encoder_digest(None, "fp32") == ""


# In an experiment


def experiment(spec, encoder, **sizes):
    sizes = {"channels": 3, "image_size": 16, "patch_size": 4, **sizes}
    return tiny(
        data=spec,
        evaluation={"quality": 100},
        encoders={"image": str(encoder)},
        **{f"model__{name}": size for name, size in sizes.items()},
    )


def test_an_experiment_with_an_encoder_names_its_figures(tmp_path, encoder):
    job = experiment(store(tmp_path / "store", (3, 16, 16)), encoder)
    data = open_data(job.data, Home(tmp_path))
    check_quality(job, data)
    assert quality_ineligibility(job, data) == "" and quality_names(job, data) == (
        *NEAREST,
        *ENCODER_FIGURES,
    )


@pytest.mark.parametrize(
    ("size", "place", "problem"),
    [
        (18, None, r"patches of 4 pixels, which do not tile the 18 x 18 pixels"),
        (16, "nowhere/there/is", r"encoders\.image=nowhere/there/is is no folder here"),
    ],
)
def test_an_encoder_that_cannot_be_used_is_told_before_the_run(
    tmp_path, encoder, size, place, problem
):
    sizes = {"image_size": size, "patch_size": 2}
    job = experiment(store(tmp_path / "store", (3, size, size)), place or encoder, **sizes)
    with refused(problem):
        check_quality(job, open_data(job.data, Home(tmp_path)))

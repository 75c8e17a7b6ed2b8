"""Caption agreement: whether samples show what the captions say that they were drawn from."""

import math

import numpy as np
import pytest
import torch

from ditlab.data.images.captions import caption_column, decode_captions, encode_captions
from ditlab.data.splits import open_data
from ditlab.data.stores.bucketed_store import BucketedStore
from ditlab.data.stores.manifest import Column, Source
from ditlab.home import Home
from ditlab.quality import QUALITY_METRICS, check_quality, quality_names
from ditlab.quality import classifier as classifiers
from ditlab.quality.classifier import SmallClassifier, TrainedClassifier
from ditlab.quality.eligibility import find_basis
from ditlab.quality.images import image_batches
from ditlab.quality.sample_quality import (
    DrawnSamples,
    QualityEvaluator,
    QualityReference,
    agreement_metrics,
    classes_of,
    recognised_classes,
)
from ditlab.runs.launch import build_model
from ditlab.spec.data import ArrowData, CaptionedDigitsData
from ditlab.training.metrics import metric_names
from support.damage import refused
from support.datasets.bucketed import SMALL_PIXELHDM, BucketPart, write_buckets
from support.models.draws import seeded
from support.trainings.workers import tiny

CPU = torch.device("cpu")
SHAPE = (3, 8, 8)
DATA = {"kind": "captioned_digits", "size": 8, "colours": 3}
SHARES = ("quality/agreement", "quality/agreement_digit", "quality/agreement_colour")
AGREEMENT = (
    *(f"{share}{end}" for share in SHARES for end in ("", "_low", "_high")),
    "quality/agreement_real",
    "quality/agreement_chance",
)


MODEL = {**SMALL_PIXELHDM, "max_resolution": 64, "text_length": 32}


def experiment(**changes):
    settings = {
        "model": MODEL,
        "objective": {"weights": {"alignment": 0.0}},
        "data": DATA,
        "sampling": {"height": 8, "width": 8, "steps": 2, "solver": "euler", "guidance": 2.0},
    }
    return tiny(**{**settings, **changes})


@pytest.fixture(scope="module")
def data(home):
    return open_data(CaptionedDigitsData(size=8, colours=3), home)


@pytest.fixture(scope="module")
def reference(data, home):
    """Trains two classifiers of 8x8 images, in a third of the steps: 2 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifiers, "STEPS", 350)
        return QualityReference(find_basis(data, SHAPE), home, from_captions=True)


def held_out(basis):
    """(images, classes) of all held-out rows."""
    view = basis.data.held_out
    images = torch.cat(list(image_batches(view, basis.image, CPU)))
    return images, classes_of(view, basis.classes, np.arange(len(view)))


# The figures


def test_shares_of_samples_that_are_right():
    chances = {"digit": 0.2, "colour": 0.5}
    network = SmallClassifier(SHAPE, 2, torch.Generator())
    trained = {name: TrainedClassifier(network, 1.0, chance, 1) for name, chance in chances.items()}
    expected = {"digit": torch.tensor([1, 2, 3, 4]), "colour": torch.tensor([0, 0, 1, 1])}
    seen = {"digit": torch.tensor([1, 2, 3, 0]), "colour": torch.tensor([0, 1, 0, 1])}
    found = agreement_metrics(trained, 0.9, expected, seen)
    assert tuple(found) == AGREEMENT
    assert [found[name] for name in (*SHARES, *AGREEMENT[-2:])] == [0.25, 0.75, 0.5, 0.9, 0.1]
    ends = [found[f"quality/agreement_{end}"] for end in ("low", "high")]
    assert ends == pytest.approx([0.0456, 0.6994], abs=1e-4)  # Wilson's of one of four


def test_real_images_agree_with_their_captions_and_with_no_others(reference):
    images, expected = held_out(reference.basis)
    found = reference.measure(images, expected)
    assert tuple(found) == (*QUALITY_METRICS, *AGREEMENT)
    assert found["quality/agreement"] == found["quality/agreement_real"] > 0.95
    assert found["quality/agreement_colour"] > 0.99
    mixed = torch.randperm(len(images), generator=seeded())
    chance = reference.measure(images, {name: values[mixed] for name, values in expected.items()})
    assert chance["quality/agreement_chance"] == pytest.approx(1 / 3 * 23 / 180, rel=1e-6)
    assert abs(chance["quality/agreement"] - chance["quality/agreement_chance"]) < 0.02


def test_a_digit_is_known_in_any_colour(reference):
    """Channels moved round make red green, green blue, blue red, and leave the digit as it is."""
    images, expected = held_out(reference.basis)
    seen = recognised_classes(reference.classifiers, [images.roll(1, 1)], lambda: None)
    assert (seen["colour"] == (expected["colour"] + 1) % 3).double().mean() > 0.99
    assert (seen["digit"] == expected["digit"]).double().mean() > 0.95


def test_all_are_nan_where_a_sample_is_no_number(reference):
    images, expected = held_out(reference.basis)
    images[3, 0, 0, 0] = float("nan")
    found = reference.measure(images, expected)
    assert tuple(found) == (*QUALITY_METRICS, *AGREEMENT) and all(map(math.isnan, found.values()))


def test_without_captions_one_classifier_is_enough(few_steps, data, tmp_path):
    QualityReference(find_basis(data, SHAPE), Home(tmp_path))
    assert len([*Home(tmp_path).classifiers.glob("*.safetensors")]) == 1


@pytest.mark.slow
def test_both_classifiers_learn_the_digits_as_they_come(home):
    """16x16 pixels in seven colours."""
    basis = find_basis(open_data(CaptionedDigitsData(), home), (3, 16, 16))
    trained = QualityReference(basis, home, from_captions=True).classifiers
    assert trained["digit"].accuracy > 0.95 and trained["colour"].accuracy > 0.99


# What samples are drawn for


def asked_for(measuring, num):
    """Captions of `num` samples."""
    return decode_captions(measuring.conditions(num).tensors["caption"].numpy().astype(np.uint8))


def meter(data, home, **changes):
    return QualityEvaluator(experiment(**changes), data, home, CPU)


@pytest.mark.parametrize("sampling", [{}, {"prompts": ["a red one"]}])
def test_samples_are_asked_for_what_the_captions_of_held_out_rows_say(data, home, sampling):
    """Over and over where there are fewer rows than samples; prompts are for pictures alone."""
    num = len(data.held_out) + 5
    measuring = meter(data, home, sampling={"height": 8, "width": 8, **sampling})
    captions = asked_for(measuring, num)
    expected, columns = measuring.expected(num), data.held_out.columns
    assert expected["digit"].shape == (num,)
    for caption, digit, colour in zip(captions, expected["digit"], expected["colour"], strict=True):
        assert caption == f"a {columns['colour'].names[colour]} {columns['digit'].names[digit]}"


@pytest.mark.parametrize("prompts", [[], ["a red one"]])
def test_the_names_of_the_figures_are_known_beforehand(reference, data, home, prompts):
    sampling = {"height": 8, "width": 8, "prompts": prompts}
    spec = experiment(evaluation={"every": 1, "quality": 100}, sampling=sampling)
    found = QualityEvaluator(spec, data, home, CPU).measure(
        DrawnSamples(*held_out(reference.basis))
    )
    assert tuple(found) == quality_names(spec, data)
    assert set(found) <= set(metric_names(spec, data, build_model(spec).objective))


def test_families_without_captions_have_no_agreement(tmp_path):
    spec = tiny()
    assert quality_names(spec, open_data(spec.data, Home(tmp_path))) == QUALITY_METRICS


def test_samples_must_have_the_size_of_the_images(data):
    spec = experiment(sampling={"height": 16, "width": 8}, evaluation={"quality": 100})
    remedy = r"evaluation\.quality=0, set sampling\.height and sampling\.width, or change"
    with refused(f"holds images of 8 x 8 pixels and none of 16 x 8, which samples have.*{remedy}"):
        check_quality(spec, data)


# Images of several sizes


def bucketed(folder, rows):
    """Coloured noise by (height, width): its class is its brightest channel."""
    names = ("red", "green", "blue")

    def part(height, width, num):
        generator = np.random.default_rng((height, width))
        colour = generator.integers(0, 3, num)
        images = generator.integers(0, 60, (num, 3, height, width), dtype=np.uint8)
        images[np.arange(num), colour] += 150
        columns = {
            "image": Column(dtype="uint8", shape=(3, height, width), value_range=(0, 255)),
            "caption": caption_column(12),
            "colour": Column(dtype="int64", num_classes=3, names=names),
        }
        captions = encode_captions([f"all {names[each]}".encode() for each in colour], 12)
        batch = {"image": images, "caption": captions, "colour": colour}
        return BucketPart(height, width, columns, lambda: iter([batch]))

    parts = [part(*size, num) for size, num in rows.items()]
    write_buckets(folder, parts, name="sizes", description="", source=Source(kind="made"))
    return {"kind": "arrow", "path": str(folder), "hold_out": 0.25}


@pytest.mark.usefixtures("few_steps")
def test_samples_are_measured_against_the_bucket_of_their_size(tmp_path):
    spec = bucketed(tmp_path / "sizes", {(8, 8): 300, (8, 12): 400, (12, 8): 100})
    data = open_data(ArrowData(**spec), Home(tmp_path))
    assert isinstance(data.train.store, BucketedStore)
    sampling = {"height": 8, "width": 12, "steps": 1, "solver": "euler"}
    measuring = QualityEvaluator(
        experiment(data=spec, sampling=sampling), data, Home(tmp_path), CPU
    )
    of_size = measuring.basis.data
    assert len(of_size.train) + len(of_size.held_out) == 400
    assert of_size.held_out.gather("image", np.arange(3)).shape == (3, 3, 8, 12)
    expected = measuring.expected(150)["colour"]
    assert asked_for(measuring, 150) == [
        f"all {('red', 'green', 'blue')[each]}" for each in expected
    ]
    images = torch.cat(list(image_batches(of_size.held_out, measuring.basis.image, CPU)))
    rows = np.arange(150) % len(images)
    found = measuring.measure(DrawnSamples(images[rows], measuring.expected(150)))
    assert found["quality/agreement"] > 0.9 and found["quality/nearest_held_out"] > 0


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((12, 12), "holds images of 8 x 8, 12 x 8 pixels and none of 12 x 12"),
        ((12, 8), r"holds out \d+ images of 12 x 8 pixels, and at least 50"),
    ],
)
def test_a_bucket_that_is_missing_or_small_is_named(tmp_path, size, reason):
    spec = bucketed(tmp_path / "sizes", {(8, 8): 300, (12, 8): 100})
    data = open_data(ArrowData(**spec), Home(tmp_path))
    sampling = dict(zip(("height", "width"), size, strict=True))
    job = experiment(data=spec, sampling=sampling, evaluation={"quality": 100})
    with refused(reason):
        check_quality(job, data)


def test_splits_are_left_as_they_are_by_one_size(data):
    basis = find_basis(data, SHAPE)
    assert basis.data.held_out.rows.tolist() == data.held_out.rows.tolist()
    assert basis.data.train.rows.tolist() == data.train.rows.tolist()

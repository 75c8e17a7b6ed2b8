"""Sample quality: that its figures order what a person would order, and what training and its
classifier promise.
"""

import json
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab.quality import QUALITY_METRICS, check_quality, quality, quality_ineligibility
from ditlab.quality import classifier as classifiers
from ditlab.quality.classifier import SmallClassifier, cached_classifier
from ditlab.quality.eligibility import find_basis
from ditlab.quality.images import batches, find_fields, real_images
from ditlab.quality.sample_quality import QualityReference
from ditlab.spec.data import ArrowData, DigitsData
from support.command import run_here
from support.damage import refused
from support.datasets.writing import image_store
from support.models.draws import seeded
from support.orders import arrow_data
from support.trainings.workers import tiny, train_here, train_workers

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def data(home):
    return open_data(DigitsData(), home)


@pytest.fixture(scope="module")
def reference(data, home):
    """Trains the digits' classifier, in a third of the steps: 1 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifiers, "STEPS", 350)
        return QualityReference(find_basis(data, SHAPE), home)


def pixels(reference, view):
    return torch.cat([images for images, _ in batches(view, reference.basis.classes[0], CPU)])


def noisy(images, std):
    return (images + std * torch.randn(images.shape, generator=seeded())).clamp(-1, 1)


def blurred(images):
    row = torch.tensor([0.25, 0.5, 0.25])
    return nn.functional.conv2d(
        nn.functional.pad(images, (1, 1, 1, 1), value=-1.0), (row[:, None] * row)[None, None]
    )


# What the figures mean, on real digits


def test_worse_images_are_further_away(reference):
    real = pixels(reference, reference.real.held_out)
    noise = noisy(torch.zeros_like(real), 1.0)
    worse = [real, noisy(real, 0.4), noisy(real, 0.8), noise]
    for sets in (worse, [real, 0.5 * real + 0.5 * blurred(real), blurred(real), noise]):
        found = [reference.measure(images) for images in sets]
        for name in ("quality/frechet", "quality/kernel"):
            values = [values[name] for values in found]
            assert all(after > 1.3 * before for before, after in pairwise(values)), (name, values)


def test_real_images_that_nothing_learned_from_are_the_floor(reference):
    """The kernel distance of held-out images is zero within its error."""
    real = pixels(reference, reference.real.held_out)
    floor = reference.measure(real)
    assert abs(floor["quality/kernel"]) < 2 * floor["quality/kernel_error"]


def test_one_good_image_again_and_again_is_no_good_sample(reference):
    """Nor is one without two of the ten classes."""
    real = pixels(reference, reference.real.held_out)
    labels = reference.real.held_out.gather("label", np.arange(len(real)))
    floor = reference.measure(real)["quality/frechet"]
    assert reference.measure(real[:1].repeat(180, 1, 1, 1))["quality/frechet"] > 20 * floor
    assert reference.measure(real[labels < 8])["quality/frechet"] > 1.5 * floor


def test_copies_are_distinguished_from_honest_samples(reference):
    """Copies are as good as real images by every other figure."""
    real = pixels(reference, reference.real.held_out)
    trained = pixels(reference, reference.real.train)[:400]
    honest, copied, nearly = map(reference.measure, (real, trained, noisy(trained, 0.1)))
    expected = honest["quality/nearest_held_out"]
    assert honest["quality/nearest"] == expected == copied["quality/nearest_held_out"]
    assert copied["quality/nearest"] == 0 and nearly["quality/nearest"] < 0.5 * expected
    assert abs(copied["quality/kernel"]) < 3 * copied["quality/kernel_error"]


def test_the_reference_is_unknown_to_the_classifier(data):
    real = real_images(data)
    train = sorted(data.train.rows)
    assert sorted([*real.fit.rows, *real.reference.rows]) == sorted(real.train.rows) == train
    assert not {*train} & {*real.held_out.rows}


def test_computed_rows_are_split_in_the_same_way(tmp_path):
    order = {"kind": "interleaved", "streams": 2}
    spec = arrow_data(hold_out=0.25, order=order, **store(tmp_path / "store"))
    splits = open_data(spec, Home(tmp_path))
    real = real_images(splits)
    listed = splits.train.rows[np.arange(len(splits.train))].tolist()
    assert sorted([*real.fit.rows, *real.reference.rows]) == sorted(real.train.rows) == listed
    assert not set(listed) & set(real.held_out.rows[np.arange(len(real.held_out))].tolist())
    assert not quality_ineligibility(tiny(), splits)


def test_values_beyond_the_range_are_clipped(reference):
    real = pixels(reference, reference.real.held_out)
    far = torch.where(real == 1, 40.0, real)
    assert reference.measure(far) == reference.measure(real)


def test_the_same_numbers_from_what_is_kept(reference, data, home):
    real = pixels(reference, reference.real.held_out)
    assert quality(real, data, home) == reference.measure(real)
    (kept,) = [*home.classifiers.glob("*.safetensors")]
    with safe_open(kept, framework="pt") as file:
        record = json.loads(file.metadata()["record"])
    assert record["accuracy"] > 0.95 and record["samples"] == 808


# The classifier


def trained(data, beat=lambda: None):
    (fields,) = find_fields(data.train.columns, SHAPE)
    return classifiers.train_classifier(real_images(data), fields, beat)


def same_bits(one, two):
    return all(map(torch.equal, one.state_dict().values(), two.state_dict().values()))


@pytest.mark.usefixtures("few_steps")
def test_the_same_weights_whatever_happened_before(data):
    """Nor does the training touch a random state."""

    def states():
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()

    beats = []
    one = trained(data, lambda: beats.append(1))
    torch.manual_seed(2)
    torch.set_num_threads(2)
    before = states()
    with torch.no_grad():
        two = trained(data)
    assert states() == before and len(beats) == 20 and torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert same_bits(one.network, two.network)
    assert replace(one, network=two.network) == two


@pytest.mark.parametrize("shape", [(1, 8, 8), (4, 33, 20)])
def test_images_of_any_size(shape):
    network = SmallClassifier(shape, 7, seeded())
    images = torch.randn(3, *shape)
    assert network.features(images).shape == (3, 64) and network(images).shape == (3, 7)
    assert sum(parameter.numel() for parameter in network.parameters()) < 400_000


def keep(data, home, beat=lambda: None):
    (fields,) = find_fields(data.train.columns, SHAPE)
    return cached_classifier(data, real_images(data), fields, home, beat)


@pytest.mark.usefixtures("few_steps")
def test_one_trains_and_the_others_wait(data, tmp_path):
    inside, beats = threading.Event(), []
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(keep, data, Home(tmp_path), inside.set)
        assert inside.wait(60)
        second = keep(data, Home(tmp_path), lambda: beats.append(1))
        assert same_bits(first.result().network, second.network)
    assert len(beats) < 20  # of waiting: none of training


@pytest.mark.usefixtures("few_steps")
def test_what_is_not_whole_is_made_again(data, tmp_path):
    made = keep(data, Home(tmp_path))
    (kept,) = [*Home(tmp_path).classifiers.glob("*.safetensors")]
    whole = kept.read_bytes()
    changed = whole.replace(b'accuracy\\": 0', b'accuracy\\": 1')
    for damaged in (b"", whole[:-100], whole[:-1] + b"\x01", changed):
        kept.write_bytes(damaged)
        assert same_bits(keep(data, Home(tmp_path)).network, made.network)
    beats = []
    assert same_bits(keep(data, Home(tmp_path), lambda: beats.append(1)).network, made.network)
    assert not beats


@pytest.mark.usefixtures("few_steps")
def test_another_split_has_another_classifier(data, tmp_path):
    """One that never saw what is held out now."""
    for share in (0.1, 0.2):
        keep(open_data(DigitsData(hold_out=share), Home(tmp_path)), Home(tmp_path))
    assert len([*Home(tmp_path).classifiers.glob("*.safetensors")]) == 2


def store(folder, num=400, shape=(1, 8, 8), labels=True):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 255, (num, *shape), dtype=np.uint8)
    classes = {"label": generator.integers(0, 10, num)} if labels else {}
    return image_store(folder, images, **classes)


@pytest.mark.usefixtures("few_steps")
def test_a_classifier_that_learned_nothing_warns(tmp_path):
    splits = open_data(ArrowData(hold_out=0.25, **store(tmp_path / "store")), Home(tmp_path))
    warnings = []
    quality(torch.rand(100, *SHAPE), splits, Home(tmp_path / "home"), warn=warnings.append)
    assert len(warnings) == 1 and "say little on data.path" in warnings[0]


def test_a_home_that_cannot_be_written_is_a_user_error(data, tmp_path):
    (tmp_path / "classifiers").write_text("in the way")
    with refused(r"DITLAB_HOME=.* cannot be written"):
        keep(data, Home(tmp_path))


# Where it applies


@pytest.mark.parametrize(
    ("made", "model", "reason"),
    [
        ({"labels": False}, {}, "holds no images (1, 8, 8) with class indices"),
        ({"num": 200}, {}, "holds out 20 images, and at least 50 are needed"),
        (
            {"shape": (1, 128, 128)},
            {"model__image_size": 128, "model__patch_size": 16},
            "128 x 128 pixels are not 8",
        ),
    ],
)
def test_data_that_gives_no_figures_is_refused(tmp_path, made, model, reason):
    spec = store(tmp_path / "store", **made)
    experiment = tiny(data=spec, evaluation__quality=100, **model)
    splits = open_data(experiment.data, Home(tmp_path))
    reason = re.escape(reason)
    with refused(rf"evaluation\.quality=100 cannot be measured, as .*{reason}.*quality=0"):
        check_quality(experiment, splits)
    with refused(reason):
        quality(torch.zeros(100, *splits.train.columns["image"].shape), splits, Home(tmp_path))


@pytest.mark.parametrize("num", [99, -100])
def test_few_samples_are_refused(num):
    with pytest.raises(ValueError, match="quality"):
        tiny(evaluation__quality=num)


# In training


@pytest.fixture
def in_training(reference, home, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(home.root))
    return home.root


def run(home, folder, **evaluation):
    settings = {"every": 3, "samples": 4, "limit": 40, **evaluation}
    return train_here(tiny(evaluation=settings, sampling={"steps": 3}), home, folder)


def test_every_evaluation_has_quality_figures_and_training_goes_on_as_without(
    in_training, tmp_path
):
    outcome, recorder = run(in_training, tmp_path / "one", quality=100)
    _, again = run(in_training, tmp_path / "two", quality=100, every=6, samples=50)
    _, without = run(in_training, tmp_path / "three")
    assert set(QUALITY_METRICS) <= set(outcome.metrics)
    measured = [step for step, values in recorder.values.items() if "quality/frechet" in values]
    assert measured == [0, 3, 6]
    for name in QUALITY_METRICS:  # the same noise, however many are drawn at once
        assert again.values[6][name] == pytest.approx(recorder.values[6][name], rel=1e-3)
    assert recorder.losses == again.losses == without.losses


def test_the_training_of_the_classifier_counts_as_progress(few_steps, tmp_path, monkeypatch):
    """Or the worker would be taken for one that hangs."""
    activities = []
    tick = lambda marker: activities.append(marker.activity)  # noqa: E731
    monkeypatch.setattr("ditlab.training.reporting.ProgressMarker.tick", tick)
    run(tmp_path / "home", tmp_path / "checkpoints", quality=100, every=10)
    assert activities.count("measuring samples") >= 20


@pytest.mark.slow
def test_two_workers(in_training, tmp_path):
    """Under ZeRO-3 all draw; one measures."""
    jobs = []
    for stage in (1, 3):
        job = tiny(
            evaluation={"every": 6, "samples": 0, "limit": 40, "quality": 100},
            sampling={"steps": 2},
            engine={"zero": {"stage": stage}},
            resources={"workers": 2},
        )
        jobs.append((job, in_training, tmp_path / str(stage)))
    assert [sorted(found) for found in train_workers(jobs)] == [[1, 2, 3, 4, 5, 6]] * 2


def test_evaluate_repeats_what_training_measured(in_training, tmp_path, capfd, monkeypatch):
    """To the bit, by the run's threads; by other batches the difference is named, and nothing of it
    is added; with another sampler the quality alone is measured.
    """

    def said(*arguments):
        found = run_here(capfd, monkeypatch, *arguments, "--json").ok()
        return found.json, " ".join(found.err.split())

    spec = tmp_path / "spec.yaml"
    evaluation = {"every": 4, "samples": 0, "quality": 100}
    small = tiny(name="small", evaluation=evaluation, training={"steps": 4}, sampling={"steps": 2})
    spec.write_text(json.dumps(small.to_dict()))
    trained, _ = said("train", spec, "--local")
    found, note = said("evaluate", "small")
    groups = ("eval/", "quality/")
    before = {name: each for name, each in trained["metrics"].items() if name.startswith(groups)}
    assert found["metrics"] == before and set(QUALITY_METRICS) <= set(before)
    assert "never with" in note and not found["differences"]
    assert found["measurements"]["quality"]["words"]["number"] == "100"
    assert found["intervals"]["eval/velocity"][0] < before["eval/velocity"]
    journal = in_training / "train" / found["run_id"] / "journal.jsonl"
    content = journal.read_bytes()
    other, note = said("evaluate", "small", "--batch", "5", "--quality", "120")
    assert other["differences"] == {
        "eval": ["evaluation batch 5 in place of 16"],
        "quality": ["batch 5 in place of 16", "number 120 in place of 100"],
    }
    assert "eval/... is not measured as in training: evaluation batch 5 in place of 16; not" in note
    assert journal.read_bytes() == content
    other, note = said("evaluate", "small", "--quality", "100", "--set", "sampling.steps=3")
    assert set(other["metrics"]) == set(QUALITY_METRICS)
    assert other["metrics"]["quality/frechet"] != before["quality/frechet"]
    assert "sampling.steps=3, not added to the run" in note and journal.read_bytes() == content

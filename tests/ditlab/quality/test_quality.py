"""Sample quality: that its figures order what a person would order, and what training and its
classifier promise.
"""

import json
import math
import random
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from ditlab.data.splits import open_data
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.writing import write_store
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.quality import QUALITY_METRICS, check_quality, quality, quality_ineligibility
from ditlab.quality import classifier as classifiers
from ditlab.quality.classifier import SmallClassifier, cached_classifier
from ditlab.quality.eligibility import find_basis
from ditlab.quality.images import batches, find_fields, real_images
from ditlab.quality.sample_quality import QualityReference
from ditlab.receipts.records import TAG_PREFIX, Measurement
from ditlab.spec.data import ArrowData, DigitsData
from support import special_files
from support.command import run_here
from support.orders import arrow_data
from support.trainings.workers import tiny, train_here, train_workers

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def data(home):
    return open_data(DigitsData(), home)


@pytest.fixture(scope="module")
def reference(data, home):
    """Trains the digits' classifier, in a third of the steps: 1 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifiers, "STEPS", 350)
        return QualityReference(find_basis(data, SHAPE), home)


@pytest.fixture
def few_steps(monkeypatch):
    monkeypatch.setattr(classifiers, "STEPS", 20)


def pixels(reference, view):
    return torch.cat([images for images, _ in batches(view, reference.basis.classes[0], CPU)])


def noisy(images, std):
    return (
        images + std * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    ).clamp(-1, 1)


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
    """The kernel distance of held-out images is zero within its error; noise is a hundred errors
    away.
    """
    real = pixels(reference, reference.real.held_out)
    floor, far = reference.measure(real), reference.measure(noisy(torch.zeros_like(real), 1.0))
    assert abs(floor["quality/kernel"]) < 2 * floor["quality/kernel_error"]
    assert far["quality/kernel"] > 30 * far["quality/kernel_error"]
    assert far["quality/frechet"] > 20 * floor["quality/frechet"]


def test_one_good_image_again_and_again_is_no_good_sample(reference):
    """Nor is one without two of the ten classes."""
    real = pixels(reference, reference.real.held_out)
    labels = torch.cat(
        [labels for _, labels in batches(reference.real.held_out, reference.basis.classes[0], CPU)]
    )
    floor = reference.measure(real)["quality/frechet"]
    assert reference.measure(real[:1].repeat(180, 1, 1, 1))["quality/frechet"] > 20 * floor
    assert reference.measure(real[labels < 8])["quality/frechet"] > 1.5 * floor


def test_copies_are_told_from_honest_samples(reference):
    """Copies are as good as real images by every other figure."""
    real, trained = (
        pixels(reference, reference.real.held_out),
        pixels(reference, reference.real.train)[:400],
    )
    honest, copied, nearly = (
        reference.measure(images) for images in (real, trained, noisy(trained, 0.1))
    )
    expected = honest["quality/nearest_held_out"]
    assert honest["quality/nearest"] == expected == copied["quality/nearest_held_out"]
    assert copied["quality/nearest"] == 0 and nearly["quality/nearest"] < 0.5 * expected
    assert abs(copied["quality/kernel"]) < 3 * copied["quality/kernel_error"]


def test_the_reference_is_unknown_to_the_classifier(data):
    real = real_images(data)
    fit, compared, train = (
        set(view.rows.tolist()) for view in (real.fit, real.reference, data.train)
    )
    assert not fit & compared and fit | compared == train == set(real.train.rows.tolist())
    assert not train & set(real.held_out.rows.tolist())


def test_computed_rows_are_split_in_the_same_way(tmp_path):
    splits = open_data(
        arrow_data(
            hold_out=0.25, order={"kind": "interleaved", "streams": 2}, **store(tmp_path / "store")
        ),
        Home(tmp_path),
    )
    real = real_images(splits)
    listed = splits.train.rows[np.arange(len(splits.train))].tolist()
    assert sorted([*real.fit.rows, *real.reference.rows]) == sorted(real.train.rows) == listed
    assert not set(listed) & set(real.held_out.rows[np.arange(len(real.held_out))].tolist())
    assert not quality_ineligibility(tiny(), splits)


def test_values_beyond_the_range_are_clipped_and_nan_stays(reference):
    real = pixels(reference, reference.real.held_out)
    far = torch.where(real == 1, 40.0, real)
    assert reference.measure(far) == reference.measure(real)
    real[5, 0, 2, 2] = float("nan")
    found = reference.measure(real)
    assert tuple(found) == QUALITY_METRICS and all(math.isnan(value) for value in found.values())


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
    return all(
        torch.equal(one.state_dict()[name], value) for name, value in two.state_dict().items()
    )


@pytest.mark.usefixtures("few_steps")
def test_the_same_weights_whatever_happened_before(data):
    torch.manual_seed(1)
    one = trained(data)
    torch.manual_seed(2)
    torch.randn(7)
    torch.set_num_threads(2)
    with torch.no_grad():
        two = trained(data)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert same_bits(one.network, two.network)
    assert replace(one, network=two.network) == two


@pytest.mark.usefixtures("few_steps")
def test_no_random_state_is_touched(data):
    def states():
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()

    before = states()
    beats = []
    trained(data, lambda: beats.append(1))
    assert states() == before and len(beats) == 20


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 64), (1, 28, 28), (4, 33, 20), (3, 64, 64)])
def test_images_of_any_size(shape):
    network = SmallClassifier(shape, 7, torch.Generator().manual_seed(0))
    images = torch.randn(3, *shape)
    assert network.features(images).shape == (3, 64) and network(images).shape == (3, 7)
    assert sum(parameter.numel() for parameter in network.parameters()) < 400_000


def keep(data, home, beat=lambda: None):
    (fields,) = find_fields(data.train.columns, SHAPE)
    return cached_classifier(data, real_images(data), fields, home, beat)


@pytest.mark.usefixtures("few_steps")
def test_one_trains_and_the_others_wait(data, tmp_path):
    inside, found = threading.Event(), {}

    def trains():
        found["first"] = keep(data, Home(tmp_path), beat=inside.set)

    first = threading.Thread(target=trains)
    first.start()
    assert inside.wait(60)
    beats = []
    found["second"] = keep(data, Home(tmp_path), lambda: beats.append(1))
    first.join()
    assert same_bits(found["first"].network, found["second"].network)
    assert len(beats) < 20  # of waiting: none of training


@pytest.mark.usefixtures("few_steps")
def test_what_is_not_whole_is_made_again(data, tmp_path):
    made = keep(data, Home(tmp_path))
    (kept,) = [*Home(tmp_path).classifiers.glob("*.safetensors")]
    whole = kept.read_bytes()
    for damaged in (
        b"",
        whole[:-100],
        whole[:-1] + b"\x01",
        whole.replace(b'accuracy\\": 0', b'accuracy\\": 1'),
    ):
        kept.write_bytes(damaged)
        assert same_bits(keep(data, Home(tmp_path)).network, made.network)
    special_files.put("pipe", kept)
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


def store(folder, num=400, shape=(1, 8, 8), labels=True, seed=0):
    generator = np.random.default_rng(seed)
    columns = {"image": Column(dtype="uint8", shape=shape, value_range=(0, 255))}
    rows = {"image": generator.integers(0, 255, (num, *shape), dtype=np.uint8)}
    if labels:
        columns["label"] = Column(dtype="int64", num_classes=10)
        rows["label"] = generator.integers(0, 10, num)
    write_store(folder, columns, [rows], name="made", description="", source=Source(kind="made"))
    return {"kind": "arrow", "path": str(folder)}


@pytest.mark.usefixtures("few_steps")
def test_a_classifier_that_learned_nothing_warns(tmp_path):
    splits = open_data(ArrowData(hold_out=0.25, **store(tmp_path / "store")), Home(tmp_path))
    warnings = []
    quality(torch.rand(100, *SHAPE), splits, Home(tmp_path / "home"), warn=warnings.append)
    assert len(warnings) == 1 and "say little on data.path" in warnings[0]


def test_a_home_that_cannot_be_written_is_the_users_to_mend(data, tmp_path):
    (tmp_path / "classifiers").write_text("in the way")
    with pytest.raises(UserError, match=r"DITLAB_HOME=.* cannot be written"):
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
        ({"num": 600}, {}, ""),
    ],
)
def test_data_that_gives_no_figures_is_refused(tmp_path, made, model, reason):
    spec = store(tmp_path / "store", **made)
    experiment = tiny(data=spec, evaluation__quality=100, **model)
    splits = open_data(experiment.data, Home(tmp_path))
    found = quality_ineligibility(experiment, splits)
    assert reason in found and bool(found) == bool(reason)
    if reason:
        with pytest.raises(
            UserError,
            match=r"evaluation\.quality=100 cannot be measured, as .*evaluation\.quality=0",
        ):
            check_quality(experiment, splits)
        with pytest.raises(UserError):
            quality(torch.zeros(100, *splits.train.columns["image"].shape), splits, Home(tmp_path))


def test_digits_give_figures(data):
    assert quality_ineligibility(tiny(), data) == ""
    assert "holds out 0 images" in quality_ineligibility(
        tiny(), replace(data, held_out=replace(data.held_out, rows=data.held_out.rows[:0]))
    )


@pytest.mark.parametrize("num", [1, 99, -100])
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
    measured = {
        step: values for step, values in recorder.values.items() if "quality/frechet" in values
    }
    assert list(measured) == [0, 3, 6]
    for name in QUALITY_METRICS:  # the same noise, however many are drawn at once
        assert again.values[6][name] == pytest.approx(recorder.values[6][name], rel=1e-3)
    assert recorder.losses == again.losses == without.losses


def test_the_training_of_the_classifier_counts_as_progress(few_steps, tmp_path, monkeypatch):
    """Or the worker would be taken for one that hangs."""
    activities = []
    monkeypatch.setattr(
        "ditlab.training.reporting.ProgressMarker.tick",
        lambda marker: activities.append(marker.activity),
    )
    run(tmp_path / "home", tmp_path / "checkpoints", quality=100, every=10)
    assert activities.count("measuring samples") >= 20


@pytest.mark.slow
def test_two_workers(in_training, tmp_path):
    """Under ZeRO-3 all draw; one measures."""
    evaluation = {"every": 6, "samples": 0, "limit": 40, "quality": 100}
    jobs = [
        tiny(
            evaluation=evaluation,
            sampling={"steps": 2},
            engine={"zero": {"stage": stage}},
            resources={"workers": 2},
        )
        for stage in (1, 3)
    ]
    losses = train_workers(
        [(job, in_training, tmp_path / str(place)) for place, job in enumerate(jobs)]
    )
    assert [sorted(found) for found in losses] == [[1, 2, 3, 4, 5, 6]] * 2


def test_evaluate_repeats_what_training_measured(in_training, tmp_path, capfd, monkeypatch):
    """To the bit, by the run's threads; by other batches the difference is named, and nothing of it
    is added.
    """
    spec = tmp_path / "spec.yaml"
    evaluation = {"every": 4, "samples": 0, "quality": 100}
    small = tiny(name="small", evaluation=evaluation, training={"steps": 4}, sampling={"steps": 2})
    spec.write_text(json.dumps(small.to_dict()))
    trained = run_here(capfd, monkeypatch, "train", spec, "--local", "--json")
    assert trained.code == 0, trained.err
    said = run_here(capfd, monkeypatch, "evaluate", "small", "--json")
    assert said.code == 0 and "never with" in " ".join(said.err.split()), said.err
    found, before = said.json["metrics"], trained.json["metrics"]
    repeated = {
        name: value for name, value in before.items() if name.startswith(("eval/", "quality/"))
    }
    assert (
        repeated == found and set(QUALITY_METRICS) <= set(repeated) and not said.json["differences"]
    )
    assert said.json["measurements"]["quality"]["words"]["number"] == "100"
    assert said.json["intervals"]["eval/velocity"][0] < found["eval/velocity"]
    journal = in_training / "train" / said.json["run_id"] / "journal.jsonl"
    tags = [
        json.loads(line)["values"]
        for line in journal.read_text().splitlines()
        if '"kind":"tags"' in line
    ]
    ways = [
        Measurement.parse(values[f"{TAG_PREFIX}quality"])
        for values in tags
        if f"{TAG_PREFIX}quality" in values
    ]
    assert len(ways) == 2 and ways[0] == ways[1]
    other = run_here(
        capfd, monkeypatch, "evaluate", "small", "--batch", "5", "--quality", "120", "--json"
    )
    assert other.json["differences"] == {
        "eval": ["evaluation batch 5 in place of 16"],
        "quality": ["batch 5 in place of 16", "number 120 in place of 100"],
    }
    assert (
        "eval/... is not measured as in training: evaluation batch 5 in place of 16; not"
        in " ".join(other.err.split())
    )
    assert len(
        [line for line in journal.read_text().splitlines() if '"kind":"tags"' in line]
    ) == len(tags)
    few = run_here(capfd, monkeypatch, "evaluate", "small", "--quality", "50")
    assert few.code == 2 and "50 is not in the range" in few.err

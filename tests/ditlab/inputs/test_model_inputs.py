"""Stored features equal those computed in the step; encoders are opened and freed when they should
be.
"""

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ditlab.data.images.captions import caption_column, encode_captions
from ditlab.data.splits import open_data
from ditlab.data.stores.manifest import Column
from ditlab.data.stores.store import Store
from ditlab.data.stores.view import View
from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from ditlab.home import Home
from ditlab.inputs.model_inputs import ModelInputs, check_inputs
from ditlab.runs.prepare import absolute_paths
from ditlab.spec.experiment import class_for
from ditlab_addons.encode.encoding import image_columns, text_columns, text_shapes
from support.damage import refused
from support.datasets.tiny_encoders import write_image_encoder, write_text_encoder
from support.datasets.writing import written
from support.trainings.family_specs import PIXELHDM
from support.trainings.workers import newest, same_state, tiny, train_here

CPU = torch.device("cpu")
CAPTIONS = ["a red seven", "sept rouge, é", "a green circle on the left of a blue square", "two"]
ROWS = 40
MODEL = {**PIXELHDM, "patch_depth": 2, "max_resolution": 32, "text_length": 32}
OBJECTIVE = {"alignment_block": 1, "alignment_width": 24, "alignment_until": 1000}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("encoders")
    return {
        "text": str(write_text_encoder(root / "text", width=32)),
        "image": str(write_image_encoder(root / "image", width=24, patch=4)),
    }


@pytest.fixture(scope="module")
def pictures():
    return np.random.default_rng(0).integers(0, 256, (ROWS, 3, 16, 8), dtype=np.uint8)


def write(folder, pictures, more, without=()):
    """Write a store of images with captions and further columns."""
    texts = [CAPTIONS[row % len(CAPTIONS)].encode() for row in range(ROWS)]
    captions = encode_captions(texts, max(map(len, texts)))
    values = {"image": pictures, "caption": captions, **more}
    columns = {
        "image": Column(dtype="uint8", shape=pictures.shape[1:], value_range=(0, 255)),
        "caption": caption_column(captions.shape[1]),
    }
    columns |= {
        name: Column(dtype=str(each.dtype), shape=each.shape[1:]) for name, each in more.items()
    }
    kept = {name: column for name, column in columns.items() if name not in without}
    return written(folder, kept, {name: values[name] for name in kept}).path


@pytest.fixture(scope="module")
def raw(tmp_path_factory, pictures):
    return write(tmp_path_factory.mktemp("stores") / "raw", pictures, {})


@pytest.fixture(scope="module")
def encoded(tmp_path_factory, pictures, folders):
    """Store of the same images with features, and without captions."""
    encoder = FrozenTextEncoder(folders["text"], None, 32)
    texts = [CAPTIONS[row % len(CAPTIONS)] for row in range(ROWS)]
    longest = max(encoder.num_tokens(texts))
    more = text_columns(encoder, texts, longest)
    assert more.keys() == text_shapes(encoder, longest).keys()
    more |= image_columns(FrozenImageEncoder(folders["image"], None, 4), pictures)
    return write(
        tmp_path_factory.mktemp("stores") / "encoded", pictures, more, without=("caption",)
    )


def experiment(store, encoders=None, **changes: Any):
    sections = {
        "model": MODEL,
        "objective": OBJECTIVE,
        "data": {"kind": "arrow", "path": str(store), "hold_out": 0.2},
        "encoders": {"precision": "fp32", **(encoders or {})},
        "batch": {"size": 8, "micro": 4},
        "sampling": {"steps": 1, "height": 16, "width": 8, "guidance": 1.0},
    }
    return tiny(**(sections | changes))


def rows(spec, num=6):
    """Return an experiment's inputs, and the first rows as its model takes them."""
    view = whole(spec)
    inputs = ModelInputs.from_experiment(spec, view.columns, CPU)
    taken = {field.name: view.gather(field.name, np.arange(num)) for field in inputs.fields}
    return inputs, inputs.prepare_batch(taken, view.columns)


def whole(spec):
    store = Store.open(Path(spec.data.path))  # type: ignore[union-attr]
    return View(store, np.arange(len(store)), "data.path=store")


def test_features_are_made_of_captions_and_images(raw, folders, pictures):
    spec = experiment(raw, folders)
    inputs, batch = rows(spec)
    assert [field.name for field in inputs.fields] == ["image", "caption"]
    assert set(batch) == inputs.names == {field.name for field in spec.batch_fields()}
    expected = FrozenTextEncoder(folders["text"], 32, 32).encode(
        [CAPTIONS[row % 4] for row in range(6)]
    )
    for name, values in expected.items():
        assert torch.equal(batch[name], values)
    images = torch.from_numpy(pictures[:6]).float() / 127.5 - 1
    assert torch.allclose(batch["image"], images, atol=1e-6)
    made = FrozenImageEncoder(folders["image"], 24, 4).encode(batch["image"])
    assert torch.equal(batch["image_features"], made)


def test_stored_features_are_those_of_the_step(raw, encoded, folders):
    inputs, stored = rows(experiment(encoded))
    _, made = rows(experiment(raw, folders))
    assert len(inputs.fields) == 5
    tokens = made["text"].shape[1]
    assert (
        torch.equal(stored["text_mask"][:, :tokens], made["text_mask"])
        and not stored["text_mask"][:, tokens:].any()
    )
    for name in ("image", "text_pooled", "image_features", "text"):
        values = stored[name][:, :tokens] if name == "text" else stored[name]
        assert values.dtype == torch.float32
        assert torch.allclose(values, made[name], rtol=2**-11, atol=1e-6)  # float16's rounding


def test_stored_features_are_not_computed_again(encoded, folders, monkeypatch):
    """Both encoders are named: one is for prompts, the other is not used."""
    monkeypatch.setattr(FrozenImageEncoder, "__init__", None)
    inputs, batch = rows(experiment(encoded, folders))
    assert {field.name for field in inputs.fields} == set(batch) == inputs.names
    assert inputs.encode is not None and inputs.encode(["a red seven"])["text_pooled"].shape == (
        1,
        32,
    )


def test_bf16_features_come_as_float32(raw, folders):
    _, batch = rows(experiment(raw, {**folders, "precision": "bf16"}))
    assert {values.dtype for name, values in batch.items() if name != "text_mask"} == {
        torch.float32
    }
    _, exact = rows(experiment(raw, folders))
    for name in ("text", "image_features"):
        assert 0 < (batch[name] - exact[name]).abs().max() < 0.2


def test_a_few_fields(raw, folders):
    inputs, batch = rows(experiment(raw, folders))
    view = whole(experiment(raw))
    few = inputs.only(("text", "text_mask", "text_pooled"))
    assert [field.name for field in few.fields] == ["caption"]
    found = few.prepare_batch({"caption": view.gather("caption", np.arange(6))}, view.columns)
    assert set(found) == {"text", "text_mask", "text_pooled"} and torch.equal(
        found["text"], batch["text"]
    )


def test_encoders_are_checked_before_anything_starts(raw, encoded, folders, home, monkeypatch):
    # no weights are read
    monkeypatch.setattr("ditlab.encoders.checkpoint.EncoderCheckpoint.network", None)
    for spec in (experiment(raw, folders), experiment(encoded), experiment(encoded, folders)):
        check(spec, home)
    wide = {**MODEL, "width": 64, "mrope_widths": [8, 4, 4]}
    with refused(r"encoders\.text=.* gives 32 features a token, but model\.width=64"):
        check(experiment(raw, folders, model=wide), home)


def test_cut_captions_are_counted_and_warned_about_ever_more_seldom(raw, folders):
    heard = []
    # so that the same captions are cut again, as those of an epoch are
    encoders = {**folders, "cache": 0}
    spec = experiment(raw, encoders, model={**MODEL, "text_length": 3})
    view = whole(spec)
    inputs = ModelInputs.from_experiment(spec, view.columns, CPU, heard.append)
    taken = {field.name: view.gather(field.name, np.arange(4)) for field in inputs.fields}
    for _ in range(12):
        assert inputs.prepare_batch(taken, view.columns)["text"].shape[1] == 3
    cut, rest = divmod(inputs._extractor.text.num_truncated, 12)
    assert not rest and 1 < cut <= 4 and len(heard) == 2 and "model.text_length=3" in heard[0]
    assert f"({cut} so far)" in heard[0] and f"({10 * cut} so far)" in heard[1]


def test_a_retired_encoder_is_freed(raw, folders):
    inputs, _ = rows(experiment(raw, folders))
    held = weakref.ref(inputs._extractor.image.network)
    assert not inputs.retire(()) and held() is not None
    assert inputs.retire(("image_features",)) and not inputs.retire(("image_features",))
    gc.collect()
    assert held() is None
    view = whole(experiment(raw))
    taken = {field.name: view.gather(field.name, np.arange(2)) for field in inputs.fields}
    texts = {"text", "text_mask", "text_pooled"}
    assert set(inputs.prepare_batch(taken, view.columns)) == {"image"} | texts
    assert inputs.retire(())  # a run that went back to an earlier step
    assert "image_features" in inputs.prepare_batch(taken, view.columns)


def test_retired_columns_are_not_read(encoded):
    inputs, _ = rows(experiment(encoded))
    assert inputs.retire(("image_features",))
    assert "image_features" not in {field.name for field in inputs.fields} | inputs.names


def test_only_a_model_that_reads_texts_has_an_encoder_of_prompts(raw, folders):
    learned = experiment(
        raw, {"image": folders["image"]}, model={**MODEL, "text_encoder": "learned"}
    )
    for spec, has_one in ((experiment(raw, folders), True), (tiny(), False), (learned, False)):
        encode = ModelInputs.from_experiment(spec, (), CPU).encode
        assert (encode is not None) == has_one


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (
            (),
            r"raw holds no features of captions \(text, text_mask, text_pooled\), .*set "
            r"encoders\.text .*--encode-text",
        ),
        (
            ("text",),
            r"raw holds no features of images .*set encoders\.image .*--encode-images`, or set "
            r"objective\.weights\.alignment=0",
        ),
    ],
)
def test_features_without_a_source_are_refused(raw, folders, home, named, words):
    with refused(words):
        check(experiment(raw, {name: folders[name] for name in named}), home)


def test_features_that_do_not_fit_are_refused(pictures, encoded, folders, home, tmp_path):
    """Patches of 8 pixels: 2 of an image of 16 x 8, of which the store has the features of 8."""
    with refused(r"image_features are of 8 patches, and images of 16 x 8 pixels have 2 \(model"):
        check(experiment(encoded, model={**MODEL, "patch_size": 8}), home)
    silent = write(tmp_path / "store", pictures, {}, without=("caption",))
    with refused(r"neither features of captions nor captions for encoders\.text="):
        check(experiment(silent, folders), home)


def check(spec, home):
    check_inputs(spec, open_data(spec.data, home), home)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def test_the_hash_depends_on_all_that_features_depend_on(raw, folders):
    plain = experiment(raw, {"precision": "bf16"})
    spec = plain.to_dict()
    del spec["encoders"]
    assert class_for(spec).model_validate(spec).content_hash() == plain.content_hash()
    known = {plain.content_hash()}
    for change in (
        {"text": "a"},
        {"text": "b"},
        {"image": "a"},
        {"precision": "bf16", "image": "a"},
    ):
        found = experiment(raw, change).content_hash()
        assert found not in known
        assert experiment(raw, {**change, "cache": 0, "compile": True}).content_hash() == found
        known.add(found)


def test_folders_become_absolute_and_names_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen").mkdir()
    given = {"text": "qwen", "image": "facebook/dinov3", "cache": 1}
    found = absolute_paths({"encoders": given}, Home(tmp_path))
    assert found == {"encoders": {**given, "text": str(tmp_path / "qwen")}}


def run(spec, folder, stop_after=None):
    return train_here(spec, folder / "home", folder / "checkpoints", stop_after)[1]


@pytest.fixture(scope="module")
def five_steps(raw, folders):
    """Five steps, the last two of them without the alignment loss."""
    return experiment(
        raw,
        folders,
        training={"steps": 5},
        objective={**OBJECTIVE, "alignment_until": 3},
        evaluation={"every": 3, "samples": 2, "limit": 4},
        checkpoint={"every": 1, "keep": 9},
    )


@pytest.fixture(scope="module")
def straight(five_steps, tmp_path_factory):
    """Folder, outcome and reporter of a training without a stop."""
    folder = tmp_path_factory.mktemp("straight")
    return folder, *train_here(five_steps, folder / "home", folder / "checkpoints")


@pytest.mark.parametrize("stop", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_training_with_encoders_resumes_exactly(stop, five_steps, straight, tmp_path):
    """Whatever the cache held, and whether fields retire before the stop or after it."""
    folder, _, reporter = straight
    aligned = [step for step, values in reporter.values.items() if "train/alignment" in values]
    assert aligned == [1, 2, 3] and reporter.pictures == [0, 3, 5]
    measured = [step for step, values in reporter.values.items() if "eval/alignment" in values]
    assert measured == [0, 3]
    run(five_steps, tmp_path / "stopped", stop_after=stop)
    assert min(run(five_steps, tmp_path / "stopped").losses) == stop + 1
    assert same_state(newest(folder / "checkpoints"), newest(tmp_path / "stopped" / "checkpoints"))


def test_metrics_of_a_run_leave_out_a_loss_that_ended(straight):
    _, outcome, _ = straight
    assert {"train/velocity", "eval/velocity"} <= outcome.metrics.keys()
    assert not {"train/alignment", "eval/alignment"} & outcome.metrics.keys()


def test_modules_of_the_loss_start_from_the_seed(encoded, tmp_path):
    """And from nothing that happened in the process before."""
    for seed in (1, 2):
        torch.manual_seed(seed)
        run(experiment(encoded, training={"steps": 1}), tmp_path / str(seed))
    assert same_state(*(newest(tmp_path / name / "checkpoints") for name in ("1", "2")))

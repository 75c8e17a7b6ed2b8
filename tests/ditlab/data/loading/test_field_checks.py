"""Checks of a store's columns against a model's fields: messages name the misfit and the settings
that fix it.
"""

import re
from typing import Literal

import numpy as np
import pytest

from ditlab.data.loading.field_checks import check_fields
from ditlab.data.stores.manifest import Column
from ditlab.data.stores.view import View
from ditlab_models.contract import ANY, BatchField, FieldOptions, ModelSpec
from ditlab_models.dit.spec import DiTSpec
from support.damage import refused
from support.datasets.bucketed import SIZES, bucketed
from support.datasets.writing import written

IMAGE = BatchField("image", (1, 3, 4), "float32", value_range=(-1, 1))
LABEL = BatchField("label", (), "int64", num_classes=5)


@pytest.fixture
def view(make_store):
    return View(make_store(), np.arange(99, -1, -1), "data.kind=test")


def view_of(tmp_path, column, values, name):
    store = written(tmp_path / "s", {name: column}, {name: values})
    return View(store, np.arange(len(values)), "data.path=s")


def test_fields_that_fit_pass(view):
    check_fields(view, [IMAGE, LABEL])
    check_fields(view, [BatchField("label", (), "int64", num_classes=1000)])


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            BatchField("mask", (4,), "bool"),
            "data.kind=test holds no column 'mask' (it holds image, label)",
        ),
        (
            BatchField("image", (3, 3, 4), "float32"),
            (
                "holds image (1, 3, 4), but the model takes (3, 3, 4); make the model's sizes "
                "those of the data or"
            ),
        ),
        (BatchField("image", (1, 3, 4), "bool"), "holds image as uint8, but the model takes bool"),
        (BatchField("label", (), "float32", (-1, 1)), "holds label without a value_range"),
        (
            BatchField(
                "label",
                (),
                "int64",
                num_classes=3,
                options=FieldOptions(num_classes="model.num_classes"),
            ),
            (
                "holds label from 0 to 4, but the model has 3 classes; set model.num_classes "
                "to 5 or change data."
            ),
        ),
    ],
)
def test_fields_that_do_not_fit_are_named_with_the_remedy(view, field, message):
    with refused(re.escape(message)):
        check_fields(view, [IMAGE, field])


@pytest.mark.parametrize(
    ("model", "shape", "remedy"),
    [
        (DiTSpec(image_size=28), (1, 8, 8), "set model.image_size to 8 or"),
        (DiTSpec(image_size=28), (3, 8, 8), "set model.channels to 3 and model.image_size to 8 or"),
        (DiTSpec(image_size=28), (8, 8), "make the model's sizes those of the data or"),
    ],
)
def test_settings_of_a_fitting_shape_are_named(tmp_path, model, shape, remedy):
    field = model.batch_fields()[0]
    column = Column(dtype="float32", shape=shape, value_range=field.value_range)
    view = view_of(tmp_path, column, np.zeros((2, *shape), np.float32), field.name)
    sentence = (
        f"holds {field.name} {shape}, but the model takes {field.shape}; {remedy} change data."
    )
    with refused(re.escape(sentence)):
        check_fields(view, [field], settable=True)


def test_another_vocabulary_names_the_setting(tmp_path):
    tokens = Column(dtype="uint8", shape=(16,), num_classes=256)
    view = view_of(tmp_path, tokens, np.zeros((2, 16), np.uint8), "tokens")
    options = FieldOptions(("model.length",), num_classes="model.vocabulary")
    for vocabulary in (50257, 100):
        field = BatchField("tokens", (16,), "int64", num_classes=vocabulary, options=options)
        problem = f"holds tokens of a vocabulary of 256, but the model's is {vocabulary}; "
        with refused(f"{problem}set model.vocabulary to 256 or import"):
            check_fields(view, [field], settable=True)
        with refused(f"{problem}import the data with the model's own tok"):
            check_fields(view, [field])
    short = BatchField("tokens", (8,), "int64", num_classes=256, options=options)
    with refused(r"set model\.length to 16 or"):
        check_fields(view, [short], settable=True)
    check_fields(view, [BatchField("tokens", (16,), "int64", num_classes=256)], settable=True)


def test_labels_below_zero_are_refused(tmp_path):
    view = view_of(tmp_path, Column(dtype="int64"), np.array([-1, 2]), "x")
    with refused(r"holds x from -1 to 2, but the model has 10 classes"):
        check_fields(view, [BatchField("x", (), "int64", num_classes=10)])


class ImagesLike(ModelSpec):
    """Images of any size that patches divide, and words."""

    family: Literal["images_like"] = "images_like"
    patch_size: int = 4
    max_resolution: int = 16
    num_words: int = 12

    def batch_fields(self):
        return (
            BatchField(
                "image",
                (3, ANY, ANY),
                "float32",
                (-1, 1),
                multiple_of=self.patch_size,
                at_most=self.max_resolution,
                options=FieldOptions(
                    multiple_of="model.patch_size", at_most="model.max_resolution"
                ),
            ),
            BatchField(
                "words",
                (ANY,),
                "float32",
                at_most=self.num_words,
                options=FieldOptions(at_most="model.num_words"),
            ),
        )


def check_images(path, model, sizes=SIZES, fields=None):
    store = bucketed(path / "set", sizes)
    check_fields(
        View(store, np.arange(len(store)), "data.path=set"),
        fields or model.batch_fields(),
        settable=True,
    )


def test_any_size_that_the_model_takes_passes(tmp_path):
    check_images(tmp_path, ImagesLike())
    check_images(tmp_path, ImagesLike(), {(8, 8): 3})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            ImagesLike(patch_size=8),
            "holds image (3, 16, 4) in bucket 16x4, and 4 is not divisible by model.patch_size=8; "
            "set model.patch_size=4, or import the data with sizes that are.",
        ),
        (
            ImagesLike(max_resolution=8),
            (
                "holds image (3, 16, 4) in bucket 16x4, and 16 is over model.max_resolution=8, "
                "the most that the model takes; set model.max_resolution=16, or import the "
                "data with smaller sizes."
            ),
        ),
        (
            ImagesLike(num_words=10),
            (
                "holds words (12,) in bucket 8x12, and 12 is over model.num_words=10, the most "
                "that the model takes; set model.num_words=12, or import"
            ),
        ),
    ],
)
def test_sizes_that_the_model_cannot_take_are_named_with_the_knob(tmp_path, model, message):
    with refused(re.escape(f"data.path=set {message}")):
        check_images(tmp_path, model)


def test_sizes_without_a_option_and_of_a_single_bucket(tmp_path):
    """Fields without options name no setting; sides of 9 and 7 leave no patch to set."""
    words = BatchField("words", (ANY,), "float32", at_most=5)
    with refused(r"set holds words \(8,\), and 8 is over 5, the most that the model takes; import"):
        check_images(tmp_path, ImagesLike(), {(4, 8): 2}, [words])
    with refused(r"in bucket 7x9, and 7 is not divisible by model\.patch_size=4; import"):
        check_images(tmp_path, ImagesLike(), {(7, 9): 2, (9, 9): 2})
    wide = BatchField("words", (ANY, 768), "float32")
    with refused(r"holds words \(any,\), but the model takes \(any, 768\); make the model's"):
        check_images(tmp_path, ImagesLike(), SIZES, [wide])
    with refused(
        r"holds image \(3, any, any\), but the model takes \(1, 28, 28\); make the model's"
    ):
        check_images(tmp_path, ImagesLike(), SIZES, DiTSpec().batch_fields())

"""Joined stores: rows part after part, of columns that all parts hold alike, in one shape or by
shapes.
"""

import re

import numpy as np
import pytest
import torch

from ditlab.data.mixture_store import JoinedStore, joined_views
from ditlab.data.splits import open_data
from ditlab.data.stores.manifest import Column, class_column
from ditlab.data.stores.view import View
from ditlab.spec.data import ArrowData, CaptionedDigitsData, TextData
from ditlab.spec.mixture import MixtureData
from ditlab_models.contract import ANY
from support.damage import refused
from support.datasets.bucketed import bucketed
from support.datasets.writing import written

IMAGE = Column(dtype="uint8", shape=(1, 3, 4), value_range=(0, 255))
LABEL = class_column("", 2)


def like(**changes):
    return IMAGE.model_copy(update=changes)


@pytest.fixture
def write(tmp_path):
    def make(name, rows=6, **columns):
        values = {}
        for key, column in columns.items():
            numbers = np.arange(1, 1 + rows * column.row_elements) % 2
            values[key] = numbers.reshape(rows, *column.shape).astype(column.dtype)
        return written(tmp_path / name, columns, values)

    return make


def test_rows_are_numbered_part_after_part(make_store):
    one = make_store(rows=20, name="one", rows_per_shard=7)
    two = make_store(rows=15, name="two", seed=1)
    joined = JoinedStore({"a": one, "b": two})
    assert len(joined) == 35 and joined.draw == "sample" and len(joined.parts) == 1
    assert joined.first_rows == {"a": 0, "b": 20}
    rows = np.array([34, 0, 19, 20, 7])
    for column in ("image", "label"):
        whole = torch.cat([one.tensor(column), two.tensor(column)])
        assert torch.equal(joined.tensor(column), whole)
        out = torch.zeros_like(whole[rows])
        assert joined.gather(column, rows, out) is out and torch.equal(out, whole[rows])
        assert torch.equal(joined.gather(column, rows[1:3]), whole[rows[1:3]])
    assert joined.columns["label"].statistics.count == 35


def test_the_fingerprint_is_of_names_and_contents(make_store):
    one, two = make_store(rows=20, name="one"), make_store(rows=15, name="two", seed=1)
    joined = JoinedStore({"a": one, "b": two}).fingerprint
    assert joined == JoinedStore({"b": two, "a": one}).fingerprint
    swapped = JoinedStore({"a": two, "b": one}).fingerprint
    renamed = JoinedStore({"a": one, "c": two}).fingerprint
    assert len({joined, swapped, renamed}) == 3


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            like(value_range=(0, 1)),
            "holds image in the range 0 to 1, data.parts.a in the range",
        ),
        (
            like(value_range=None),
            "holds image without a range, data.parts.a in the range 0 to",
        ),
        (
            like(dtype="float32"),
            "holds image as float32, data.parts.a as uint8; a model reads",
        ),
        (
            like(shape=(3, 4)),
            "holds image with 2 axes, data.parts.a with 3 axes",
        ),
        (
            like(names=tuple("wxyz")),
            "holds image with 4 names, data.parts.a with 0 names",
        ),
        (
            like(divisors=(1.0, 2, 1, 1)),
            "holds image divided by (1.0, 2.0, 1.0, 1.0), data.par",
        ),
    ],
)
def test_columns_that_differ_are_refused_when_they_are_read(write, column, message):
    one = write("one", image=IMAGE, label=LABEL)
    joined = JoinedStore({"a": one, "b": write("two", image=column, label=LABEL)})
    assert list(joined.columns) == ["label"]
    joined.check_columns(["label"])
    with refused(rf"^data\.parts\.b {re.escape(message)}.*data\.parts\.$"):
        joined.check_columns(["label", "image"])


def test_names_and_numbers_of_classes_and_missing_columns(write):
    kinds = class_column("", 2, ("cat", "dog"))
    others = class_column("", 2, ("cat", "cow"))
    one = write("one", image=IMAGE, kind=kinds, label=LABEL)
    two = write("two", image=IMAGE, kind=others, label=class_column("", 9))
    three = write("three", image=IMAGE)
    problems = JoinedStore({"a": one, "b": two}).problems
    assert problems["kind"].startswith(
        "data.parts.b holds kind with 'cow' as name 2, data.parts.a with 'dog'"
    )
    assert problems["label"].startswith(
        "data.parts.b holds label with num_classes=9, data.parts.a with num_classes=2; a"
    )
    problems = JoinedStore({"a": one, "c": three}).problems
    assert problems["label"].startswith(
        "data.parts.c holds no column 'label' (it holds image); a model reads it of all"
    )
    with refused(r"^data\.parts\.b holds no column 'image' \(it holds kind\); a model reads it"):
        JoinedStore({"a": three, "b": write("four", kind=kinds)})


def test_shapes_decide_what_draws(make_store, write, tmp_path):
    small = write("small", image=IMAGE)
    large = write("large", image=like(shape=(1, 6, 4)))
    joined = JoinedStore({"a": small, "b": large})
    assert joined.draw == "batch" and joined.parts == (small, large)
    assert joined.columns["image"].shape == (1, ANY, 4) and joined.first_numbers["b"] == 1
    assert joined.bucket_of(np.array([0, 5, 6])).tolist() == [0, 0, 1]
    assert JoinedStore({"a": small}).draw == "sample"
    assert JoinedStore({"a": small}, "batch").draw == "batch"
    both = {"a": write("one", image=IMAGE, label=LABEL)}
    both["b"] = write("two", image=like(shape=(1, 6, 4)), label=LABEL)
    with refused(
        r"^data\.parts\.b holds image \(1, 6, 4\), data\.parts\.a \(1, 3, 4\), and "
        r"data\.draw=sample puts both in one batch; set data\.draw to batch\.$"
    ):
        JoinedStore(both, "sample").check_columns(["image"])
    sizes = bucketed(tmp_path / "sizes")
    with refused(r"^data\.draw=sample puts parts in one batch, and data\.parts\.b holds images of"):
        JoinedStore({"a": sizes.parts[0], "b": sizes}, "sample")
    joined = JoinedStore({"a": sizes.parts[0], "b": sizes})
    assert joined.draw == "batch" and len(joined.parts) == 4 and joined.first_numbers["b"] == 1
    assert torch.equal(
        joined.gather("image", np.array([40, 41])), sizes.gather("image", np.array([0, 1]))
    )


def test_captions_are_padded_to_the_longest_part(write):
    def captioned(name, length):
        caption = Column(dtype="uint8", shape=(length,), num_classes=256)
        return write(name, caption=caption, text_mask=Column(dtype="bool", shape=(length,)))

    one = captioned("one", 3)
    two = captioned("two", 5)
    joined = JoinedStore({"a": one, "b": two})
    assert joined.draw == "sample" and joined.columns["caption"].shape == (5,)
    for column in ("caption", "text_mask"):
        own = one.gather(column, np.array([0, 1]))
        used = torch.ones((3, 5), dtype=own.dtype)
        found = joined.gather(column, np.array([0, 7, 1]), used)
        assert torch.equal(found[[0, 2], :3], own) and not found[[0, 2], 3:].any()
        assert torch.equal(found[1], two.gather(column, np.array([1]))[0])


def test_views_join_training_rows_and_take_held_out_ones_in_turns(make_store):
    stores = {"a": make_store(rows=9, name="one"), "b": make_store(rows=9, name="two", seed=1)}
    train = {name: View(store, np.array([5, 3, 1]), "t") for name, store in stores.items()}
    held_out = {
        "a": View(stores["a"], np.array([8, 7, 6, 0]), "t"),
        "b": View(stores["b"], np.array([2]), "t"),
    }
    both, held = joined_views(train, held_out, "data.kind=mixture", "auto")
    assert both.rows.tolist() == [5, 3, 1, 14, 12, 10] and held.rows.tolist() == [8, 11, 7, 6, 0]
    assert both.store is held.store


@pytest.mark.slow
def test_texts_need_one_tokeniser_and_count_together(home):
    def opened(a, b):
        return open_data(MixtureData(parts={"a": a, "b": b}, weights={"a": 1.0, "b": 1.0}), home)

    text = TextData(length=64)
    data = opened(text, TextData(length=64, hold_out=0.2))
    assert data.text.vocabulary == 256
    one = data.mixture.parts["a"].text
    assert data.text.bytes_per_token == pytest.approx(one.bytes_per_token)
    with refused(r"^data\.parts\.b has tokens of another tokeniser than data\.parts\.a, and one"):
        opened(text, TextData(length=64, tokenizer="bpe", vocabulary=300))
    with refused(r"^data\.parts\.b has no tokeniser, unlike data\.parts\.a"):
        opened(text, CaptionedDigitsData(size=8, colours=1))


def test_a_part_that_cannot_be_opened_is_named(home):
    parts = {"a": ArrowData(path="nowhere")}
    with refused(r"^data\.parts\.a\.path=nowhere: \S+nowhere holds no store"):
        open_data(MixtureData(parts=parts, weights={"a": 1.0}), home)

import json
import re

import numpy as np
import pyarrow as pa
import pytest
import torch

from ditlab.data.builtin import open_built_in
from ditlab.data.stores.manifest import Column
from ditlab.data.stores.store import Store
from ditlab.spec.data import DigitsData
from support.damage import refused
from support.datasets.manifests import edit_manifest
from support.datasets.writing import written

X = {"x": Column(dtype="uint8")}


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"],
)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_every_element_type_survives(tmp_path, dtype, shape):
    values = np.random.default_rng(0).integers(0, 2, (9, *shape)).astype(dtype)
    store = written(tmp_path / "s", {"x": Column(dtype=dtype, shape=shape)}, {"x": values})
    assert torch.equal(store.tensor("x"), torch.from_numpy(values))
    assert torch.equal(store.gather("x", np.array([8, 0])), torch.from_numpy(values[[8, 0]]))


@pytest.mark.parametrize(
    "options",
    [
        {"rows_per_shard": 7},
        {"rows_per_shard": 33},
        {"rows_per_block": 7, "rows_per_shard": 35},
        {"rows_per_block": 9},
    ],
)
def test_shards_and_blocks_do_not_change_what_is_read(make_store, options):
    whole = make_store(name="whole")
    cut = make_store(name="cut", **options)
    rows = np.random.default_rng(1).integers(0, 100, 250)
    for column in ("image", "label"):
        expected = whole.tensor(column)
        assert torch.equal(cut.tensor(column), expected)
        for store in (whole, cut):
            assert torch.equal(store.gather(column, rows), expected[rows])
            out = torch.empty_like(expected[rows])
            assert store.gather(column, rows, out) is out and torch.equal(out, expected[rows])


def test_statistics_are_those_of_the_rows(make_store):
    store = make_store(rows=1000, batch=129, rows_per_shard=300)
    images, labels = store.tensor("image").double(), store.tensor("label")
    seen = store.columns["image"].statistics
    assert (seen.count, seen.min, seen.max) == (12_000, images.min(), images.max())
    assert seen.mean == pytest.approx(images.mean().item(), rel=1e-12)
    assert seen.std == pytest.approx(images.std(correction=0).item(), rel=1e-12)
    assert store.columns["label"].statistics.class_counts == tuple(torch.bincount(labels).tolist())


def test_the_fingerprint_is_of_the_contents(make_store):
    store = make_store()
    assert make_store(name="elsewhere").fingerprint == store.fingerprint
    assert make_store(name="others", seed=1).fingerprint != store.fingerprint
    assert make_store(name="fewer", rows=99).fingerprint != store.fingerprint


def test_the_same_bytes_of_another_range_or_names_or_tokenizer_are_other_contents(tmp_path):
    """Rows can be held out by the name of a class; equal numbers under another tokeniser are
    another text.
    """
    prints = set()
    for number, (about, files) in enumerate(
        [
            ({}, None),
            ({}, {"tokenizer.json": b"one"}),
            ({}, {"tokenizer.json": b"two"}),
            ({"value_range": (0, 1)}, None),
            ({"value_range": (0, 2)}, None),
            ({"num_classes": 2}, None),
            ({"num_classes": 2, "names": ("chr1", "chr2")}, None),
            ({"num_classes": 2, "names": ("chr2", "chr1")}, None),
        ]
    ):
        columns = {"x": Column(dtype="uint8", **about)}
        rows = {"x": np.array([0, 1], np.uint8)}
        prints.add(written(tmp_path / str(number), columns, rows, attachments=files).fingerprint)
    assert len(prints) == 8


def test_other_arrow_readers_understand_a_shard(make_store):
    store = make_store()
    with pa.memory_map(str(next(store.path.glob("*.arrow")))) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.num_rows == 100
    assert table.schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), (1, 3, 4))
    assert json.loads(table.schema.field("label").metadata[b"ditlab.column"])["num_classes"] == 5


def test_the_fingerprint_of_these_rows_is_what_it_always_was(make_store):
    expected = "20ed1d92e7c84c84dd3048cd118758ee2a85c08de4445da08a18ea1aab134cdb"
    assert make_store().fingerprint == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_classes": 3, "names": ("a", "b")}, "names holds 2, and the column has 3 classes"),
        ({"names": ("a",)}, "names holds 1, and the column has 0 along the last axis"),
        ({"shape": (2,), "names": ("a", "a")}, "names holds 'a' more than once"),
        ({"shape": (2,), "divisors": (1.0,)}, "divisors holds 1, and the column has 2"),
        ({"shape": (2,), "divisors": (1.0, 0.0)}, "divisors holds 0; every one must be above 0"),
        ({"shape": (2,), "divisors": (1.0, float("inf"))}, "finite"),
    ],
)
def test_names_and_divisors_that_do_not_fit_a_column_are_refused(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Column(dtype="float32", **given)


def test_a_missing_store_is_named(tmp_path):
    with refused(r"nowhere holds no store.*ditlab data import"):
        Store.open(tmp_path / "nowhere")


def test_built_in_data_of_another_version_are_built_again(home):
    store = open_built_in(DigitsData(), home)
    edit_manifest(store.path / "store.json", version=5)
    again = open_built_in(DigitsData(), home)
    assert again.manifest == store.manifest


def test_a_failed_rewrite_leaves_the_old_store_whole(make_store):
    store = make_store(name="kept")
    before = sorted(store.path.iterdir())
    columns = {"label": Column(dtype="int64", num_classes=5)}
    batches = [{"label": np.zeros(4, np.int64)}, {"label": np.array([9])}]
    with refused("holds classes 9 to 9"):
        written(store.path, columns, *batches, rows_per_shard=2)
    assert sorted(store.path.iterdir()) == before
    assert Store.open(store.path).fingerprint == store.fingerprint


def test_a_replaced_store_leaves_no_old_shards_and_its_readers_keep_their_rows(make_store):
    old = make_store(name="one", rows_per_shard=30)
    image = old.tensor("image").clone()
    new = make_store(name="one", seed=1)
    assert [p.name for p in new.path.glob("shard-*")] == [new.manifest.shards[0].file]
    assert not list(new.path.glob(".*"))
    assert torch.equal(old.tensor("image"), image)
    assert not torch.equal(new.tensor("image"), image)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (Column(dtype="float32"), [{"x": np.float32([1, np.nan])}], "holds NaN or infinities"),
        (
            Column(dtype="uint8", value_range=(0, 16)),
            [{"x": np.uint8([3, 17])}],
            r"3 to 17 outside its value_range",
        ),
        (Column(dtype="uint8"), [], "holds no rows"),
    ],
)
def test_values_that_a_column_cannot_hold_are_refused(tmp_path, column, values, message):
    with refused(message):
        written(tmp_path / "s", {"x": column}, *values)
    assert not (tmp_path / "s").exists()

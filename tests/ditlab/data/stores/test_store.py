import json
import re
import weakref

import numpy as np
import pyarrow as pa
import pytest
import torch

from ditlab.data.builtin import open_built_in
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.store import Store
from ditlab.data.stores.writer import ShardSeries, write_batches
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


def test_the_fingerprint_is_of_the_contents(make_store, tmp_path):
    store = make_store()
    assert make_store(name="elsewhere").fingerprint == store.fingerprint
    assert make_store(name="others", seed=1).fingerprint != store.fingerprint
    assert make_store(name="fewer", rows=99).fingerprint != store.fingerprint
    narrow, wide = (
        written(
            tmp_path / str(high),
            {"x": Column(dtype="uint8", value_range=(0, high))},
            {"x": np.zeros(3, np.uint8)},
        )
        for high in (1, 2)
    )
    assert narrow.fingerprint != wide.fingerprint, "the same bytes in another range train another"


def test_other_arrow_readers_understand_a_shard(make_store):
    store = make_store()
    with pa.memory_map(str(next(store.path.glob("*.arrow")))) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.num_rows == 100
    assert table.schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), (1, 3, 4))
    assert json.loads(table.schema.field("label").metadata[b"ditlab.column"])["num_classes"] == 5


def test_the_fingerprint_of_these_rows_is_what_it_always_was(make_store):
    assert (
        make_store().fingerprint
        == "20ed1d92e7c84c84dd3048cd118758ee2a85c08de4445da08a18ea1aab134cdb"
    )


def test_names_of_classes_are_content(tmp_path):
    """Rows can be held out by the name of a class."""
    prints = set()
    for number, names in enumerate([("chr1", "chr2"), ("chr2", "chr1"), ()]):
        columns = {"chromosome": Column(dtype="int64", num_classes=2, names=names)}
        store = written(tmp_path / str(number), columns, {"chromosome": np.array([0, 1])})
        prints.add(store.fingerprint)
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_classes": 3, "names": ("a", "b")}, "names holds 2, and the column has 3 classes"),
        ({"names": ("a",)}, "names holds 1, and the column has 0 along the last axis"),
        ({"shape": (2,), "names": ("a", "a")}, "names holds 'a' more than once"),
        ({"shape": (2,), "divisors": (1.0,)}, "divisors holds 1, and the column has 2"),
        ({"shape": (2,), "divisors": (1.0, 0.0)}, "divisors holds 0; every one must be above 0"),
        ({"shape": (2,), "divisors": (1.0, -2.0)}, "divisors holds -2"),
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
    assert (
        again.manifest.fingerprint == store.manifest.fingerprint
        and again.manifest == store.manifest
    )


def test_rows_that_were_held_leave_the_memory_as_they_are_written(tmp_path, monkeypatch):
    held, append = [], ShardSeries.append

    def watched(self, batch, **options):
        held.append(weakref.ref(batch["x"]))
        assert not any(ref() is not None for ref in held[:-1])
        append(self, batch, **options)

    monkeypatch.setattr(ShardSeries, "append", watched)
    batches = ({"x": np.full(5, number, np.uint8)} for number in range(9))
    write_batches(tmp_path / "s", X, batches, name="x", source=Source(kind="t"))
    assert len(held) == 9


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
        (Column(dtype="float32"), np.array([1, np.nan], np.float32), "holds NaN or infinities"),
        (
            Column(dtype="uint8", value_range=(0, 16)),
            np.array([3, 17], np.uint8),
            r"3 to 17 outside its value_range",
        ),
    ],
)
def test_values_that_a_column_cannot_hold_are_refused(tmp_path, column, values, message):
    with refused(message):
        written(tmp_path / "s", {"x": column}, {"x": values})


def test_a_store_needs_rows(tmp_path):
    with refused("holds no rows"):
        written(tmp_path / "s", X)
    assert not (tmp_path / "s").exists()

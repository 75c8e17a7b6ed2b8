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
from ditlab.errors import UserError
from ditlab.spec.data import DigitsData
from support.datasets.manifests import edit_manifest
from support.datasets.writing import StoreWriter


def test_rows_come_back_as_written(make_store):
    store = make_store(rows=100)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (100, 1, 3, 4), dtype=np.uint8)
    assert len(store) == 100
    assert torch.equal(store.tensor("image"), torch.from_numpy(images))
    assert torch.equal(store.tensor("label"), torch.from_numpy(generator.integers(0, 5, 100)))


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_every_element_type_survives(tmp_path, dtype, shape):
    values = np.random.default_rng(0).integers(0, 2, (9, *shape)).astype(dtype)
    with StoreWriter(
        tmp_path / "s", {"x": Column(dtype=dtype, shape=shape)}, name="s", source=Source(kind="t")
    ) as writer:
        writer.append({"x": torch.from_numpy(values)})
    store = Store.open(tmp_path / "s")
    assert torch.equal(store.tensor("x"), torch.from_numpy(values))
    assert torch.equal(store.gather("x", np.array([8, 0])), torch.from_numpy(values[[8, 0]]))


@pytest.mark.parametrize("rows_per_shard", [7, 33, 100])
def test_shards_do_not_change_what_is_read(make_store, rows_per_shard):
    whole = make_store(name="whole")
    cut = make_store(name="cut", rows_per_shard=rows_per_shard)
    assert len(cut.manifest.shards) == -(-100 // rows_per_shard)
    rows = np.random.default_rng(1).integers(0, 100, 250)
    out = torch.empty(250, 1, 3, 4, dtype=torch.uint8)
    for column in ("image", "label"):
        assert torch.equal(whole.tensor(column), cut.tensor(column))
        assert torch.equal(whole.gather(column, rows), whole.tensor(column)[torch.from_numpy(rows)])
        assert torch.equal(whole.gather(column, rows), cut.gather(column, rows))
    assert torch.equal(cut.gather("image", rows, out), whole.gather("image", rows))


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
    prints = set()
    for number, high in enumerate((1, 2)):
        column = Column(dtype="uint8", value_range=(0, high))
        with StoreWriter(
            tmp_path / str(number), {"x": column}, name="x", source=Source(kind="t")
        ) as writer:
            writer.append({"x": np.zeros(3, np.uint8)})
        prints.add(writer.manifest.fingerprint)
    assert len(prints) == 2, "the same bytes in another range train another model"


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


def test_names_and_divisors_come_back_and_names_are_content(tmp_path):
    prints = set()
    for number, names in enumerate([("chr1", "chr2"), ("chr2", "chr1"), ()]):
        columns = {
            "chromosome": Column(dtype="int64", num_classes=2, names=names),
            "x": Column(dtype="float32", shape=(4, 3), names=("A", "B", "C"), divisors=(0.5, 1, 2)),
        }
        with StoreWriter(
            tmp_path / str(number), columns, name="x", source=Source(kind="t")
        ) as writer:
            writer.append({"chromosome": np.array([0, 1]), "x": np.zeros((2, 4, 3), np.float32)})
        store = Store.open(tmp_path / str(number))
        assert store.columns["chromosome"].names == names
        assert (store.columns["x"].names, store.columns["x"].divisors) == (
            ("A", "B", "C"),
            (0.5, 1.0, 2.0),
        )
        prints.add(store.fingerprint)
    assert len(prints) == 3, "rows can be held out by the name of a class"
    with pa.memory_map(str(store.path / store.manifest.shards[0].file)) as source:
        meaning = json.loads(pa.ipc.open_file(source).schema.field("x").metadata[b"ditlab.column"])
    assert (meaning["names"], meaning["divisors"]) == (["A", "B", "C"], [0.5, 1, 2])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_classes": 3, "names": ("a", "b")}, "names holds 2, and the column has 3 classes"),
        (
            {"shape": (3, 2), "names": ("a", "b", "c")},
            "names holds 3, and the column has 2 along the last axis",
        ),
        ({"names": ("a",)}, "names holds 1, and the column has 0 along the last axis"),
        ({"shape": (2,), "names": ("a", "a")}, "names holds 'a' more than once"),
        ({"shape": (2,), "divisors": (1.0,)}, "divisors holds 1, and the column has 2"),
        ({"shape": (2,), "divisors": (1.0, 0.0)}, "divisors holds 0; every one must be above 0"),
        ({"shape": (2,), "divisors": (1.0, -2.0)}, "divisors holds -2"),
        ({"shape": (2,), "divisors": (1.0, float("inf"))}, "finite"),
        ({"shape": (2,), "divisors": (1.0, float("nan"))}, "finite"),
    ],
)
def test_names_and_divisors_that_do_not_fit_a_column_are_refused(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Column(dtype="float32", **given)


def test_a_missing_store_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere holds no store.*ditlab data import"):
        Store.open(tmp_path / "nowhere")


def test_a_missing_shard_is_named(make_store):
    store = make_store(rows_per_shard=40)
    name = store.manifest.shards[1].file
    (store.path / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing.*import the data again"):
        Store.open(store.path, verify=False)


def test_an_altered_shard_is_named(make_store):
    store = make_store()
    shard = store.path / store.manifest.shards[0].file
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(
        UserError, match=rf"{shard.name} was altered: its SHA-256.*import the data again"
    ):
        Store.open(store.path)
    shard.write_bytes(content[:-8])
    with pytest.raises(UserError, match=rf"{shard.name} was altered: it has \d+ bytes"):
        Store.open(store.path, verify=False)


@pytest.mark.parametrize("version", [6, 8])
def test_another_format_version_is_refused(make_store, version):
    store = make_store()
    edit_manifest(store.path / "store.json", version=version)
    with pytest.raises(
        UserError, match=rf"format version {version}, and version 7 is read here; import"
    ):
        Store.open(store.path)


def test_built_in_data_of_another_version_are_built_again(home):
    store = open_built_in(DigitsData(), home)
    edit_manifest(store.path / "store.json", version=5)
    again = open_built_in(DigitsData(), home)
    assert (
        again.manifest.fingerprint == store.manifest.fingerprint
        and again.manifest == store.manifest
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 7}'])
def test_a_broken_manifest_is_named(make_store, text):
    store = make_store()
    (store.path / "store.json").write_text(text)
    with pytest.raises(
        UserError, match=r"store\.json is not a store's manifest.*import the data again"
    ):
        Store.open(store.path)


def test_an_altered_manifest_is_noticed(make_store):
    store = make_store()
    columns = store.manifest.model_dump(mode="json")["columns"]
    columns["image"]["value_range"] = [0, 128]
    edit_manifest(store.path / "store.json", columns=columns)
    with pytest.raises(UserError, match=r"store\.json was altered"):
        Store.open(store.path)


def test_a_failed_write_leaves_nothing(tmp_path):
    path = tmp_path / "failed"

    def batches():
        yield {"x": np.zeros(5, np.uint8)}
        raise RuntimeError("the source ran dry")

    with pytest.raises(RuntimeError, match="ran dry"):
        write_batches(
            path,
            {"x": Column(dtype="uint8")},
            batches(),
            name="x",
            source=Source(kind="t"),
            rows_per_shard=2,
        )
    assert not path.exists()


def test_rows_that_were_held_leave_the_memory_as_they_are_written(tmp_path, monkeypatch):
    held, append = [], ShardSeries.append

    def watched(self, batch, **options):
        held.append(weakref.ref(batch["x"]))
        assert [ref() is not None for ref in held] == [False] * (len(held) - 1) + [True]
        append(self, batch, **options)

    monkeypatch.setattr(ShardSeries, "append", watched)
    batches = ({"x": np.full(5, number, np.uint8)} for number in range(9))
    write_batches(
        tmp_path / "s", {"x": Column(dtype="uint8")}, batches, name="x", source=Source(kind="t")
    )
    assert len(held) == 9 and Store.open(tmp_path / "s").tensor("x").tolist() == [
        n for n in range(9) for _ in range(5)
    ]


def test_a_failed_rewrite_leaves_the_old_store_whole(make_store):
    store = make_store(name="kept")
    before = sorted(store.path.iterdir())
    with pytest.raises(UserError, match="holds classes 9 to 9"):
        columns = {"label": Column(dtype="int64", num_classes=5)}
        with StoreWriter(
            store.path, columns, name="kept", source=Source(kind="t"), rows_per_shard=2
        ) as writer:
            writer.append({"label": np.zeros(4, np.int64)})
            writer.append({"label": np.array([9])})
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
        (
            Column(dtype="int64", num_classes=10),
            np.array([-1, 3]),
            "classes -1 to 3, but num_classes=10",
        ),
    ],
)
def test_values_that_a_column_cannot_hold_are_refused(tmp_path, column, values, message):
    with (
        pytest.raises(UserError, match=message),
        StoreWriter(tmp_path / "s", {"x": column}, name="s", source=Source(kind="t")) as writer,
    ):
        writer.append({"x": values})


def test_a_store_needs_rows(tmp_path):
    with (
        pytest.raises(UserError, match="holds no rows"),
        StoreWriter(
            tmp_path / "s", {"x": Column(dtype="uint8")}, name="s", source=Source(kind="t")
        ),
    ):
        pass
    assert not (tmp_path / "s").exists()


def test_shard_names_hold_number_and_content(make_store):
    names = [shard.file for shard in make_store(rows_per_shard=40).manifest.shards]
    assert all(
        re.fullmatch(rf"shard-0000{i}-[0-9a-f]{{12}}\.arrow", name) for i, name in enumerate(names)
    )

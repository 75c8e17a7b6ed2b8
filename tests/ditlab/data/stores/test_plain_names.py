"""Names in a manifest, or of a new store, lead to no path outside the store's folder."""

import json

import pytest

from ditlab.data.stores.bucketed_store import open_store
from ditlab.data.stores.manifest import (
    BUCKETS_NAME,
    MANIFEST_NAME,
    Column,
    Source,
)
from ditlab.data.stores.receipt import plain_name
from ditlab.data.stores.writer import write_batches
from ditlab.spec.importing import ImagesOptions, TextOptions
from support.damage import refused
from support.datasets.bucketed import bucketed
from support.datasets.manifests import write_manifest

LEADING_ELSEWHERE = [
    "../x",
    "/etc/passwd",
    "a/../../b",
    "a/b",
    "a\0b",
    "a\\b",
    "..\\x",
    "",
    ".",
    "..",
    "...",
    "a\nb",
    "x" * 300,
]


@pytest.mark.parametrize("name", LEADING_ELSEWHERE)
def test_names_that_lead_elsewhere_are_refused(name):
    with pytest.raises(ValueError, match="no plain name"):
        plain_name(name)


@pytest.mark.parametrize(
    "name", ["shard-00000-1a2b.arrow", "tokenizer.json", "256x192-1a2b3c4d", "mein Bild ä", ".x"]
)
def test_plain_names_are_accepted(name):
    assert plain_name(name) == name


WAYS = {
    "a shard": (MANIFEST_NAME, lambda record, name: record["shards"][0].update(file=name)),
    "an attachment": (
        MANIFEST_NAME,
        lambda record, name: record["attachments"].update({name: "0" * 64}),
    ),
    "the store": (MANIFEST_NAME, lambda record, name: record.update(name=name)),
    "a bucket's folder": (
        BUCKETS_NAME,
        lambda record, name: record["buckets"][0].update(folder=name),
    ),
    "the bucketed store": (BUCKETS_NAME, lambda record, name: record.update(name=name)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_manifest_that_names_a_path_is_refused(way, make_store, tmp_path):
    manifest, change = WAYS[way]
    store = make_store(rows=5) if manifest == MANIFEST_NAME else bucketed(tmp_path / "s")
    record = json.loads((store.path / manifest).read_bytes())
    change(record, "../x")
    write_manifest(store.path / manifest, record)
    with refused(r"is not a store's manifest \(.*no plain name"):
        open_store(store.path)


def test_a_writer_takes_plain_names_alone(tmp_path):
    columns = {"x": Column(dtype="uint8")}
    for named in ({"name": "../x"}, {"name": "x", "attachments": {"../x": b""}}):
        with pytest.raises(ValueError, match="no plain name"):
            write_batches(tmp_path / "inside" / "s", columns, [], source=Source(kind="t"), **named)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [ImagesOptions, TextOptions])
@pytest.mark.parametrize("name", ["../../x", "a\\b", ""])
def test_an_import_takes_plain_names_alone(options, name):
    with pytest.raises(ValueError, match="is no plain folder name"):
        options(source="x", name=name)

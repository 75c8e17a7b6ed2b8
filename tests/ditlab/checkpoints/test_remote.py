"""Checkpoints behind a URI: S3 (a real server on loopback) and fsspec."""

import itertools
import logging
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

from ditlab.checkpoints.manifest import MANIFEST, folder_of
from ditlab.checkpoints.store import CheckpointStore, open_checkpoint
from support.damage import refused
from support.marks import slow
from support.object_store.s3 import s3_server
from support.trainings.checkpoints import WEIGHT, is_step, save

NAMES = itertools.count()


@pytest.fixture(scope="module")
def query():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_server("bucket") as query:
        yield query


@pytest.fixture(params=["s3", "memory", "file"])
def place(request, tmp_path):
    """A folder of its own behind each kind of URI."""
    name = f"runs/{next(NAMES)}"
    if request.param == "s3":
        return f"s3://bucket/{name}?{request.getfixturevalue('query')}"
    return f"memory://{name}" if request.param == "memory" else f"file://{tmp_path}/{name}"


def damage(store, step, name=None):
    """One bit of a shard, or of the file named."""
    files = store.files
    name = name or next(name for name in files.sizes(folder_of(step)) if name.startswith("shard"))
    content = bytearray(files.read(folder_of(step), name))
    content[-3] ^= 1
    files.delete(folder_of(step), name)
    files.write(folder_of(step), name, [bytes(content)])


@pytest.mark.parametrize("mode", ["background", *slow("blocking")])
def test_from_beginning_to_end(place, mode):
    store = CheckpointStore.at(place)
    store.files.check_writable()
    assert store.steps() == [] and store.newest() is None
    run = store.child("run-1")
    for step in (1, 2, 3, 3):
        saved = save(run, step, keep=2, mode=mode)
        assert saved.error is None and saved.note is None
    assert CheckpointStore.at(run.location).steps() == run.steps() == [2, 3]
    assert is_step(run.location, 3)
    assert len(run.files.sizes(folder_of(3))) == 2, "the shard of the first attempt is gone"
    with open_checkpoint(saved.location) as reader:
        assert reader.manifest.step == 3 and reader.location == run.location_of(3)
    assert store.steps() == [], "a run's checkpoints lie below the place, not in it"


def test_what_was_altered_is_passed_over(place):
    store = CheckpointStore.at(place)
    for step, name in ((1, None), (2, None), (3, MANIFEST)):
        assert save(place, step).error is None
        if step > 1:
            damage(store, step, name)
    warnings = []
    assert store.newest(warnings.append).manifest.step == 1
    assert len(warnings) == 2 and all("Falling back" in text for text in warnings)


def test_a_remote_checkpoint_leaves_nothing_on_this_machine(query, tmp_path, monkeypatch):
    place = f"s3://bucket/fetched?{query}"
    save(place, 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with CheckpointStore.at(place).open(1, verify=False) as reader:
        assert list(tmp_path.iterdir()) == []
        values = reader.read("master", "network.weight", 0, 12)
        assert len(list(tmp_path.rglob("*.safetensors"))) == 1
    assert list(tmp_path.iterdir()) == []
    assert values.tolist() == (100 + WEIGHT).tolist()
    damage(CheckpointStore.at(place), 1)
    with CheckpointStore.at(place).open(1, verify=False) as reader, refused("its hash differs"):
        reader.weights()
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_that_does_not_exist(query):
    place = f"s3://nowhere/run?{query}"
    with refused(r"checkpoint\.storage=s3://nowhere.*(?i:bucket)"):
        CheckpointStore.at(place).files.check_writable()
    for step in (1, 2):  # later saves report it as well, and none hangs
        failed = save(place, step).error
        assert failed.kind == "write" and "worker 0" in str(failed)


@pytest.mark.parametrize("location", ["foo://bucket/run", "s3://", "s3://b/p?nope=1", "://x"])
def test_a_location_that_no_library_opens(location):
    with refused(r"checkpoint\.storage="):
        CheckpointStore.at(location)


def test_a_secret_is_refused_and_not_repeated():
    with refused("^(?!.*hunter2).*environment"):
        CheckpointStore.at("s3://b/p?secret_key=hunter2")


def test_a_path_may_hold_anything(tmp_path):
    for name in ("a b", "100%", "näme", "x?y=secret", "#1"):
        place = Path(tmp_path, name)
        save(place, 1)
        assert is_step(str(place), 1) and open_checkpoint(place / folder_of(1)).manifest.step == 1


def test_a_server_that_does_not_answer_is_an_error(query):
    """A missing answer does not count as a store without checkpoints: a run must not start over."""
    files = CheckpointStore.at(
        "s3://bucket/run?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:9"
    ).files
    # Tried once: pyarrow would go on for 6 s, in which no other client can be made.
    once = S3FileSystem(
        scheme="http",
        region="us-east-1",
        endpoint_override="127.0.0.1:9",
        access_key="a",
        secret_key="b",
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=1),
    )
    store = CheckpointStore(replace(files, filesystem=once))
    with refused(r"checkpoint\.storage=.* cannot be read"):
        store.newest()


def test_a_fork_holds_a_checkpoint_until_it_lets_go(place):
    """Beside those that are kept; its mark is no part of the checkpoint."""
    store = CheckpointStore.at(place)
    for step in (10, 20, 30):
        save(place, step)
    with refused(r"no manifest.json, so no finished checkpoint"):
        store.hold(15, "1a2b")
    assert store.steps() == [10, 20, 30]
    store.hold(10, "1a2b")
    store.hold(10, "1a2b")
    digest = store.held_digest(10, "1a2b")
    assert digest and len(digest) == 64 and store.held_digest(20, "1a2b") is None
    assert store.prune(1, 30) == [20] and store.steps() == [10, 30]
    save(place, 10)
    with store.open(10) as reader:
        assert reader.manifest.state_digest() == digest  # written anew with the same numbers
    assert store.held_digest(10, "1a2b") == digest
    store.release(10, "1a2b")
    store.release(10, "1a2b")
    assert store.prune(1, 30) == [10] and is_step(place, 30)

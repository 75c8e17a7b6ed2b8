"""Stores behind a URI: each node copies them once, checks what it copied, and never uses half a
copy.
"""

import logging
import os
import re
import shutil
import threading
import time
from collections import Counter
from functools import partial

import numpy as np
import pytest

from ditlab.data.named_stores import open_named_store
from ditlab.data.stores.bucketed_store import BucketedStore
from ditlab.data.stores.manifest import BUCKETS_NAME, MANIFEST_NAME
from ditlab.data.stores.uploading import upload_store
from ditlab.errors import Unreachable
from ditlab.storage.remote import RemoteFiles
from support.damage import refused
from support.datasets.bucketed import bucketed
from support.disk import small_disk
from support.forked import Forked
from support.object_store.s3 import s3_at_hand


@pytest.fixture(scope="module")
def server():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_at_hand("bucket") as running:
        yield running


@pytest.fixture
def place(server, tmp_path):
    """A URI of the test's own; the server's record of requests is cleared."""
    server.requests.clear()
    yield f"s3://bucket/{tmp_path.name}/s?{server.query}"
    server.before = lambda request: None


@pytest.fixture
def opened(place, home):
    """Opens the store at that place."""
    return partial(open_named_store, "data.path", place, home)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Folder of this node's copies."""
    monkeypatch.setenv("DITLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stores"


def test_a_manifest_beyond_its_bound_is_not_fetched_whole(make_store, home, monkeypatch):
    monkeypatch.setattr("ditlab.storage.remote.MAX_SMALL_FILE", 2**20)
    store = make_store(rows=5)
    os.truncate(store.path / "store.json", 2**40)  # a file with holes
    with refused(r"cannot be read \(more than 1,048,576 bytes\)"):
        open_named_store("data.path", f"file://{store.path}", home)


def remote(uri):
    return RemoteFiles.open("test", uri)


def fetched(server, kind=".arrow"):
    """Count the requests for each file, by name."""
    names = [request.rpartition("/")[2] for request in server.requests if request[:3] == "GET"]
    return Counter(name for name in names if kind in name)


def copies(cache):
    return sorted(path for path in cache.iterdir() if not path.name.startswith("."))


def same_rows(left, right):
    return left.fingerprint == right.fingerprint and all(
        np.array_equal(one.tensor(name), other.tensor(name))
        for one, other in zip(left.parts, right.parts, strict=True)
        for name in one.columns
    )


@pytest.fixture(params=["plain", "bucketed"])
def store(request, make_store, tmp_path):
    if request.param == "plain":
        return make_store(rows_per_shard=30)
    return bucketed(tmp_path / "s")


@pytest.mark.parametrize("scheme", ["s3", "memory", "file"])
def test_there_and_back(scheme, store, place, home, cache, tmp_path):
    uri = {
        "s3": place,
        "memory": f"memory://{tmp_path.name}/s",
        "file": f"file://{tmp_path}/there",
    }[scheme]
    upload_store(store, uri)
    said: list[str] = []
    copy = open_named_store("data.path", uri, home, notify=said.append)
    assert same_rows(copy, store) and type(copy) is type(store)
    assert copy.path.parent == cache and copy.path.name.endswith(store.fingerprint[:12])
    (line,) = said
    places = [re.escape(str(place)) for place in (uri, copy.path)]
    assert re.fullmatch(r"data\.path={}: [\d.]+ \w+ copied to {} on .* s\.".format(*places), line)
    shutil.rmtree(store.path)
    open_named_store("data.path", uri, home, notify=said.append)
    assert len(said) == 1, "a copy that is there is used without a word"


def test_a_copy_costs_one_small_request_the_second_time(server, place, make_store, opened):
    upload_store(make_store(rows_per_shard=10), place)
    opened()
    assert set(fetched(server).values()) == {1} and len(fetched(server)) == 10
    server.requests.clear()
    opened()
    assert fetched(server) == {} and fetched(server, MANIFEST_NAME) == {MANIFEST_NAME: 1}


def test_another_store_at_the_place_is_another_copy(
    place, make_store, opened, home, cache, tmp_path
):
    first = make_store()
    upload_store(first, place)
    old = opened()
    shutil.rmtree(first.path)
    remote(place).delete("", MANIFEST_NAME)
    new = make_store(seed=1)
    upload_store(new, place)
    assert same_rows(opened(), new)
    assert len(copies(cache)) == 2
    assert open_named_store("x", str(old.path), home).fingerprint == old.fingerprint


def start(uri, home):
    """Start a process that opens the store, on a line of input, and prints its fingerprint."""
    code = (
        "import sys; from pathlib import Path; from ditlab.home import Home;"
        "from ditlab.data.named_stores import open_named_store;"
        "print('ready', flush=True); sys.stdin.readline();"
        "print(open_named_store('data.path', sys.argv[1], Home(Path(sys.argv[2]))).fingerprint)"
    )
    process = Forked(code, uri, str(home.root))
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
def test_two_processes_at_once_make_one_copy(server, place, make_store, home, cache):
    store = make_store(rows_per_shard=30)
    upload_store(store, place)
    server.before = lambda request: (
        ".arrow" in request and request.startswith("GET") and time.sleep(1)
    )
    both = [start(place, home) for _ in range(2)]
    for process in both:
        process.go()
    ends = [(process.stdout.read(), process.stderr.read()) for process in both]
    assert [out.strip() for out, _ in ends] == [store.fingerprint] * 2
    assert set(fetched(server).values()) == {1} and len(copies(cache)) == 1
    said = "".join(err for _, err in ends)
    assert said.count(" copied to ") == 1 and said.count("another process copies it") == 1


@pytest.mark.slow
def test_a_copy_cut_short_is_not_used_and_is_continued(
    server, place, make_store, opened, home, cache
):
    store = make_store(rows=120, rows_per_shard=10)
    upload_store(store, place)
    last, release = store.manifest.shards[-1].file, threading.Event()
    server.before = lambda request: (
        last in request and request.startswith("GET") and release.wait(60)
    )
    process = start(place, home)
    try:
        process.go()
        deadline = time.monotonic() + 60
        while len(list(cache.glob("*/shard-*.arrow"))) < 11 and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        process.kill()
        release.set()
    (half,) = copies(cache)
    inodes = {path: path.stat().st_ino for path in half.glob("shard-*.arrow")}
    assert len(inodes) == 11 and not (half / MANIFEST_NAME).exists()
    with refused("holds no store"):
        open_named_store("data.path", str(half), home)
    server.requests.clear()
    assert same_rows(opened(), store)
    assert fetched(server) == {last: 1}, "what was whole stays"
    assert inodes == {path: path.stat().st_ino for path in inodes}
    assert not list(half.glob(".*"))


def flip(content):
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


def shard(store):
    part = store.parts[-1]
    return ("" if part is store else part.path.name), part.manifest.shards[0].file


def root(store):
    return BUCKETS_NAME if isinstance(store, BucketedStore) else MANIFEST_NAME


def test_an_altered_shard_at_the_place_is_refused(store, place, opened, cache):
    upload_store(store, place)
    files = remote(place)
    content = files.read(*shard(store))
    files.replace(*shard(store), flip(content))
    altered = r"data\.path=s3://\S+: \S*shard-\S+ was altered: its SHA-256 is \w+\.\.\., and the"
    for _ in range(2):
        with refused(altered):
            opened()
    assert not list(cache.glob(f"*/{root(store)}")) and not list(cache.glob("**/*.partial"))
    files.delete(*shard(store))  # what the message says
    upload_store(store, place)
    assert same_rows(opened(), store)


@pytest.mark.parametrize("what", [MANIFEST_NAME, "shard"])
def test_a_part_that_is_missing_at_the_place(what, place, opened, cache, tmp_path):
    store = bucketed(tmp_path / "s")
    upload_store(store, place)
    folder, name = shard(store)
    remote(place).delete(folder, name if what == "shard" else what)
    with refused(rf"data\.path=\S+: {folder}/{what}\S* is missing; .*upload the store again"):
        opened()
    assert not list(cache.glob(f"*/{BUCKETS_NAME}"))


def test_a_copy_that_was_damaged_on_the_node_is_repaired(server, place, make_store, opened):
    store = make_store(rows_per_shard=30)
    upload_store(store, place)
    copy = opened()
    broken, gone = (copy.path / each.file for each in store.manifest.shards[:2])
    broken.write_bytes(flip(broken.read_bytes()))
    gone.unlink()
    server.requests.clear()
    said: list[str] = []
    assert same_rows(opened(notify=said.append), store)
    assert fetched(server) == {broken.name: 1, gone.name: 1} and "was damaged" in said[0]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_place_that_does_not_answer(server, place, make_store, opened, cache):
    """One sentence names the remedy. The client tries some seconds."""
    upload_store(make_store(), place)
    server.stop()
    try:
        with pytest.raises(
            Unreachable, match=r"data\.path=s3://\S+ cannot be read \(.*\); check the address"
        ):
            opened()
    finally:
        server.start()


def test_a_full_disk(place, make_store, opened, tmp_path, monkeypatch):
    store = make_store(rows=100_000, rows_per_shard=10_000, batch=100_000)
    upload_store(store, place)
    with small_disk(tmp_path / "disk", "1m") as disk:
        monkeypatch.setenv("DITLAB_CACHE", str(disk.path))
        with refused(r"^data\.path=s3://.* point DITLAB_CACHE at a larger disk"):
            opened()
        assert not list(disk.path.rglob("*.partial"))
        assert not list(disk.path.glob(f"stores/*/{MANIFEST_NAME}"))
        disk.resize("20m")
        assert same_rows(opened(), store)


def test_without_a_cache_of_its_own_the_home_keeps_copies(
    place, make_store, opened, home, monkeypatch
):
    monkeypatch.delenv("DITLAB_CACHE")
    upload_store(make_store(), place)
    assert opened().path.parent == home.root / "caches" / "stores"


def test_an_upload_overwrites_no_other_store(place, make_store):
    first, second = make_store(), make_store(name="second", seed=1)
    assert upload_store(first, place).outcome == "uploaded"
    before = remote(place).sizes("")
    assert upload_store(first, place).outcome == "unchanged"
    with refused(r"URI=s3://\S+ holds another store \(random, fingerprint"):
        upload_store(second, place)
    assert remote(place).sizes("") == before


def test_an_upload_that_was_cut_short_is_continued(store, server, place, opened, cache):
    """Manifests come last, so half a store is none."""
    upload_store(store, place)
    remote(place).delete("", root(store))
    remote(place).delete(*shard(store))
    with refused(r"data\.path=s3://\S+ holds no store; put one there with `ditlab data upload"):
        opened()
    assert not cache.exists()
    server.requests.clear()
    again = upload_store(store, place)
    assert (again.outcome, again.sent) == ("uploaded", 1)
    put = [request for request in server.requests if request.startswith("PUT")]
    assert all(request.endswith((shard(store)[1], ".json")) for request in put)
    assert same_rows(opened(), store)


@pytest.mark.parametrize(
    "uri",
    ["nowhere", "s3://nowhere/x?{query}", "foo://a/b", "s3://me:hunter2@bucket/x", "s3:/bucket/x"],
)
def test_an_upload_to_nowhere(uri, server, make_store):
    with refused(r"^URI=(?!.*hunter2)"):
        upload_store(make_store(), uri.format(query=server.query))

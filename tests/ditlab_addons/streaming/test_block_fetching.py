"""Blocks from an object store: each once, ahead of need, and right whatever the server does."""

import hashlib
import random
import re
import threading
import time
from collections import Counter
from functools import partial

import fsspec
import pytest

from ditlab.errors import StorageOutage, UserError
from ditlab.storage.remote import RemoteFiles
from ditlab_addons.streaming.streamed_store import BlockCache, BlockFetcher, BlockRequest
from support.damage import refused
from support.object_store.server import CREDENTIALS, object_server

BLOCK, FILES, BLOCKS = 40_000, 3, 12
ALL = range(FILES * BLOCKS)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects") / "bucket" / "store"
    folder.mkdir(parents=True)
    for number in range(FILES):
        (folder / f"{number}.arrow").write_bytes(random.Random(number).randbytes(BLOCK * BLOCKS))
    return folder


@pytest.fixture(scope="module")
def running(original):
    with object_server(original.parents[1]) as server:
        yield server


@pytest.fixture
def server(running):
    running.requests.clear()
    yield running
    running.fault, running.link.latency = lambda request: None, 0.0


@pytest.fixture
def open_fetcher(server, tmp_path, monkeypatch):
    """Return fetchers of the store, through one cache of 40 blocks; `wait` is the patience in
    seconds.
    """
    opened = []

    def open_one(blocks=40, wait=20.0, uri=""):
        monkeypatch.setenv("DITLAB_STORAGE_WAIT", str(wait))
        files = RemoteFiles.open("data.path", uri or f"s3://bucket/store?{server.query}")
        cache = BlockCache(tmp_path / "blocks", (blocks + 2) * BLOCK)
        opened.append(BlockFetcher(files, cache))
        return opened[-1]

    yield open_one
    for fetcher in opened:
        fetcher.close()


def check(expected, content):
    if hashlib.sha256(content).hexdigest() != expected:
        raise ValueError("altered")


def request(number):
    file, block = divmod(number, BLOCKS)
    content = random.Random(file).randbytes(BLOCK * BLOCKS)[block * BLOCK :][:BLOCK]
    digest = hashlib.sha256(content).hexdigest()
    return BlockRequest(digest, f"{file}.arrow", block * BLOCK, BLOCK, partial(check, digest))


REQUESTS = [request(number) for number in ALL]


def fetch(fetcher, numbers=ALL):
    """Fetch blocks, and compare them with the originals."""
    wanted = [REQUESTS[number] for number in numbers]
    found = fetcher.fetch(wanted)
    assert set(found) == {each.key for each in wanted}
    for each in wanted:
        each.verify(memoryview(found[each.key]))


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(2e-3)


def test_each_block_is_one_request_and_each_file_another(server, open_fetcher):
    fetcher = open_fetcher()
    fetch(fetcher)
    assert Counter(each.method for each in server.requests)["GET"] == len(ALL)
    heads = len(server.requests) - len(ALL)
    assert FILES <= heads <= FILES * 8, (
        "threads that open a file at the same time each ask for its size"
    )
    before = len(server.requests)
    fetch(open_fetcher())
    assert len(server.requests) == before


def test_a_block_is_fetched_once_for_all_threads(server, open_fetcher):
    server.link.latency = 0.02
    fetcher = open_fetcher()
    threads = [threading.Thread(target=fetch, args=(fetcher, range(8))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.ranges()) == 8


def test_a_server_that_stays_away_ends_in_one_sentence(server, open_fetcher):
    fetcher = open_fetcher(wait=0.3)
    fetch(fetcher, range(2))
    server.fault = lambda asked: "500"
    with pytest.raises(StorageOutage) as caught:
        fetch(fetcher, range(3))
    text = str(caught.value)
    place = re.escape(f"data.path=s3://bucket/store?{server.query}")
    assert re.match(rf"{place} has not given 0\.arrow for \d s \(AWS Error INTERNAL", text)
    assert text.endswith(
        "); check the network and the credentials in the environment, and resume the run."
    )
    assert caught.value.kind == "storage_unreachable" and caught.value.exit_code == 1
    server.fault = lambda asked: None
    fetch(fetcher, range(3))


def test_a_size_that_was_told_wrongly_is_asked_for_again(server, open_fetcher):
    sizes = iter(["short", "short", "short"])
    server.fault = lambda asked: next(sizes, None) if asked.method == "HEAD" else None
    fetch(open_fetcher(wait=5), range(BLOCKS - 2, BLOCKS))


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        ("flipped", "was altered: its bytes from 440,000 on do not have the manifest's hash"),
        ("missing", "is missing"),
        pytest.param(
            "cut",
            "was altered: its bytes from 120,000 on do not have the manifest's hash",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_altered_in_the_store_is_said_at_once(open_fetcher, original, harm, problem):
    path = original / "1.arrow"
    content = path.read_bytes()
    altered = {"flipped": content[:-7] + b"x" + content[-6:], "cut": content[: BLOCK * 3 + 500]}
    fetcher = open_fetcher(wait=30)
    try:
        path.unlink() if harm == "missing" else path.write_bytes(altered[harm])
        with pytest.raises(UserError) as caught:
            fetch(fetcher)
    finally:
        path.write_bytes(content)
    said = str(caught.value)
    assert f": 1.arrow {problem}" in said and "upload the store again" in said
    assert not isinstance(caught.value, StorageOutage)


@pytest.mark.parametrize("harm", [lambda whole: whole[:-1] + b"?", lambda whole: whole[:100]])
def test_a_damaged_block_of_the_cache_is_fetched_again(server, open_fetcher, tmp_path, harm):
    first = open_fetcher()
    fetch(first, range(4))
    path = tmp_path / "blocks" / REQUESTS[2].key
    content = path.read_bytes()
    path.write_bytes(harm(content))
    before = len(server.ranges())
    fetch(open_fetcher(), range(4))
    assert len(server.ranges()) == before + 1 and path.read_bytes() == content


def test_a_hint_is_fetched_ahead_bounded_by_the_cache_and_a_newer_one_replaces_it(
    server, open_fetcher
):
    fetcher = open_fetcher(blocks=10)
    fetcher.expect("", REQUESTS)
    until(lambda: len(server.ranges()) == 6)
    fetcher.expect("", REQUESTS[30:34])
    until(lambda: all(fetcher.cache.get(each.key) for each in REQUESTS[30:34]))
    fetch(fetcher, range(30, 34))
    assert len(server.ranges()) == 6 + 4, "a hint costs nothing later"


def test_the_least_recently_used_blocks_go(tmp_path):
    cache = BlockCache(tmp_path / "blocks", 10 * BLOCK)
    for number in range(30):
        block = cache.keep(str(number), bytes([number]) * BLOCK)
        assert bytes(block) == bytes([number]) * BLOCK
        cache.get("0")
    left = {int(path.name) for path in (tmp_path / "blocks").iterdir()}
    assert {0, 29} <= left and len(left) <= 10
    lower = BlockCache(tmp_path / "blocks", 4 * BLOCK)
    assert len([*(tmp_path / "blocks").iterdir()]) == 3 and lower.get("0")


def test_what_is_needed_now_comes_before_what_is_needed_soon(server, open_fetcher):
    server.link.latency = 0.05
    fetcher = open_fetcher()
    fetch(fetcher, range(24, 25))  # its file is open
    fetcher.expect("", REQUESTS[:24])
    time.sleep(0.02)
    fetch(fetcher, range(25, 27))
    assert len([each for each in server.ranges() if each.key.endswith(("0.arrow", "1.arrow"))]) < 24


def test_a_hint_to_a_server_that_is_away_raises_nothing(server, open_fetcher):
    fetcher = open_fetcher(wait=10)
    server.fault = lambda asked: "500"
    fetcher.expect("", REQUESTS[:6])
    until(lambda: len(server.requests) >= 6)
    server.fault = lambda asked: None
    fetch(fetcher, range(6))


@pytest.mark.slow
def test_credentials_are_renewed_from_the_environment(server, open_fetcher, monkeypatch):
    monkeypatch.setattr("ditlab_addons.streaming.streamed_store.RENEWAL_INTERVAL", 0.0)
    fetcher = open_fetcher()
    fetch(fetcher, range(2))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    server.fault = lambda asked: None if asked.login == "renewed" else "400"
    fetch(fetcher, range(2, 8))
    assert server.requests[-1].login == "renewed" != CREDENTIALS["AWS_ACCESS_KEY_ID"]


def test_other_places_are_read_by_ranges_too(open_fetcher, original):
    fsspec.filesystem("memory").put(str(original), "/streamed", recursive=True)
    fetch(open_fetcher(uri="memory://streamed"))


def test_without_room_blocks_are_served_from_memory(open_fetcher, tmp_path):
    fetcher = open_fetcher(blocks=2)
    fetch(fetcher)
    sizes = [path.stat().st_size for path in (tmp_path / "blocks").rglob("*") if path.is_file()]
    assert sum(sizes) <= fetcher.cache.limit_bytes


def test_patience_is_a_number_of_seconds(open_fetcher):
    with refused(r"^DITLAB_STORAGE_WAIT=long is no number of seconds; write 300, or 0\.$"):
        open_fetcher(wait="long")

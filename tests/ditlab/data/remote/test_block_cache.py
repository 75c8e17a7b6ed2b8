"""The cache of blocks: bounded whatever happens, shared between processes, usable after a kill at any moment."""

import fcntl
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ditlab.data.remote.block_cache import BlockCache
from support.block_caches import put
from support.disk import small_disk

MIB = 1 << 20
BLOCK = 64 * 1024
LIMIT, BOUND = 16 * BLOCK + 1024, MIB
"""Bytes of a cache of 16 blocks and its other files, and of one that killed processes share."""


def content(number: int, size: int = BLOCK) -> bytes:
    return random.Random(number).randbytes(size)


def key(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def on_disk(folder: Path) -> int:
    """Bytes of all files below a folder, as a watcher sees them."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if not path.is_dir() else 0
        except FileNotFoundError:
            continue
    return total


@contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """Largest sum of file sizes meanwhile, in a list of one.

    Read under the cache's lock: else a block that is deleted and one that takes its room are both counted.
    """
    largest, done = [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            with suppress(FileNotFoundError), (folder / ".lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                largest[0] = max(largest[0], on_disk(folder))
            time.sleep(1e-3)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield largest
    finally:
        done.set()
        thread.join()


def held(cache: BlockCache, numbers: range) -> list[int]:
    return [number for number in numbers if cache.get(key(number)) is not None]


@pytest.fixture
def cache(tmp_path) -> Iterator[BlockCache]:
    opened = BlockCache(tmp_path / "blocks", LIMIT)
    yield opened
    opened.close()


def test_what_is_put_is_read_again_by_others(cache, tmp_path):
    assert bytes(put(cache, key(1), content(1))) == content(1) and cache.get(key(2)) is None
    other = BlockCache(tmp_path / "blocks", MIB * 2)
    found = other.get(key(1))
    assert found is not None and memoryview(found).readonly and bytes(found) == content(1)
    assert other.share() == LIMIT // 2, "two users, the least limit"


def test_maps_need_no_descriptors(cache):
    put(cache, key(1), content(1))
    before = len(list(Path("/proc/self/fd").iterdir()))
    maps = [cache.get(key(1)) for _ in range(100)]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before and all(maps)


def test_the_least_recently_used_goes_and_what_is_in_use_stays(cache, tmp_path):
    in_use = put(cache, key(0), content(0))
    for number in range(1, 16):
        put(cache, key(number), content(number))
    cache.get(key(1))
    for number in range(16, 20):
        put(cache, key(number), content(number))
    left = held(cache, range(16))
    assert {0, 1, 15} <= set(left) and not {2, 3, 4, 5} & set(left) and bytes(in_use) == content(0)
    assert on_disk(tmp_path) <= cache.limit_bytes


def test_without_room_the_block_is_served_from_memory(cache, tmp_path):
    blocks = [put(cache, key(number), content(number)) for number in range(30)]
    assert [bytes(block) for block in blocks] == [content(number) for number in range(30)]
    assert on_disk(tmp_path) <= cache.limit_bytes and len(held(cache, range(30))) == 16


def test_a_lower_limit_evicts_and_holds_for_all(cache, tmp_path):
    for number in range(8):
        put(cache, key(number), content(number))
    lower = BlockCache(tmp_path / "blocks", 4 * BLOCK + 1024)
    left = held(lower, range(8))
    assert on_disk(tmp_path) <= lower.limit_bytes and left == list(range(8 - len(left), 8)) and 0 < len(left) < 8
    for number in range(10, 20):
        put(cache, key(number), content(number))
    assert on_disk(tmp_path) <= lower.limit_bytes
    lower.close()
    for number in range(10, 20):
        put(cache, key(number), content(number))
    assert on_disk(tmp_path) > lower.limit_bytes


def test_a_claim_is_one_processs(cache, tmp_path):
    other = BlockCache(tmp_path / "blocks", 2 * MIB)
    with cache.claim(key(1)) as claim:
        assert claim is not None
        with other.claim(key(1)) as refused:
            assert refused is None
        assert bytes(put(other, key(1), content(1))) == content(1) and key(1) not in other, "served, and not kept twice"
    with other.claim(key(1)) as again:
        other.keep(key(1), again, content(1))
    assert key(1) in cache and not list((tmp_path / "blocks").glob("*.part"))


def test_a_damaged_block_is_discarded_and_put_again(cache, tmp_path):
    put(cache, key(1), content(1))
    path = tmp_path / "blocks" / key(1)
    path.write_bytes(b"x" + content(1)[1:])
    assert bytes(cache.get(key(1)))[:1] == b"x", "the content is the caller's to verify"
    cache.discard(key(1))
    assert cache.get(key(1)) is None and bytes(put(cache, key(1), content(1))) == content(1)
    assert bytes(cache.get(key(1))) == content(1)


@pytest.mark.parametrize("harm", ["gone", "empty", "other bytes"])
def test_without_its_sum_the_files_are_counted(cache, tmp_path, harm):
    for number in range(6):
        put(cache, key(number), content(number))
    lock = tmp_path / "blocks" / ".lock"
    lock.unlink()
    if harm != "gone":
        lock.write_bytes(b"" if harm == "empty" else b"damaged")
    for number in range(6, 40):
        put(cache, key(number), content(number))
        assert on_disk(tmp_path) <= cache.limit_bytes
    assert 39 in held(cache, range(40))


def test_a_folder_deleted_in_use_costs_the_cache_alone(cache, tmp_path):
    put(cache, key(1), content(1))
    shutil.rmtree(tmp_path / "blocks")
    for number in range(4):
        assert bytes(put(cache, key(number), content(number))) == content(number)
    assert cache.get(key(3)) is not None


def test_a_full_disk_makes_room_or_serves_from_memory(tmp_path):
    with small_disk(tmp_path / "disk", "2m") as disk:
        cache = BlockCache(disk.path / "blocks", 64 * MIB)
        for number in range(8):
            put(cache, key(number), content(number))
        disk.fill()
        assert bytes(put(cache, key(8), content(8))) == content(8)
        for number in range(100, 110):
            assert bytes(put(cache, key(number), content(number))) == content(number)
        disk.make_room()
        put(cache, key(9), content(9))
        assert 9 in held(cache, range(10))
        cache.close()


NURSERY = """
import hashlib, os, random, signal, sys, time, traceback
from pathlib import Path
from ditlab.data.remote.block_cache import BlockCache

def write(folder, limit, seed, seconds):
    numbers, end, window = random.Random(seed), time.monotonic() + seconds, []
    cache = BlockCache(folder, limit)
    (folder.parent / f"{seed}.ready").touch()
    while time.monotonic() < end:
        number = numbers.randrange(60)
        key, size = hashlib.sha256(b"%d" % number).hexdigest(), 16384 + 4096 * (number % 13)
        content, found = random.Random(number).randbytes(size), cache.get(key)
        if found is None:
            with cache.claim(key) as claim:
                found = content if claim is None else cache.keep(key, claim, content)
        assert bytes(found) == content, number
        window = [*window, found][-4:]

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    folder, limit, seed, seconds = Path(line.split()[0]), *map(float, line.split()[1:])
    if pid := os.fork():
        print(pid, flush=True)
        continue
    try:
        write(folder, int(limit), int(seed), seconds)
        (folder.parent / f"{int(seed)}.done").touch()
    except BaseException:
        traceback.print_exc()
    os._exit(0)
"""


class Nursery:
    """A process that forks processes which read and write a cache: each start takes a millisecond."""

    def __init__(self, folder: Path, limit: int) -> None:
        command = [sys.executable, "-c", NURSERY]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folder, self._limit = folder, limit

    def start(self, seed: int, seconds: float) -> int:
        """Start a writer and return its process id, once it has opened the cache."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{self.folder} {self._limit} {seed} {seconds}\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        self._wait(f"{seed}.ready")
        return pid

    def finished(self, seed: int) -> None:
        """Wait until a writer has come to its end, with every block right."""
        self._wait(f"{seed}.done")

    def close(self) -> None:
        self._process.communicate(timeout=20)

    def _wait(self, name: str) -> None:
        end = time.monotonic() + 60
        while not (self.folder.parent / name).exists():
            assert time.monotonic() < end, name
            time.sleep(1e-3)


@pytest.fixture
def nursery(tmp_path) -> Iterator[Nursery]:
    made = Nursery(tmp_path / "blocks", BOUND)
    yield made
    made.close()


@pytest.mark.slow
def test_two_processes_at_once_stay_below_the_bound(nursery):
    with watched(nursery.folder) as largest:
        for seed in (1, 2):
            nursery.start(seed, 0.3)
        nursery.finished(1)
        nursery.finished(2)
    assert BOUND * 0.6 < largest[0] <= BOUND


@pytest.mark.parametrize("kills", [5, pytest.param(400, marks=[pytest.mark.slow, pytest.mark.timeout(400)])])
def test_killed_at_any_moment_it_stays_usable(nursery, kills):
    """Writers die at random moments; the bound holds beside a living one, and every block that is left is whole."""
    folder, moments = nursery.folder, random.Random(kills)
    with watched(folder) as largest:
        nursery.start(0, 0.06 * kills)
        for seed in range(1, kills + 1):
            pid = nursery.start(seed, 60)
            time.sleep(moments.uniform(0, 0.06))
            os.kill(pid, signal.SIGKILL)
        nursery.finished(0)
        nursery.start(kills + 1, 0.02)  # where 0 ended first, this one deletes what the last killed one left
        nursery.finished(kills + 1)
        cache = BlockCache(folder, BOUND)
        whole = [
            number
            for number in range(60)
            if (block := cache.get(key(number))) is not None
            and bytes(block) == random.Random(number).randbytes(16384 + 4096 * (number % 13))
        ]
    found = {path.name for path in folder.iterdir() if len(path.name) == 64}
    assert {key(number) for number in whole} == found and len(found) > 5
    assert list(folder.glob("*.part")) == [] and largest[0] <= BOUND

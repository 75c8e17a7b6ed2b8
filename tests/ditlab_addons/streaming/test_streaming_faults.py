"""Training data from a server that fails: the same batches in the same order, or one sentence."""

import hashlib
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ditlab.data.loading import loader
from ditlab.data.loading.loader import Loader, WorkerBatches
from ditlab.data.orders import open_order
from ditlab.data.splits import open_data
from ditlab.data.stores.view import View
from ditlab.errors import StorageOutage, UserError
from ditlab.home import Home
from ditlab_addons.streaming.interleaved_order import InterleavedOrderSpec
from support.object_store.server import ObjectServer, Request, object_server
from support.orders import arrow_data

ORDER = InterleavedOrderSpec(streams=2, window=4)
BATCH, STEPS = 16, 120  # an epoch has 56 steps
FAULTS = ("500", "503", "403", "drop", "short", "long", "flip")


@pytest.fixture
def server(make_store, tmp_path, monkeypatch) -> Iterator[ObjectServer]:
    """A server of a store of 1,000 rows in 100 blocks."""
    monkeypatch.setattr(loader, "BLOCK_BYTES", 1)  # a step is a block of the loader
    monkeypatch.setenv("DITLAB_STORAGE_WAIT", "20")
    make_store(rows=1000, name="bucket/store", rows_per_block=10, rows_per_shard=250)
    with object_server(tmp_path) as running:
        yield running


def view_of(path: str, tmp_path: Path) -> View:
    access = "stream" if "://" in path else "auto"
    spec = arrow_data(path=path, access=access, cache="1MiB", hold_out=0.1, order=ORDER)
    return open_data(spec, Home(tmp_path / "home"), verify=False, notify=lambda message: None).train


def steps(view: View) -> Iterator[str]:
    """Digest of each step's batch."""
    batches = WorkerBatches(
        view, ("image", "label"), open_order(ORDER, view, BATCH, 3), BATCH, range(1)
    )
    with Loader(batches, 0, steps=STEPS, pin=False) as loader:
        for (batch,) in loader:
            yield hashlib.sha256(
                b"".join(batch[name].numpy().tobytes() for name in ("image", "label"))
            ).hexdigest()


@pytest.fixture
def expected(server, tmp_path) -> list[str]:
    found = list(steps(view_of(str(tmp_path / "bucket" / "store"), tmp_path)))
    assert len(set(found)) == len(found) == STEPS
    return found


@pytest.fixture
def streamed(server, tmp_path) -> Iterator[View]:
    view = view_of(f"s3://bucket/store?{server.query}", tmp_path)
    yield view
    view.store.close()


@pytest.mark.slow
def test_faults_at_random_alter_no_batch(server, streamed, expected):
    """A third of all answers fails, each in another way."""
    chance, failed = random.Random(5), []

    def fault(asked: Request) -> str | None:
        failed.append(chance.choice(FAULTS) if chance.random() < 0.3 else None)
        return failed[-1]

    server.fault = fault
    assert list(steps(streamed)) == expected
    assert set(failed) >= {*FAULTS, None}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*FAULTS, "away", "hang"])
def test_a_fault_of_one_kind_alters_no_batch(server, streamed, expected, kind, monkeypatch):
    monkeypatch.setattr("ditlab_addons.streaming.streamed_store.SILENCE", 1.0)
    numbers = iter(range(10**6))
    every = 100 if kind == "hang" else 5
    server.fault = lambda asked: kind if kind != "away" and next(numbers) % every == 2 else None
    found = []
    for number, digest in enumerate(steps(streamed)):
        found.append(digest)
        if kind == "away" and number in (3, 60):
            server.stop()
            threading.Timer(1.5, server.start).start()
    assert found == expected


@pytest.mark.slow
def test_a_minute_without_the_server_costs_time_alone(server, tmp_path, expected, monkeypatch):
    monkeypatch.setenv("DITLAB_STORAGE_WAIT", "300")
    found, began = [], time.monotonic()
    for number, digest in enumerate(steps(view_of(f"s3://bucket/store?{server.query}", tmp_path))):
        found.append(digest)
        if number == 3:
            server.stop()
            threading.Timer(60, server.start).start()
    assert found == expected
    assert 60 < time.monotonic() - began < 120


def test_the_second_ctrl_c_ends_a_loader_that_waits_for_a_server(server, tmp_path):
    view = view_of(f"s3://bucket/store?{server.query}", tmp_path)
    batches = WorkerBatches(view, ("image",), open_order(ORDER, view, BATCH, 3), BATCH, range(1))
    loader = Loader(batches, 0, steps=STEPS, pin=False)
    next(loader)
    server.fault = lambda asked: "500"
    threading.Timer(0.4, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        for _ in loader:
            pass
    loader.close()
    assert time.monotonic() - begin < 10, "and not DITLAB_STORAGE_WAIT"


@pytest.mark.slow
def test_a_server_that_stays_away_ends_the_loader_in_one_sentence(
    server, tmp_path, expected, monkeypatch
):
    monkeypatch.setenv("DITLAB_STORAGE_WAIT", "0.2")
    found, view = [], view_of(f"s3://bucket/store?{server.query}", tmp_path)
    with pytest.raises(
        StorageOutage, match=r"^data\.path=s3://.* has not given shard-.*; check the network .*\.$"
    ):
        for digest in steps(view):
            found.append(digest)
            if len(found) == 4:
                server.fault = lambda asked: "500"
    assert 4 <= len(found) < STEPS and found == expected[: len(found)]
    view.store.close()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["cache", "server"])
def test_a_flipped_byte_is_found_before_it_trains(
    server, streamed, expected, tmp_path, place, monkeypatch
):
    blocks = tmp_path / "home" / "caches" / "blocks"
    if place == "cache":
        assert list(steps(streamed)) == expected
        streamed.store.close()
        damaged = [path for path in blocks.iterdir() if len(path.name) == 64]
        for path in damaged:
            content = bytearray(path.read_bytes())
            content[len(content) * 3 // 4] ^= 4
            path.write_bytes(bytes(content))
        before = len(server.ranges())
        again = view_of(f"s3://bucket/store?{server.query}", tmp_path)
        assert list(steps(again)) == expected and len(server.ranges()) >= before + len(damaged) > 50
        again.store.close()
        return
    shard = next((tmp_path / "bucket" / "store").glob("shard-00001*.arrow"))
    image = streamed.gather("image", np.array([400])).numpy().tobytes()
    content = shard.read_bytes()
    shard.write_bytes(content.replace(image, bytes([image[0] ^ 1]) + image[1:]))
    assert shard.read_bytes() != content
    shutil.rmtree(blocks)
    found = []
    with pytest.raises(
        UserError, match=rf"{shard.name} was altered: its bytes from [\d,]+ on do not have"
    ):
        found.extend(steps(streamed))
    assert found == expected[: len(found)]

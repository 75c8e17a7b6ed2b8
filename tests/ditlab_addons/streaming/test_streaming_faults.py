"""Training data from a server that fails: the same batches in the same order, or one sentence."""

import hashlib
import signal
import threading
import time

import pytest

from ditlab.data.loading import loader
from ditlab.data.loading.loader import Loader, WorkerBatches
from ditlab.data.orders import open_order
from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab_addons.streaming.interleaved_order import InterleavedOrderSpec
from support.object_store.server import object_server
from support.orders import arrow_data

ORDER = InterleavedOrderSpec(streams=2, window=4)
BATCH, STEPS = 16, 120  # an epoch has 56 steps
FAULTS = ("500", "503", "403", "400", "drop", "short", "long", "flip")


@pytest.fixture
def server(make_store, tmp_path, monkeypatch):
    """A server of a store of 1,000 rows in 100 blocks."""
    monkeypatch.setattr(loader, "BLOCK_BYTES", 1)  # a step is a block of the loader
    monkeypatch.setenv("DITLAB_STORAGE_WAIT", "20")
    make_store(rows=1000, name="bucket/store", rows_per_block=10, rows_per_shard=250)
    with object_server(tmp_path) as running:
        yield running


def view_of(path, tmp_path):
    access = "stream" if "://" in path else "auto"
    spec = arrow_data(path=path, access=access, cache="1MiB", hold_out=0.1, order=ORDER)
    return open_data(spec, Home(tmp_path / "home"), verify=False, notify=lambda message: None).train


def steps(view):
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
def streamed(server, tmp_path):
    view = view_of(f"s3://bucket/store?{server.query}", tmp_path)
    yield view
    view.store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*FAULTS, "away", "hang"])
def test_a_fault_of_one_kind_alters_no_batch(server, streamed, tmp_path, kind, monkeypatch):
    expected = list(steps(view_of(str(tmp_path / "bucket" / "store"), tmp_path)))
    assert len(set(expected)) == len(expected) == STEPS
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


def test_the_second_ctrl_c_ends_a_loader_that_waits_for_a_server(server, streamed):
    found = steps(streamed)
    next(found)
    server.fault = lambda asked: "500"
    threading.Timer(0.4, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(found)
    assert time.monotonic() - begin < 10, "and not DITLAB_STORAGE_WAIT"

"""Loader: the rows of the global order, resumable anywhere, without threads left behind."""

import gc
import itertools
import threading
import time
import traceback

import numpy as np
import pytest
import torch

from ditlab.data.loading import loader
from ditlab.data.loading.loader import Loader, WorkerBatches
from ditlab.data.loading.order import FullOrder
from ditlab.data.stores.store import Store
from ditlab.data.stores.view import View

COLUMNS = ("image", "label")


def open_loader(view, order, position, micro_size, micro_indices, **options):
    return Loader(
        WorkerBatches(view, COLUMNS, order, micro_size, micro_indices), position, **options
    )


@pytest.fixture
def view(make_store):
    rows = np.random.default_rng(3).permutation(100)[:90]
    return View(make_store(rows_per_shard=30), rows, "test")


@pytest.fixture
def order():
    return FullOrder(90, 16, seed=5)


@pytest.fixture(params=[1, 700, 10**6])
def block_bytes(request, monkeypatch):
    """Size of a block: one step, a few steps, more than an epoch."""
    monkeypatch.setattr(loader, "BLOCK_BYTES", request.param)


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    deadline = time.monotonic() + 5
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not loader_threads()


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("ditlab-loader")]


def check_step(step, view, batch):
    """Compare micro-batches with the rows of `batch`, (micro-batches, rows)."""
    assert len(step) == len(batch)
    for micro, places in zip(step, batch, strict=True):
        assert list(micro) == list(COLUMNS)
        for name, values in micro.items():
            expected = view.store.tensor(name)[torch.from_numpy(view.rows[places])]
            assert values.dtype == expected.dtype
            assert torch.equal(values, expected)


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("mine", [range(4), range(2), range(2, 4), [3, 1]])
@pytest.mark.parametrize("depth", [1, 3])
def test_steps_are_the_stores_rows_in_the_global_order(view, order, mine, depth):
    """A worker may have any micro-batches of a step, in any order."""
    with open_loader(view, order, 0, 4, mine, depth=depth, steps=13) as loader:  # 5 steps an epoch
        steps = list(loader)
    assert len(steps) == 13
    for step, batch in zip(steps, order.batches(0, 13), strict=True):
        check_step(step, view, batch.reshape(4, 4)[[*mine]])


@pytest.mark.usefixtures("block_bytes")
def test_batches_kept_for_long_keep_their_values(view, order):
    """Memory is used again only once no tensor refers to it; a write into a batch changes no other
    batch.
    """
    with open_loader(view, order, 0, 16, range(1)) as loader:
        kept = []
        for step in itertools.islice(loader, 60):
            kept.append([{name: values[:] for name, values in step[0].items()}])
            step[0] = None
        kept[0][0]["image"].zero_()
    for step, batch in zip(kept[1:], order.batches(1, 59), strict=True):
        check_step(step, view, batch[None])


@pytest.mark.usefixtures("block_bytes")
def test_an_error_in_the_background_is_raised_in_the_consumer(view, order, monkeypatch):
    def broken(*_):
        raise OSError("the disk went away")

    monkeypatch.setattr(Store, "gather", broken)
    loader = open_loader(view, order, 0, 16, range(1))
    with pytest.raises(OSError, match="disk went away") as caught:
        next(loader)
    assert "_gather" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert not loader_threads()
    assert list(loader) == [], "an iterator that failed is over"


def test_closing_ends_the_thread_and_the_iteration(view, order):
    with open_loader(view, order, 0, 16, range(1)) as loader:
        next(loader)
        assert loader_threads()
    assert not loader_threads()
    assert list(loader) == []
    loader.close()


def test_a_dropped_loader_leaves_no_thread(view, order):
    """Threads end once the loader is collected, as the fixture checks."""
    next(open_loader(view, order, 0, 16, range(1)))
    gc.collect()


def test_a_position_between_batches_is_refused_at_once(view, order):
    with pytest.raises(ValueError, match="position 7"):
        open_loader(view, order, 7, 16, range(1))

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


def open_loader(view, order, position, micro_size, micro_indices, **options) -> Loader:
    return Loader(
        WorkerBatches(view, COLUMNS, order, micro_size, micro_indices), position, **options
    )


@pytest.fixture
def view(make_store):
    return View(
        make_store(rows=100, rows_per_shard=30),
        np.random.default_rng(3).permutation(100)[:90],
        "test",
    )


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


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ditlab-loader")]


def expected_step(
    view: View, order: FullOrder, position: int, micro_size: int, micro_indices: range
) -> list:
    micros = order.batches(order.batch_number(position), 1).reshape(-1, micro_size)
    return [
        {name: view.store.tensor(name)[torch.from_numpy(view.rows[micros[m]])] for name in COLUMNS}
        for m in micro_indices
    ]


def assert_same(step: list, expected: list) -> None:
    assert len(step) == len(expected)
    for micro, other in zip(step, expected, strict=True):
        assert list(micro) == list(other)
        for name, values in other.items():
            assert micro[name].dtype == values.dtype
            assert torch.equal(micro[name], values)


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("mine", [range(4), range(2), range(2, 4), [3, 1]])
@pytest.mark.parametrize("depth", [1, 3])
def test_steps_are_the_stores_rows_in_the_global_order(view, mine, depth):
    """A worker may have any micro-batches of a step, in any order."""
    order = FullOrder(len(view), 16, seed=5)
    with open_loader(view, order, 0, 4, mine, depth=depth, steps=13) as loader:  # 5 steps an epoch
        steps = list(loader)
    assert len(steps) == 13
    for number, step in enumerate(steps):
        assert_same(step, expected_step(view, order, number * 16, 4, mine))


@pytest.mark.usefixtures("block_bytes")
def test_batches_kept_for_long_keep_their_values(view):
    """Memory is used again only once no tensor refers to it; a write into a batch changes no other
    batch.
    """
    order = FullOrder(len(view), 16, seed=5)
    with open_loader(view, order, 0, 16, range(1)) as loader:
        kept = []
        for step in itertools.islice(loader, 60):
            kept.append([{name: values[:] for name, values in step[0].items()}])
            step[0] = None
        again = expected_step(view, order, 59 * 16, 16, range(1))
        kept[0][0]["image"].zero_()
    for number, step in enumerate(kept[1:], start=1):
        assert_same(step, expected_step(view, order, number * 16, 16, range(1)))
    assert_same(kept[59], again)


@pytest.mark.usefixtures("block_bytes")
def test_an_error_in_the_background_is_raised_in_the_consumer(view, monkeypatch):
    def broken(*_: object) -> None:
        raise OSError("the disk went away")

    monkeypatch.setattr(Store, "gather", broken)
    loader = open_loader(view, FullOrder(len(view), 16, seed=5), 0, 16, range(1))
    with pytest.raises(OSError, match="disk went away") as caught:
        next(loader)
    assert "_gather" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert not loader_threads()
    assert list(loader) == [], "an iterator that failed is over"


def test_closing_ends_the_thread_and_the_iteration(view):
    order = FullOrder(len(view), 16, seed=5)
    with open_loader(view, order, 0, 16, range(1)) as loader:
        next(loader)
        assert loader_threads()
    assert not loader_threads()
    assert list(loader) == []
    loader.close()


def test_a_dropped_loader_leaves_no_thread(view):
    """Threads end once the loader is collected, as the fixture checks."""
    next(open_loader(view, FullOrder(len(view), 16, seed=5), 0, 16, range(1)))
    gc.collect()


def test_a_position_between_batches_is_refused_at_once(view):
    with pytest.raises(ValueError, match="position 7"):
        open_loader(view, FullOrder(len(view), 16, seed=5), 7, 16, range(1))

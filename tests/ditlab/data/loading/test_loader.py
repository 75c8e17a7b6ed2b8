import gc
import itertools
import threading
import time
import traceback

import numpy as np
import pytest
import torch

from denoisers.contract import BatchField
from ditlab.data.loading import prefetch
from ditlab.data.loading.loader import Loader
from ditlab.data.loading.order import SampleOrder, worker_micro_indices
from ditlab.data.stores.view import View

FIELDS = (
    BatchField("image", (1, 3, 4), "float32", value_range=(-1, 1)),
    BatchField("label", (), "int64", num_classes=5),
)


@pytest.fixture
def view(make_store):
    return View(make_store(rows=100, rows_per_shard=30), np.random.default_rng(3).permutation(100)[:90], "test")


@pytest.fixture(params=[1, 700, 10**6])
def hand_over_bytes(request, monkeypatch):
    """One step a hand-over; a few; more than an epoch."""
    monkeypatch.setattr(prefetch, "AHEAD_BYTES", request.param)


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not loader_threads()


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ditlab-loader")]


def expected_step(view: View, order: SampleOrder, position: int, micro_size: int, micro_indices: range) -> list:
    micros = order.indices(position).reshape(-1, micro_size)
    return [
        {f.name: view.store.tensor(f.name)[torch.from_numpy(view.rows[micros[m]])] for f in FIELDS}
        for m in micro_indices
    ]


def assert_same(step: list, expected: list) -> None:
    assert len(step) == len(expected)
    for micro, wanted in zip(step, expected, strict=True):
        assert list(micro) == list(wanted)
        for name, values in wanted.items():
            assert micro[name].dtype == values.dtype
            assert torch.equal(micro[name], values)


@pytest.mark.usefixtures("hand_over_bytes")
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("depth", [1, 3])
def test_steps_are_the_stores_rows_in_the_global_order(view, rank, world, depth):
    order = SampleOrder(len(view), 16, seed=5)
    mine = worker_micro_indices(rank, world, 16, 4)
    with Loader(view, FIELDS, order, 0, 4, mine, depth=depth, steps=13) as loader:  # 5 steps an epoch
        steps = list(loader)
    assert len(steps) == 13
    for number, step in enumerate(steps):
        assert_same(step, expected_step(view, order, number * 16, 4, mine))


@pytest.mark.usefixtures("hand_over_bytes")
@pytest.mark.parametrize("stopped_after", [0, 1, 5, 7, 10])
def test_a_resumed_loader_goes_on_where_the_first_stopped(view, stopped_after):
    order = SampleOrder(len(view), 16, seed=5)
    with Loader(view, FIELDS, order, 0, 8, range(2)) as loader:
        whole = list(itertools.islice(loader, 12))
    with Loader(view, FIELDS, order, 0, 8, range(2)) as loader:
        first = list(itertools.islice(loader, stopped_after))
        position = loader.position
    assert position == stopped_after * 16
    with Loader(view, FIELDS, order, position, 8, range(2)) as loader:
        rest = list(itertools.islice(loader, 12 - stopped_after))
    for step, wanted in zip(first + rest, whole, strict=True):
        assert_same(step, wanted)


def test_micro_indices_may_be_any(view):
    order = SampleOrder(len(view), 16, seed=5)
    with Loader(view, FIELDS, order, 16, 4, [3, 1], steps=1) as loader:
        (step,) = loader
    assert_same(step, expected_step(view, order, 16, 4, [3, 1]))


@pytest.mark.usefixtures("hand_over_bytes")
def test_batches_kept_for_long_keep_their_values(view):
    """Memory is used again only once nobody holds it; a batch written to harms no other."""
    order = SampleOrder(len(view), 16, seed=5)
    with Loader(view, FIELDS, order, 0, 16, range(1)) as loader:
        kept = []
        for step in itertools.islice(loader, 60):
            kept.append([{name: values[:] for name, values in step[0].items()}])
            step[0] = None
        again = expected_step(view, order, 59 * 16, 16, range(1))
        kept[0][0]["image"].zero_()
    for number, step in enumerate(kept[1:], start=1):
        assert_same(step, expected_step(view, order, number * 16, 16, range(1)))
    assert_same(kept[59], again)


@pytest.mark.usefixtures("hand_over_bytes")
def test_a_slow_consumer_and_a_quick_one_get_the_same(view):
    order = SampleOrder(len(view), 16, seed=5)
    with Loader(view, FIELDS, order, 0, 16, range(1), steps=12) as loader:
        slow = [step for step in loader if time.sleep(0.005) is None]
    for number, step in enumerate(slow):
        assert_same(step, expected_step(view, order, number * 16, 16, range(1)))


@pytest.mark.usefixtures("hand_over_bytes")
def test_an_error_in_the_background_is_raised_in_the_consumer(view):
    class Broken(View):
        @property
        def store(self):
            if threading.current_thread() is not threading.main_thread():
                raise OSError("the disk went away")
            return view.store

        @store.setter
        def store(self, value):
            pass

    broken = object.__new__(Broken)
    object.__setattr__(broken, "rows", view.rows)
    order = SampleOrder(len(view), 16, seed=5)
    loader = Loader(broken, FIELDS, order, 0, 16, range(1))
    with pytest.raises(OSError, match="disk went away") as caught:
        next(loader)
    assert "_gather_column" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert not loader_threads()
    assert list(loader) == [], "an iterator that failed is over"


def test_closing_ends_the_thread_and_the_iteration(view):
    order = SampleOrder(len(view), 16, seed=5)
    loader = Loader(view, FIELDS, order, 0, 16, range(1))
    next(loader)
    assert loader_threads()
    loader.close()
    assert not loader_threads()
    assert list(loader) == []
    loader.close()


def test_an_error_of_the_consumer_ends_the_thread(view):
    order = SampleOrder(len(view), 16, seed=5)
    with pytest.raises(ZeroDivisionError), Loader(view, FIELDS, order, 0, 16, range(1)) as loader:
        next(loader)
        raise ZeroDivisionError
    assert not loader_threads()


def test_a_dropped_loader_leaves_no_thread(view):
    """The fixture waits for it."""
    next(Loader(view, FIELDS, SampleOrder(len(view), 16, seed=5), 0, 16, range(1)))


def test_a_position_between_batches_is_refused_at_once(view):
    with pytest.raises(ValueError, match="position 7"):
        Loader(view, FIELDS, SampleOrder(len(view), 16, seed=5), 7, 16, range(1))

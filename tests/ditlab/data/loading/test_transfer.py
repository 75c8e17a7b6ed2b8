"""Transfer of micro-batches: one ahead of use, waiting for nothing, with the numbers of rows that
stay on the host.
"""

import gc
import weakref
from concurrent import futures

import pytest
import torch

from ditlab.data.loading import loader as loading
from ditlab.data.loading.loader import Loader, WorkerBatches
from ditlab.data.loading.order import FullOrder
from ditlab.data.loading.transfer import CudaCopyStream, TransferredSteps
from ditlab.data.stores.view import View
from ditlab.training import trainer
from support.trainings.workers import newest, same_state, tiny, train_here


class RecordedStream:
    """Stream of the host that notes what is begun and used, in its order."""

    def __init__(self):
        self.events, self.copies = [], weakref.WeakSet()

    def start(self, rows):
        number = int(rows["x"][0])
        self.events.append(f"begin {number}")
        copies = {name: values.clone() for name, values in rows.items()}
        self.copies.add(copies["x"])
        return copies, number

    def hand_over(self, copy):
        rows, number = copy
        self.events.append(f"use {number}")
        return rows


class Steps:
    """Loader of steps of `per_step` numbered micro-batches, of which `ready` are there without
    waiting.
    """

    def __init__(self, steps=3, per_step=2, ready=99):
        self._numbers = torch.arange(steps * per_step).reshape(steps, per_step).tolist()
        self.ready = ready

    @property
    def is_ready(self):
        return bool(self._numbers) and self.ready > 0

    def __next__(self):
        if not self._numbers:
            raise StopIteration
        self.ready -= 1
        numbers = self._numbers.pop(0)
        step = [{"x": torch.full((2,), each), "unused": torch.zeros(2)} for each in numbers]
        self.row_ids = [batch["x"].numpy() for batch in step]
        return step

    def close(self):
        self._numbers.clear()


def test_each_micro_batch_is_begun_while_the_one_before_is_used():
    stream = RecordedStream()
    for step in TransferredSteps(Steps(steps=2), ("x",), stream):
        for batch in step:
            moved = batch.on_device()
            assert [*moved] == ["x"] and torch.equal(moved["x"], batch.rows["x"])
            assert batch.row_ids.tolist() == batch.rows["x"].tolist()
            batch.on_device()  # a pass over the other half
    expected = "begin 0, begin 1, use 0, use 0, begin 2, use 1, use 1, begin 3, use 2, use 2, use 3"
    assert ", ".join(stream.events) == f"{expected}, use 3"


def test_a_step_that_is_not_there_is_not_waited_for():
    stream, loader = RecordedStream(), Steps(per_step=1, ready=0)
    steps = TransferredSteps(loader, ("x",), stream)
    next(steps)[0].on_device()
    assert stream.events == ["begin 0", "use 0"]
    loader.ready = 1
    next(steps)[0].on_device()
    assert stream.events[2:] == ["begin 1", "use 1"]


def test_a_batch_that_is_not_trained_on_delays_nothing():
    stream = RecordedStream()
    steps = TransferredSteps(Steps(), ("x",), stream)
    next(steps)
    next(steps)[0].on_device()
    next(steps)[1].on_device()  # the second alone
    assert stream.events == ["begin 2", "begin 3", "use 2", "begin 5", "use 5"]


def test_two_micro_batches_at_most_are_on_the_device():
    stream = RecordedStream()
    steps = TransferredSteps(Steps(), ("x",), stream)
    for step in steps:
        for batch in step:
            batch.on_device()
            assert len(stream.copies) <= 2
    del step, batch
    steps.close()
    gc.collect()
    assert not stream.copies


def test_without_a_stream_rows_stay_on_the_host():
    for step in TransferredSteps(Steps(), ("x",), None):
        assert all(not batch.on_device() for batch in step)


@pytest.fixture
def batches(make_store):
    view = View(make_store(rows=64), torch.arange(64).numpy(), "test")
    return WorkerBatches(view, ("image", "label"), FullOrder(64, 16, seed=5), 8, range(2))


def test_a_loader_is_ready_once_its_rows_are_there_and_not_at_its_end(batches):
    with Loader(batches, 0, steps=2, pin=False) as loader:
        for _ in range(2):
            futures.wait(loader._pending)
            assert loader.is_ready
            next(loader)
        assert not loader.is_ready
        with pytest.raises(StopIteration):
            next(loader)
        assert not loader.is_ready


def test_an_error_of_the_next_step_is_not_this_ones(batches, monkeypatch):
    gathering = loading.Loader._gather

    def gather(self, first, count):
        if first == 1:
            raise OSError("gone")
        return gathering(self, first, count)

    monkeypatch.setattr(loading, "BLOCK_BYTES", 1)  # a step a block
    monkeypatch.setattr(loading.Loader, "_gather", gather)
    with Loader(batches, 0, steps=3, pin=False) as loader:
        next(loader)
        futures.wait(loader._pending)
        assert not loader.is_ready
        with pytest.raises(OSError, match="gone"):
            next(loader)


@pytest.mark.slow
def test_a_run_that_copies_ahead_has_the_numbers_of_one_that_does_not(tmp_path, monkeypatch):
    spec, stream = tiny(training__steps=3, batch={"size": 8, "micro": 4}), RecordedStream()
    monkeypatch.setattr(
        stream,
        "start",
        lambda rows: ({name: values.clone() for name, values in rows.items()}, len(rows)),
    )
    for name in ("plain", "ahead"):
        train_here(spec, tmp_path / "home", tmp_path / name)
        monkeypatch.setattr(trainer, "copy_stream", lambda device: stream)
        monkeypatch.setattr(
            trainer, "Loader", lambda *of, pin, **named: Loader(*of, pin=False, **named)
        )
    assert len(stream.events) == 6
    assert same_state(newest(tmp_path / "plain"), newest(tmp_path / "ahead"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
def test_pinned_rows_reach_a_gpu_on_a_stream_of_their_own_and_the_host_waits_for_none(batches):
    device = torch.device("cuda", torch.cuda.current_device())
    found = []
    expected = [micro for step in Loader(batches, 0, steps=8, pin=False) for micro in step]
    with TransferredSteps(Loader(batches, 0, steps=8), ("image",), CudaCopyStream(device)) as steps:
        for step in steps:
            for batch in step:
                assert batch.rows["image"].is_pinned()
                torch.cuda.set_sync_debug_mode("error")
                try:
                    torch.cuda._sleep(10_000_000)  # the stream that computes is behind
                    found.append(batch.on_device()["image"].clone())
                finally:
                    torch.cuda.set_sync_debug_mode("default")
    for values, rows in zip(found, expected, strict=True):
        assert values.device == device and torch.equal(values.cpu(), rows["image"])

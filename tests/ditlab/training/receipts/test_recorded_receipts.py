"""Receipts of real trainings: what was fed, in a chain that checkpoints vouch for."""

import numpy as np
import pytest

from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.orders import training_order
from ditlab.home import RunFolder
from ditlab.receipts.reading import read_receipts, walk_chain
from ditlab.receipts.records import LEFT_OUT, draw_places, samples_digest
from ditlab.receipts.writer import ReceiptWriter
from ditlab.training.receipts import code_digest, processor_name
from ditlab.training.recovery import MemoryPlan
from support.trainings.workers import Recorder, newest, tiny, train_here, training_run

STEPS = 6
SPEC = tiny(
    batch__size=16, batch__micro=8, checkpoint__every=2, checkpoint__keep=9, evaluation__samples=0
)


def trained(home, folder, stop_after=None, **memory):
    """Train, or go on, in this process; return the receipts so far."""
    recorder = Recorder(stop_after)
    recorder.receipts = ReceiptWriter(RunFolder(folder), recorder.warn)
    recorder.before_checkpoint = recorder.receipts.sync
    train_here(SPEC, home, folder / "checkpoints", recorder=recorder, memory=MemoryPlan(**memory))
    recorder.receipts.close()
    assert recorder.warnings == []
    return read_receipts(RunFolder(folder))


def chain(receipts, step):
    """Head of the chain after the last execution of a step, in hexadecimal."""
    return list(walk_chain(receipts, [step]).heads[step])[-1]


@pytest.fixture(scope="module")
def whole(home, tmp_path_factory):
    """A run that was never stopped, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return trained(home, folder), folder


def test_checkpoints_vouch_for_the_chain(whole):
    receipts, folder = whole
    store = CheckpointStore.at(folder / "checkpoints")
    for step in store.steps():
        with store.open(step) as reader:
            assert reader.manifest.receipt["chain"] == chain(receipts, step)
    assert receipts.steps["step"].tolist() == list(range(1, STEPS + 1))
    attempt = receipts.attempts[1]
    assert (attempt.workers, attempt.device, attempt.processor) == (1, "cpu", processor_name())
    assert attempt.code == code_digest() and attempt.versions["torch"]


def test_a_digest_by_hand(whole, home):
    """Rows of the order, places and keys of two micro-batches."""
    receipts, folder = whole
    run = training_run(SPEC, home, folder / "checkpoints")
    order = training_order(SPEC.data, run.data, 16, SPEC.seed)
    for step in range(STEPS):
        rows = run.data.train.rows[order.batches(step, 1, range(16)).reshape(-1)]
        parts = []
        for first in (0, 8):
            places = np.arange(first, first + 8)
            draws = draw_places(first // 8, 0, 8)
            parts.append(samples_digest(rows[places], places, draws, step, SPEC.seed))
        assert int(receipts.rows["samples"][step]) == sum(parts) % 2**63


def test_a_resumed_run_is_fed_the_same(whole, home, tmp_path):
    """Stopped after step 3, whose checkpoint it goes on from; all but the attempt is that of the
    whole run.
    """
    trained(home, tmp_path, stop_after=3)
    found = trained(home, tmp_path)
    for name in ("step", "samples", "loss", "norm", "lr"):
        assert found.steps[name].tolist() == whole[0].steps[name].tolist(), name
    assert found.steps["attempt"].tolist() == [1, 1, 1, 2, 2, 2]
    assert found.attempts[2].chain == chain(found, 3)
    with newest(tmp_path / "checkpoints") as reader:
        receipt = reader.manifest.receipt
        assert (receipt["chain"], receipt["since"]) == (chain(found, STEPS), "0")


def test_halved_micro_batches_are_fed_the_same(whole, home, tmp_path):
    found = trained(home, tmp_path, microbatch_splits=2)
    assert found.rows["samples"].tolist() == whole[0].rows["samples"].tolist()
    assert found.attempts[1].microbatch_splits == 2


def test_a_left_out_step_is_a_row(whole, home, tmp_path):
    found = trained(home, tmp_path, skipped_steps=(2,))
    assert found.rows["flags"].tolist() == [0, 0, LEFT_OUT, 0, 0, 0]
    assert found.rows["samples"][2] == 0 and found.attempts[1].left_out == [3]
    assert found.rows["samples"][3:].tolist() == whole[0].rows["samples"][3:].tolist()

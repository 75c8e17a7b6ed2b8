"""Replay of runs whose receipts, journal or checkpoints are damaged, gone, or of an earlier
version.
"""

import os

import pytest

from ditlab.home import Home
from ditlab.receipts.records import ROW
from ditlab_addons.check.replay.history import Execution
from ditlab_addons.check.replay.replaying import open_source
from support.opened import open_training_run


@pytest.fixture
def run(own_home, finished):
    """Folder of a copy of the session's finished run of 4 steps, with checkpoints of steps 2 and
    4.
    """
    return own_home.run(finished.run_id).path


def opened(run):
    return open_source(open_training_run(run.name, Home(run.parents[1]), lambda text: None))


def way(source, step):
    return source.plan(step, step)


def unreadable(path):
    """Return ways in which a file cannot be read."""
    return [
        lambda: path.unlink(),
        lambda: path.write_bytes(os.urandom(300)),
        lambda: path.write_bytes(b""),
        lambda: (path.unlink(), path.mkdir()),
    ]


def test_without_receipts_the_spec_decides(run):
    """A run of an earlier version, or with receipts that are lost: the journal says which steps
    were done.
    """
    whole = opened(run)
    assert whole.remarks == [] and [each.attempt for each in whole.history.executions] == [1] * 4
    for damage in unreadable(run / "receipts" / "steps.bin"):
        damage()
        source = opened(run)
        history, found = source.history, source.history.final(3)
        of_spec = Execution(3, 0, 1, threads=history.default.threads)
        assert found in (of_spec, Execution(3, 1, 1, threads=1)), damage
        assert history.last == 4 and way(source, 3).origin == 2
        assert [*history.journaled] == [1, 2, 3, 4]
        if not found.attempt:
            words = "Each step is replayed with the workers of the spec"
            assert any(words in text for text in source.remarks)
            unknown = ["the run's machine is not recorded"]
            assert source.machine_differences(way(source, 3).way) == unknown


def test_a_row_that_was_altered_ends_what_receipts_say(run):
    path = run / "receipts" / "steps.bin"
    content = bytearray(path.read_bytes())
    content[2 * ROW.itemsize + 20] ^= 1
    path.write_bytes(content)
    source = opened(run)
    (remark,) = source.remarks
    assert remark.startswith("Damaged receipts: ") and "damaged from row 3 on" in remark
    told = [source.history.final(step).loss is not None for step in range(1, 5)]
    assert told == [True] * 2 + [False] * 2
    assert source.history.final(4).attempt == 1, "a step without a row is the last attempt's"


def test_an_attempt_that_is_lost_leaves_its_steps_to_the_spec(run):
    for damage in unreadable(run / "receipts" / "attempts.jsonl"):
        damage()
        source = opened(run)
        assert [source.history.final(step).attempt for step in range(1, 5)] == [0] * 4, damage
        assert source.remarks and source.history.last == 4


def test_without_a_journal_receipts_say_what_was_done(run):
    losses = [each.loss for each in opened(run).history.executions]
    for damage in unreadable(run / "journal.jsonl"):
        damage()
        source = opened(run)
        assert source.history.last == 4 and source.history.journaled == {}, damage
        assert [each.loss for each in source.history.executions] == losses


def test_checkpoints_that_are_damaged_are_skipped(run):
    folder = run / "checkpoints" / "step-00000002"
    manifest, shard = folder / "manifest.json", next(folder.glob("shard-*"))
    content = shard.read_bytes()
    assert opened(run).whole == [2, 4]
    shard.write_bytes(content[:-1])
    source = opened(run)
    assert way(source, 3).origin == 0 and source.whole == [4]
    (remark,) = source.remarks
    assert "The replay begins before it." in remark
    shard.write_bytes(content)
    for damage in unreadable(manifest):
        damage()
        assert opened(run).whole == [4] and way(opened(run), 3).origin == 0, damage

"""Imports by processes of one machine that are killed go on from their whole blocks."""

import os
import random
import signal
import time

import pytest

from support.killed_imports import KilledImport, unbroken, write_photographs

pytestmark = pytest.mark.slow

KILLS = 10


@pytest.mark.timeout(900)
def test_an_import_that_is_killed_ten_times_gives_the_same_store(tmp_path):
    """The import is killed with its processes, or alone, when these end by themselves."""
    source = write_photographs(tmp_path / "source")
    expected = unbroken(source, tmp_path / "expected")
    killed = KilledImport(source, tmp_path)
    chance, done = random.Random(3), []
    for kill in range(KILLS):
        running = killed.start()
        killed.wait_for_progress(running)
        time.sleep(chance.uniform(0, 0.6))
        assert running.poll() is None, f"it ended before kill {kill}: {running.communicate()}"
        if kill % 2:
            running.kill()
        else:
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        done.append(killed.receipts())
    assert done == sorted(done) and done[-1] > done[0], done
    killed.check_end(expected)


def test_a_damaged_receipt_and_a_lost_shard_cost_their_blocks_alone(tmp_path):
    source = write_photographs(tmp_path / "source")
    expected = unbroken(source, tmp_path / "expected")
    killed = KilledImport(source, tmp_path)
    running = killed.start()
    while killed.receipts() < 12 and running.poll() is None:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    (partial,) = (tmp_path / "stores" / ".importing" / "set").glob(".partial-*")
    receipts = sorted((partial / "receipts").iterdir())
    receipts[2].write_bytes(receipts[2].read_bytes()[:-20])
    receipts[4].write_bytes(receipts[4].read_bytes().replace(b'"rows":', b'"Rows":'))
    shards = sorted(partial.glob("*/block-*.arrow"))
    shards[5].unlink()
    os.truncate(shards[6], shards[6].stat().st_size - 1)
    killed.check_end(expected)

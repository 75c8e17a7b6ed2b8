"""The chain walked anew: attempts that go on, begin anew, are gone, or do not belong to their
rows.
"""

import shutil
import zlib
from dataclasses import replace
from functools import partial

import pytest

from ditlab.home import Home, RunFolder
from ditlab.receipts.reading import Receipts, read_receipts, walk_chain
from ditlab.receipts.records import CHECKED
from ditlab.storage.files import append_json_line
from ditlab_addons.check.verify.records import taken_over_heads
from support.damage import refused
from support.receipts import write_attempt


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "abc")


@pytest.fixture
def write(folder):
    """`write_attempt` of the folder."""
    return partial(write_attempt, folder)


def walk(folder, *steps):
    return walk_chain(read_receipts(folder), steps)


def test_a_checkpoint_that_was_taken_over(tmp_path):
    """A population's trial goes on with the chain of its donor, which took over a checkpoint of
    another's before.
    """
    home = Home(tmp_path)
    trials = [home.run(f"trial{number}") for number in range(3)]

    def take_over(trial, donor, step):
        line = {
            "step": step,
            "donor": f"trial{donor}",
            "donor_step": step,
            "values": {},
            "key": str(step),
        }
        append_json_line(trials[trial].path / "exploits.jsonl", line)

    saved = [write_attempt(trial, 1, 4, rate=10.0**-number) for number, trial in enumerate(trials)]
    take_over(1, 0, 4)
    second = write_attempt(trials[1], 5, 8, saved[0])
    write_attempt(trials[2], 5, 8, saved[2])
    take_over(2, 1, 8)
    last = write_attempt(trials[2], 9, 12, second)
    assert "to which no rows" in walk(trials[2]).faults[0]
    found = walk_chain(read_receipts(trials[2]), [8, 12], taken_over_heads(home, trials[2]))
    assert found.faults == []
    assert list(found.heads[12]) == [last["chain"]]
    assert second["chain"] in found.heads[8]
    shutil.rmtree(trials[0].path)
    with refused("trial0 has no receipts"):
        taken_over_heads(home, trials[2])


def test_attempts_that_begin_anew(folder, write):
    """As of a fork, or of a run that an earlier version began."""
    last = write(101, 104)
    assert walk(folder, 104).heads == {104: {last["chain"]: 100}}
    assert last["since"] == "100"


def test_an_attempt_whose_line_is_gone(folder, write):
    fourth = write(1, 4)
    write(5, 6, fourth)  # all of its steps are done again: no checkpoint's chain goes over them
    last = write(5, 8, fourth)
    lines = folder.receipt_attempts.read_bytes().splitlines(keepends=True)
    folder.receipt_attempts.write_bytes(lines[0] + lines[2])
    found = walk(folder, 8)
    assert "no whole line of attempt 2 is there, which rows name from row 5 on" in found.faults[0]
    assert last["chain"] not in found.heads.get(8, {})


def test_an_attempt_that_goes_on_from_elsewhere(folder, write):
    fourth = write(1, 4)
    write(5, 8, {**fourth, "chain": "ab" * 32})
    assert (
        "attempt 2 goes on from step 4 with the chain abababababab, to which no rows"
        in walk(folder).faults[0]
    )


def _rewrite_attempt(folder, rows):
    """Write rows with right checksums, as whoever knows the format can."""
    rows, before = rows.copy(), 0
    for number in range(len(rows)):
        before = zlib.crc32(rows[number].tobytes()[:CHECKED], before)
        rows["crc"][number] = before
    folder.receipt_rows.write_bytes(rows.tobytes())


def test_rows_out_of_order_with_right_checksums(folder, write):
    last = write(5, 9, write(1, 4))
    rows = read_receipts(folder).rows
    ways = {
        "swapped": rows[[0, 1, 3, 2, *range(4, 9)]],
        "doubled": rows[[0, 1, 1, *range(2, 9)]],
        "left out": rows[[0, 1, *range(3, 9)]],
        "of the attempt after": rows[[4, *range(4), *range(5, 9)]],
    }
    for what, changed in ways.items():
        _rewrite_attempt(folder, changed)
        found = walk(folder, 9)
        assert read_receipts(folder).damage == "" and found.faults, what
    _rewrite_attempt(folder, rows)
    assert walk(folder, 9).faults == [] and last["chain"] in walk(folder, 9).heads[9]
    changed = rows.copy()
    changed["loss"][6] = 0.5
    _rewrite_attempt(folder, changed)
    assert walk(folder, 9).faults == [] and last["chain"] not in walk(folder, 9).heads[9]


def test_an_attempt_s_facts_are_in_the_chain(folder, write):
    last = write(1, 3)
    receipts = read_receipts(folder)
    record = replace(receipts.attempts[1], code="other", digest="").to_record()
    other = replace(receipts.attempts[1], code="other", digest=record["digest"])
    assert last["chain"] not in walk_chain(Receipts(receipts.rows, {1: other}, ""), [3]).heads[3]

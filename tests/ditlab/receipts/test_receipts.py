"""Receipts on disk: round trips, chains by hand, damage, steps that are done again."""

import hashlib
from functools import partial
from unittest import mock

import numpy as np
import pytest

from ditlab.home import RunFolder
from ditlab.receipts.reading import read_receipts, walk_chain
from ditlab.receipts.records import (
    LEFT_OUT,
    ORIGIN,
    ROW,
    SAMPLES_MASK,
    joined_digest,
    mix64,
    samples_digest,
)
from support import special_files
from support.damage import refused
from support.receipts import receipt_writer, write_attempt


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "abc")


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def write(folder, warnings):
    """`write(first, last, ...)`: an attempt of these steps."""
    return partial(write_attempt, folder, warn=warnings.append)


def altered(path, offset):
    """Flip a bit of a byte; return the content."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    return content


def chain(receipts, step, since=0):
    """The head after a step, which counts from step `since`."""
    head, begin = list(walk_chain(receipts, [step]).heads[step].items())[-1]
    assert begin == since
    return head


def test_round_trip(folder, warnings, write):
    saved = write(1, 200)
    found = read_receipts(folder)
    assert found.damage == "" and warnings == []
    assert found.rows["step"].tolist() == list(range(1, 201))
    assert found.rows["samples"].tolist() == list(range(1001, 1201))
    assert found.rows["loss"][3] == np.float32(0.125)
    assert chain(found, 200) == saved["chain"] and saved["since"] == "0"
    assert found.attempts[1].workers == 1 and found.attempts[1].chain == ORIGIN


def test_a_chain_by_hand(folder, write):
    saved = write(1, 3)
    found, head = read_receipts(folder), bytes.fromhex(ORIGIN)
    for number in range(3):
        begun = bytes.fromhex(found.attempts[1].digest) if number == 0 else b""
        head = hashlib.sha256(head + begun + found.rows[number].tobytes()[:36]).digest()
    assert hashlib.sha256(b"ditlab receipts 1").hexdigest() == ORIGIN
    assert saved["chain"] == head.hex()


def test_steps_are_done_again(folder, warnings, write):
    """Killed after step 9, resumed from step 4 by two workers: both attempts stay, the last one
    counts.
    """
    saved = write(1, 4)
    first = write(5, 9, saved)
    last = write(5, 12, saved, workers=2)
    found = read_receipts(folder)
    assert warnings == []
    assert chain(found, 12) == last["chain"]
    assert found.rows[found.rows["step"] == 7]["attempt"].tolist() == [2, 3]
    assert found.steps["attempt"].tolist() == [1] * 4 + [3] * 8
    folder.receipt_rows.write_bytes(folder.receipt_rows.read_bytes()[: 9 * ROW.itemsize])
    assert chain(read_receipts(folder), 9) == first["chain"]


@pytest.mark.parametrize("offset", [0, 9, 17, 25, 39])
def test_a_flipped_byte_ends_what_is_read(folder, offset, write):
    write(1, 20)
    altered(folder.receipt_rows, 10 * ROW.itemsize + offset)
    found = read_receipts(folder)
    assert len(found.rows) == 10 and "row 11" in found.damage
    assert 20 not in walk_chain(found, [20]).heads


def test_an_altered_attempt_is_none(folder, write):
    write(1, 3)
    content = folder.receipt_attempts.read_bytes()
    folder.receipt_attempts.write_bytes(content.replace(b'"workers":1', b'"workers":2'))
    found = read_receipts(folder)
    assert found.attempts == {} and "damaged line" in found.damage


def test_a_torn_row_is_cut_off(folder, warnings, write):
    saved = write(1, 5)
    with folder.receipt_rows.open("ab") as file:
        file.write(b"\1" * 17)
    last = write(6, 8, saved)
    assert warnings == [] and chain(read_receipts(folder), 8) == last["chain"]


def test_receipts_begin_again_where_rows_are_gone(folder, warnings, write):
    """The checkpoint that a resume begins from is vouched for by no row: `since` says from where
    the chain counts.
    """
    saved = write(1, 6)
    folder.receipt_rows.unlink()
    last = write(7, 9, saved)
    assert last["since"] == "6" and "begin again" in warnings[0]
    assert chain(read_receipts(folder), 9, since=6) == last["chain"]


def test_damaged_rows_are_put_aside(folder, warnings, write):
    saved = write(1, 6)
    content = altered(folder.receipt_rows, 2 * ROW.itemsize)
    last = write(7, 9, saved)
    assert folder.receipt_rows.with_suffix(".bin.damaged").read_bytes() == content
    assert last["since"] == "6" and len(warnings) == 2


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_files_that_are_none(folder, warnings, kind, write):
    """Training goes on, and the reader says so."""
    for path in (folder.receipt_rows, folder.receipt_attempts):
        special_files.put(kind, path)
    assert write(1, 3) == {}, "a checkpoint has no chain that no row leads to"
    assert len(warnings) == 1 and "training goes on" in warnings[0]
    with refused("cannot be read"):
        read_receipts(folder)


def test_rows_are_written_at_once(folder, warnings):
    """A process that is killed loses none; rows that a full disk refused follow once it takes
    them.
    """
    full = mock.patch("os.write", side_effect=OSError(28, "No space left on device"))
    with receipt_writer(folder, warnings.append) as writer:
        for step in (1, 2):
            writer.add(step, 7)
            assert read_receipts(folder).rows["step"].tolist() == list(range(1, step + 1))
        with full:
            writer.add(3, 7)
        assert len(warnings) == 1 and len(read_receipts(folder).rows) == 2
        writer.add(4, 7)
        assert read_receipts(folder).rows["step"].tolist() == [1, 2, 3, 4]


def test_a_skipped_batch_and_numbers_beyond_float32(folder, warnings):
    with receipt_writer(folder, warnings.append) as writer:
        writer.add(1, 2**63 - 1, 1e39, -1e300, float("nan"), flags=LEFT_OUT)
    (row,) = read_receipts(folder).rows
    assert row["loss"] == np.inf and row["norm"] == -np.inf and np.isnan(row["lr"])
    assert row["flags"] == LEFT_OUT and warnings == []


def test_none_at_all(folder):
    with refused("has no receipts"):
        read_receipts(folder)


def test_samples_digest():
    """A digest is the same for every cut of a batch, and another for a sample that is missing,
    doubled, moved or drawn otherwise.
    """
    rows, places = np.array([7, 3, 9, 4]), np.arange(4)

    def digest(rows=rows, places=places, draws=places, step=5, seed=1):
        return samples_digest(rows, places, draws, step, seed)

    def of(part):
        return digest(rows[part], places[part], places[part])

    whole = digest()
    assert joined_digest([of(slice(0, 1)), of(slice(1, 4))]) == whole
    assert 0 <= whole <= SAMPLES_MASK
    others = {
        of(slice(0, 3)),
        digest(np.array([7, 3, 9, 9])),
        digest(rows[::-1]),
        digest(draws=places + 1),
        digest(step=6),
        digest(seed=2),
    }
    assert len(others | {whole}) == 7


def test_mix64_is_splitmix64():
    """The generator's first numbers from seed 0: its state grows by the golden ratio before each is
    mixed.
    """
    assert mix64(np.array([0], np.uint64))[0] == 0xE220A8397B1DCDAF
    assert mix64(np.array([0x9E3779B97F4A7C15], np.uint64))[0] == 0x6E789E6AA1B965F4

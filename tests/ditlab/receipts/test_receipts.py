"""Receipts on disk: round trips, chains by hand, damage, steps that are done again."""

import hashlib
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from ditlab.errors import UserError
from ditlab.home import RunFolder
from ditlab.receipts.reading import read_receipts, walk_chain
from ditlab.receipts.records import (
    LEFT_OUT,
    ORIGIN,
    ROW,
    SAMPLES_MASK,
    RecordedAttempt,
    joined_digest,
    mix64,
    samples_digest,
)
from ditlab.receipts.writer import ReceiptWriter


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "abc")


@pytest.fixture
def warnings() -> list[str]:
    return []


def attempt(step: int = 0, workers: int = 1):
    return RecordedAttempt(
        attempt=1,
        chain=ORIGIN,
        step=step,
        workers=workers,
        microbatch_splits=0,
        left_out=[],
        device="cpu",
        processor="a CPU",
        threads=1,
        versions={"torch": "2"},
        code="c",
        data="d",
        spec_hash="s",
        numerics=4,
        blocks="eager",
    )


def write(folder, warnings, first, last, saved=None, workers=1) -> dict[str, str]:
    """Write an attempt of steps `first` to `last`, and return what a checkpoint after it holds."""
    writer = ReceiptWriter(folder, warnings.append)
    writer.begin(attempt(first - 1, workers), saved or {})
    for step in range(first, last + 1):
        writer.add(step, 1000 * workers + step, 0.5 / step, 2.0, 1e-3)
    receipt = writer.receipt()
    writer.close()
    return receipt


def chain(receipts, step, since=0):
    """The head after a step, which counts from step `since`."""
    head, begin = list(walk_chain(receipts, [step]).heads[step].items())[-1]
    assert begin == since
    return head


def test_round_trip(folder, warnings):
    saved = write(folder, warnings, 1, 200)
    found = read_receipts(folder)
    assert found.damage == "" and warnings == []
    assert found.rows["step"].tolist() == list(range(1, 201))
    assert found.rows["samples"].tolist() == list(range(1001, 1201))
    assert found.rows["loss"][3] == np.float32(0.125)
    assert chain(found, 200) == saved["chain"] and saved["since"] == "0"
    assert found.attempts[1].workers == 1 and found.attempts[1].chain == ORIGIN


def test_a_chain_by_hand(folder, warnings):
    saved = write(folder, warnings, 1, 3)
    found, head = read_receipts(folder), bytes.fromhex(ORIGIN)
    for number in range(3):
        begun = bytes.fromhex(found.attempts[1].digest) if number == 0 else b""
        head = hashlib.sha256(head + begun + found.rows[number].tobytes()[:36]).digest()
    assert hashlib.sha256(b"ditlab receipts 1").hexdigest() == ORIGIN
    assert saved["chain"] == head.hex()


def test_steps_are_done_again(folder, warnings):
    """Killed after step 9, resumed from step 4 by two workers: both doings stay, the last one
    counts.
    """
    saved = write(folder, warnings, 1, 4)
    writer = ReceiptWriter(folder, warnings.append)
    writer.begin(attempt(4), saved)
    for step in range(5, 10):
        writer.add(step, 1000 + step)
    first = writer.receipt()
    writer.close()
    last = write(folder, warnings, 5, 12, saved, workers=2)
    found = read_receipts(folder)
    assert warnings == []
    assert chain(found, 12) == last["chain"]
    assert found.rows[found.rows["step"] == 7]["attempt"].tolist() == [2, 3]
    assert found.steps["attempt"].tolist() == [1] * 4 + [3] * 8
    only_first = Path(folder.receipt_rows).read_bytes()[: 9 * ROW.itemsize]
    folder.receipt_rows.write_bytes(only_first)
    assert chain(read_receipts(folder), 9) == first["chain"]


@pytest.mark.parametrize("offset", [0, 9, 17, 25, 39])
def test_a_flipped_byte_ends_what_is_read(folder, warnings, offset):
    write(folder, warnings, 1, 20)
    content = bytearray(folder.receipt_rows.read_bytes())
    content[10 * ROW.itemsize + offset] ^= 1
    folder.receipt_rows.write_bytes(content)
    found = read_receipts(folder)
    assert len(found.rows) == 10 and "row 11" in found.damage
    assert 20 not in walk_chain(found, [20]).heads


def test_an_altered_attempt_is_none(folder, warnings):
    write(folder, warnings, 1, 3)
    content = folder.receipt_attempts.read_bytes()
    folder.receipt_attempts.write_bytes(content.replace(b'"workers":1', b'"workers":2'))
    found = read_receipts(folder)
    assert found.attempts == {} and "damaged line" in found.damage


def test_a_torn_row_is_cut_off(folder, warnings):
    saved = write(folder, warnings, 1, 5)
    with folder.receipt_rows.open("ab") as file:
        file.write(b"\1" * 17)
    last = write(folder, warnings, 6, 8, saved)
    assert warnings == [] and chain(read_receipts(folder), 8) == last["chain"]


def test_receipts_begin_anew_where_rows_are_gone(folder, warnings):
    """The checkpoint that a resume begins from is vouched for by no row: `since` says from where
    the chain counts.
    """
    saved = write(folder, warnings, 1, 6)
    folder.receipt_rows.unlink()
    last = write(folder, warnings, 7, 9, saved)
    assert last["since"] == "6" and "begin again" in warnings[0]
    assert chain(read_receipts(folder), 9, since=6) == last["chain"]


def test_damaged_rows_are_put_aside(folder, warnings):
    saved = write(folder, warnings, 1, 6)
    content = bytearray(folder.receipt_rows.read_bytes())
    content[2 * ROW.itemsize] ^= 255
    folder.receipt_rows.write_bytes(content)
    last = write(folder, warnings, 7, 9, saved)
    assert folder.receipt_rows.with_suffix(".bin.damaged").read_bytes() == bytes(content)
    assert last["since"] == "6" and len(warnings) == 2


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_files_that_are_none(folder, warnings, kind):
    """Training goes on, and the reader says so."""
    folder.receipts.mkdir(parents=True)
    for path in (folder.receipt_rows, folder.receipt_attempts):
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
    assert write(folder, warnings, 1, 3) == {}, "a checkpoint has no chain that no row leads to"
    assert len(warnings) == 1 and "training goes on" in warnings[0]
    with pytest.raises(UserError, match="cannot be read"):
        read_receipts(folder)


def test_rows_are_written_at_once(folder, warnings):
    """A process that is killed loses none; rows that a full disk refused follow once it takes
    them.
    """
    writer = ReceiptWriter(folder, warnings.append)
    writer.begin(attempt(), {})
    for step in (1, 2):
        writer.add(step, 7)
        assert read_receipts(folder).rows["step"].tolist() == list(range(1, step + 1))
    with mock.patch("os.write", side_effect=OSError(28, "No space left on device")):
        writer.add(3, 7)
    assert len(warnings) == 1 and len(read_receipts(folder).rows) == 2
    writer.add(4, 7)
    assert read_receipts(folder).rows["step"].tolist() == [1, 2, 3, 4]
    writer.close()


def test_numbers_beyond_float32_are_infinite(folder, warnings):
    writer = ReceiptWriter(folder, warnings.append)
    writer.begin(attempt(), {})
    writer.add(1, 2**63 - 1, 1e39, -1e300, float("nan"))
    writer.close()
    (row,) = read_receipts(folder).rows
    assert (
        row["loss"] == np.inf and row["norm"] == -np.inf and np.isnan(row["lr"]) and warnings == []
    )


def test_none_at_all(folder):
    with pytest.raises(UserError, match="has no receipts"):
        read_receipts(folder)


def test_samples_digest():
    """The same for every cut of a batch; another for a sample that is missing, doubled, moved or
    drawn otherwise.
    """
    rows, places = np.array([7, 3, 9, 4]), np.arange(4)
    whole = samples_digest(rows, places, places, 5, 1)
    parts = [
        samples_digest(rows[part], places[part], places[part], 5, 1)
        for part in (slice(0, 1), slice(1, 4))
    ]
    assert joined_digest(parts) == whole and 0 <= whole <= SAMPLES_MASK
    others = {
        samples_digest(rows[:3], places[:3], places[:3], 5, 1),
        samples_digest(np.array([7, 3, 9, 9]), places, places, 5, 1),
        samples_digest(rows[::-1], places, places, 5, 1),
        samples_digest(rows, places, places + 1, 5, 1),
        samples_digest(rows, places, places, 6, 1),
        samples_digest(rows, places, places, 5, 2),
    }
    assert len(others | {whole}) == 7


def test_mix64_is_splitmix64():
    """The generator's first numbers from seed 0: its state grows by the golden ratio before each is
    mixed.
    """
    assert mix64(np.array([0], np.uint64))[0] == 0xE220A8397B1DCDAF
    assert mix64(np.array([0x9E3779B97F4A7C15], np.uint64))[0] == 0x6E789E6AA1B965F4


def test_left_out_steps_are_rows(folder, warnings):
    writer = ReceiptWriter(folder, warnings.append)
    writer.begin(attempt(), {})
    writer.add(1, 5, flags=LEFT_OUT)
    writer.close()
    assert read_receipts(folder).rows["flags"].tolist() == [LEFT_OUT]

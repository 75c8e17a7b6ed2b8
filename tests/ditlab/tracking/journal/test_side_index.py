"""The side index of a long journal: valid only for the journal that it was made from, and never needed."""

import math
import random
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest

from ditlab.home import RunFolder
from ditlab.tracking import journal_index
from ditlab.tracking.journal import JournalContent
from ditlab.tracking.journal_index import read_content, side_index_path
from ditlab.tracking.journal_writer import JournalWriter, Thinning

NewRun = Callable[..., RunFolder]


@pytest.fixture
def folder(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run whose journal is indexed from 2,000 bytes on."""
    monkeypatch.setattr(journal_index, "MIN_GROWTH", 2000)
    folder = new_run()
    write(folder, range(1, 101))
    return folder


def write(folder: RunFolder, steps: range) -> None:
    journal = JournalWriter(folder, budget=100)
    journal.append("start", run_id=folder.run_id, name="a", experiment="b", family="dit")
    for step in steps:
        journal.log_metrics(step, {"train/loss": math.sin(step), "train/lr": 1e-4})
        if step % 10 == 0:
            journal.log_metrics(step, {"eval/velocity": math.nan if step == 50 else step / 7})
    journal.close()


def read(folder: RunFolder) -> str:
    return repr(asdict(read_content(folder.journal)))


def parsed(folder: RunFolder) -> str:
    """The content as it is without an index."""
    side_index_path(folder.journal).unlink(missing_ok=True)
    return read(folder)


def test_an_index_changes_nothing_of_what_is_read(folder: RunFolder) -> None:
    index = side_index_path(folder.journal)
    from_journal = parsed(folder)
    assert index.exists()  # it was made by reading
    before = index.stat().st_mtime_ns
    assert read(folder) == from_journal and index.stat().st_mtime_ns == before
    write(folder, range(101, 110))  # too little to index anew
    assert index.stat().st_mtime_ns == before
    with_index = read(folder)
    assert with_index == parsed(folder) != from_journal


def test_the_index_spares_the_parsing(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parsed(folder)
    monkeypatch.setattr(JournalContent, "add", None)
    assert read(folder) == expected


def test_an_index_of_another_prefix_is_not_used(folder: RunFolder) -> None:
    read(folder)
    lines = folder.journal.read_bytes().splitlines(keepends=True)
    folder.journal.write_bytes(b"".join(lines[:20] + lines[21:]))  # a line less
    with_index = read(folder)
    assert with_index == parsed(folder) and "'num_damaged': 0" in with_index
    folder.journal.write_bytes(b"".join(lines[:5]))  # a shorter journal
    assert read(folder) == parsed(folder)


def test_a_damaged_index_is_not_used(folder: RunFolder) -> None:
    expected, draw = parsed(folder), random.Random(0)
    index = side_index_path(folder.journal)
    whole = index.read_bytes()
    for _ in range(60):
        content = bytearray(whole)
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        index.write_bytes(content)
        assert read(folder) == expected
    index.write_bytes(whole[: len(whole) // 2])
    assert read(folder) == expected
    index.unlink()
    index.symlink_to("/dev/zero")
    assert read(folder) == expected


def test_a_resume_with_an_index_thins_as_without(folder: RunFolder) -> None:
    other = RunFolder(folder.path.with_name("other"))
    other.path.mkdir()
    other.journal.write_bytes(folder.journal.read_bytes())
    for one in (folder, other):
        side_index_path(other.journal).unlink(missing_ok=True)  # one is read with its index, the other without
        write(one, range(90, 400))
    assert side_index_path(folder.journal).exists()

    def points(one: RunFolder) -> list[str]:
        lines = one.journal.read_bytes().splitlines()
        return [line.split(b',"crc"')[0].split(b'"step"')[1].decode() for line in lines if b'"step"' in line]

    assert points(folder) == points(other) and len(points(folder)) == 399 + 39


@pytest.mark.parametrize("seed", range(12))
def test_advancing_is_selecting_each(seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = draw.standard_cauchy(draw.integers(1, 30_000)).cumsum()
    values[draw.random(len(values)) < (0.3 if seed % 3 == 0 else 0.0)] = np.nan
    budget = [None, 1, 10, 100, 1000, 10_000][seed % 6]
    cuts = sorted(draw.integers(0, len(values), 3))
    one, other = Thinning(budget), Thinning(budget)
    for part in np.split(values, cuts):
        one.advance(part)
        for value in part.tolist():
            other.selects(value)
        following = draw.standard_normal(50).tolist()
        assert [one.selects(value) for value in following] == [other.selects(value) for value in following]

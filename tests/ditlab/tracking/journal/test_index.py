"""The index of a home's journals: it goes on where it ended, and is made again wherever it may
not.
"""

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ditlab.home import Home
from ditlab.tracking.index import Journal, JournalIndex, cache_file
from ditlab.tracking.journal import encode_record


def step(number, time=1):
    return encode_record("metrics", {"time": time, "step": number, "values": {"train/loss": 1.0}})


def steps(index, folder):
    """Steps of the points that an index has of a run after a look at its journal."""
    index.update([Journal(folder.run_id)])
    rows = index.database.execute(
        "SELECT step FROM _points JOIN _journals ON _journals.id = journal WHERE run = ? ORDER "
        "BY position",
        (folder.run_id,),
    )
    return [number for (number,) in rows]


@pytest.fixture
def folder(new_run):
    folder = new_run()
    folder.journal.write_bytes(step(1) + step(2))
    return folder


def test_journal_that_grows_and_ends_torn(home, folder):
    index = JournalIndex(home)
    assert steps(index, folder) == [1, 2]
    with folder.journal.open("ab") as file:
        file.write(step(3) + step(4)[:-9])
        file.flush()
        assert steps(index, folder) == [1, 2, 3]
        file.write(b"\n" + step(5))  # after a crash
    assert steps(index, folder) == steps(JournalIndex(home), folder) == [1, 2, 3, 5]
    folder.journal.unlink()
    assert steps(index, folder) == []
    folder.journal.write_bytes(step(6))
    assert steps(index, folder) == [6]
    shutil.rmtree(folder.path)
    index.keep_only([])
    assert index.database.execute("SELECT count(*) FROM _points").fetchone() == (0,)


@pytest.mark.parametrize(
    "change",
    [
        lambda journal: journal.write_bytes(step(7)),  # shorter
        lambda journal: journal.write_bytes(step(7) + step(2)),  # as long
        # another first line
        lambda journal: journal.write_bytes(step(7, time=2) + step(8) + step(9)),
        lambda journal: (journal.rename(f"{journal}.old"), journal.write_bytes(step(1) + step(8))),
    ],
)
def test_another_journal_is_read_again(home, folder, change):
    index = JournalIndex(home)
    steps(index, folder)
    change(folder.journal)
    found = steps(index, folder)
    cache_file(home).unlink()
    assert found == steps(JournalIndex(home), folder) != [1, 2]


def test_moved_and_copied_homes_have_files_of_their_own(home, folder, tmp_path):
    steps(JournalIndex(home), folder)
    copied = Home(Path(shutil.copytree(home.root, tmp_path / "copy")))
    other = copied.run(folder.run_id)
    with other.journal.open("ab") as file:
        file.write(step(3))
    assert steps(JournalIndex(copied), other) == [1, 2, 3]
    assert steps(JournalIndex(home), folder) == [1, 2]
    moved = Home(home.root.rename(tmp_path / "moved"))
    assert cache_file(moved) not in (cache_file(home), cache_file(copied))
    assert steps(JournalIndex(moved), moved.run(folder.run_id)) == [1, 2]


@pytest.mark.parametrize("is_folder", [True, False])
def test_cache_that_cannot_be_used(home, folder, is_folder, caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if is_folder:
        cache_file(home).mkdir(parents=True)
    else:
        (tmp_path / "cache").write_text("a file")
    with caplog.at_level(logging.DEBUG, "ditlab.tracking"):
        index = JournalIndex(home)
        assert steps(index, folder) == steps(index, folder) == [1, 2]
    assert len(caplog.records) == 1


def test_two_processes_at_once(home, folder):
    folder.journal.write_bytes(b"".join(map(step, range(3000))))
    program = (
        "import sys; from pathlib import Path; from ditlab.home import Home; from "
        "ditlab.tracking.index import *; index = JournalIndex(Home(Path(sys.argv[1]))); "
        "index.update([Journal(sys.argv[2])]); print(index.database.execute('SELECT count(*), "
        "min(step), max(step) FROM _points').fetchone())"
    )
    command = [sys.executable, "-c", program, str(home.root), folder.run_id]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in processes] == ["(3000, 0, 2999)\n"] * 2

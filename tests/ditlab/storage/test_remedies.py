"""A file system that refuses is named with the remedy of its own error."""

import errno
import os
from pathlib import Path

import pytest

from ditlab.checkpoints.saving import SaveFailed
from ditlab.errors import DISK_REMEDIES, UserError, cannot_write, disk_remedy
from ditlab.home import Home
from ditlab.runs.events import EventReader
from ditlab.runs.lifecycle import home_write_error
from ditlab.storage.files import writing_into
from ditlab.storage.local import writable_folder
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import create_run
from support.command import run_here

WORDS = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "delete files of yours there, or have your quota raised",
    errno.EFBIG: "raise the limit of a file's size (`ulimit -f unlimited`)",
    errno.EROFS: "mount that file system writable",
    errno.EACCES: "correct its permissions",
    errno.EPERM: "correct its permissions",
    errno.EMFILE: "raise the limit of open files (`ulimit -n 65536`)",
    errno.EIO: "check that disk or its connection",
    errno.ESTALE: "mount that file system again",
}
ROWS = pytest.mark.parametrize("number", WORDS)


def error_of(number):
    return OSError(number, os.strerror(number))


@ROWS
def test_each_error_has_its_own_remedy(number):
    other = "name another folder"
    found = disk_remedy(error_of(number), other)
    assert found.startswith(WORDS[number]) and found.endswith(f", or {other}")
    # as libraries and other workers pass it on
    text = f"worker 1: I/O error: {os.strerror(number)} (os error {number})"
    assert disk_remedy(RuntimeError(text), other) == found == disk_remedy(text, other)


def test_any_other_error_has_the_remedy_that_always_helps():
    assert disk_remedy(error_of(errno.ENOTDIR), "give another NAME") == "give another NAME"
    assert disk_remedy(ValueError("odd")) == "correct its path"


@ROWS
def test_it_is_named_wherever_a_write_is_refused(number, tmp_path, monkeypatch):
    def refuse(_):
        raise error_of(number)

    with pytest.raises(UserError) as unwritten, writing_into(tmp_path):
        refuse("")
    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(UserError) as unwritable:
        writable_folder(tmp_path, "here", "name another folder")
    for error in (
        home_write_error(Home(tmp_path), error_of(number)),
        cannot_write("--out x", error_of(number), "name another place"),
        SaveFailed("write", 3, f"worker 0: {os.strerror(number)}"),
        unwritten.value,
        unwritable.value,
    ):
        sentence = str(error)
        assert os.strerror(number) in sentence and WORDS[number] in sentence, sentence
        assert ("make room" in sentence) == (number == errno.ENOSPC)


@pytest.mark.parametrize("number", [*WORDS, errno.ENFILE, errno.ENOTCONN])
def test_a_command_that_meets_one_ends_with_a_sentence(number, home, capfd, monkeypatch):
    def refuse(*_):
        raise OSError(number, os.strerror(number), "/data/runs")

    monkeypatch.setattr("ditlab.tracking.records.scan_runs", refuse)
    said = run_here(capfd, monkeypatch, "runs")
    assert said.code == 1 and "Traceback" not in said.err
    reason = os.strerror(number)
    assert said.err.startswith(f"ditlab: /data/runs cannot be used ({reason}); ")
    assert DISK_REMEDIES[number] in said.err


@pytest.fixture
def folder(home):
    return create_run(Home.from_environment(), "small", family="dit", spec_hash="")


@pytest.mark.parametrize("number", [errno.EFBIG, errno.EDQUOT, errno.ENOSPC])
def test_a_line_of_the_journal_that_is_cut_names_the_true_error(
    number, folder, monkeypatch, caplog
):
    write = os.write
    journal = JournalWriter(folder)
    journal.append("tags", values={"a": "1"})
    before = folder.journal.read_bytes()
    written = []

    def limited(descriptor, content):
        written.append(content)
        if len(written) > 1:
            raise error_of(number)
        return write(descriptor, content[:5])

    monkeypatch.setattr(os, "write", limited)
    journal.append("tags", values={"a": "2"})
    monkeypatch.setattr(os, "write", write)
    assert folder.journal.read_bytes() == before
    journal.append("tags", values={"a": "3"})
    journal.close()
    assert b'"a":"3"' in folder.journal.read_bytes()
    assert os.strerror(number) in caplog.text


def test_a_line_that_is_taken_in_two_parts_is_whole(folder, monkeypatch):
    write = os.write
    journal = JournalWriter(folder)
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:20]))
    journal.append("tags", values={"a": "2"})
    monkeypatch.setattr(os, "write", write)
    journal.close()
    assert folder.journal.read_bytes().count(b"\n") == 1


def test_a_record_that_no_line_holds_is_told_and_the_others_are_kept(folder, caplog):
    journal = JournalWriter(folder)
    for value in ("first", "x" * (5 << 20), "last"):
        journal.append("tags", values={"ditlab.asked": value})
    journal.close()
    events = EventReader(folder)
    assert [event.text for event in events.read_all()] == ["asked: first", "asked: last"]
    assert events.num_damaged == 0 and "bytes is not kept" in caplog.text

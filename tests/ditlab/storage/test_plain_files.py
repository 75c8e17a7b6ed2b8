"""Only regular files of a bounded size are read, and none is waited for."""

import os

import pytest

from ditlab.storage.plain_files import (
    UnusableFile,
    check_plain,
    open_regular_file,
    parse_json,
    read_json,
    read_plain,
)
from support import special_files


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("pipe", "a named pipe, no plain file"),
        ("folder", "a folder, no plain file"),
        ("device", "no plain file"),
        ("socket", "no plain file"),
        ("circle", "a link"),
    ],
)
def test_special_files_are_refused_at_once(tmp_path, kind, reason, follow):
    special_files.put(kind, tmp_path / "run.json")
    with pytest.raises(UnusableFile) as refused:
        read_plain(tmp_path / "run.json", 100, follow=follow)
    assert reason in refused.value.strerror
    assert refused.value.filename == str(tmp_path / "run.json")


def test_a_link_is_followed_where_a_person_named_it(tmp_path):
    (tmp_path / "target").write_bytes(b"{}")
    (tmp_path / "link").symlink_to("target")
    assert read_plain(tmp_path / "link", 2, follow=True) == b"{}"
    with pytest.raises(UnusableFile, match="a link"):
        read_plain(tmp_path / "link", 2)
    with pytest.raises(UnusableFile, match="a link"):
        check_plain(tmp_path / "link")


def test_a_file_that_has_nothing_yet_is_refused(tmp_path, monkeypatch):
    (tmp_path / "run.json").touch()
    opened, (reader, writer) = os.fdopen, os.pipe2(os.O_NONBLOCK)
    monkeypatch.setattr(os, "fdopen", lambda number, mode: opened(os.dup2(reader, number), mode))
    with pytest.raises(UnusableFile, match="nothing to read yet, no plain file"):
        read_plain(tmp_path / "run.json", 100)
    os.close(reader)
    os.close(writer)


def test_a_file_is_read_up_to_its_bound(tmp_path):
    file = tmp_path / "run.json"
    file.write_bytes(b"x" * 10)
    assert read_plain(file, 10) == b"x" * 10
    with pytest.raises(UnusableFile, match="10 bytes, more than 9"):
        read_plain(file, 9)
    with open_regular_file(file) as opened:
        assert opened.read(3) == b"xxx"


def test_a_sparse_file_of_a_terabyte_is_not_read(tmp_path):
    with (tmp_path / "run.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UnusableFile, match="more than 1,048,576"):
        read_json(tmp_path / "run.json")


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_plain(tmp_path / "run.json", 1)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "1" * 5_000, "NaN", '{"a": -Infinity}', b"\xff\xfe", "", "{'a': 1}"]
)
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)

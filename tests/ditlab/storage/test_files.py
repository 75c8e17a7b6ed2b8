"""Durable files: old or new content and nothing between, and JSON lines that outlive a torn write."""

import errno
import json
import os
from pathlib import Path

import pytest

from ditlab.storage.files import append_json_line, read_json_lines, replacing, write_durably, write_whole


@pytest.mark.parametrize("write", [write_durably, write_whole])
def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path, write):
    path = tmp_path / "run.json"
    for content in (b"one", b"two, longer", b""):
        assert write(path, content) == path
        assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def test_content_and_name_are_on_the_disk(tmp_path, monkeypatch):
    path, synced, fsync = tmp_path / "run.json", list[str](), os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write_durably(path, b"content")
    assert len(synced) == 2 and synced[0].startswith(".run.json.") and synced[1] == tmp_path.name
    synced.clear()
    append_json_line(tmp_path / "lines", {"a": 1})
    append_json_line(tmp_path / "lines", {"a": 2})
    assert synced == ["lines", tmp_path.name, "lines"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_refuses_leaves_the_old_file_alone(tmp_path, monkeypatch, call):
    path = write_durably(tmp_path / "run.json", b"old")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), refuse)
    with pytest.raises(OSError, match="No space left"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_an_error_of_the_writer_leaves_the_old_file_alone(tmp_path):
    path = write_durably(tmp_path / "table", b"old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("torn", [b'{"step": 2, "va', b"{", b"\x00\xff", b"[1]\n"])
def test_lines_outlive_a_torn_one(tmp_path, torn):
    path = tmp_path / "lines.jsonl"
    assert list(read_json_lines(path)) == []
    append_json_line(path, {"step": 1, "text": "zwölf"})
    with path.open("ab") as file:
        file.write(torn)
    append_json_line(path, {"step": 3})
    assert list(read_json_lines(path)) == [{"step": 1, "text": "zwölf"}, {"step": 3}]
    assert json.loads(path.read_bytes().splitlines()[-1]) == {"step": 3}

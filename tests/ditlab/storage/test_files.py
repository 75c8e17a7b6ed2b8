"""Durable files: old or new content and nothing between, and JSON lines that outlive a torn
write.
"""

import errno
import os
import stat
import zlib
from pathlib import Path

import pytest

from ditlab.storage.files import (
    JsonLines,
    append_json_line,
    parse_json_lines,
    read_json_lines,
    replacing,
    write_durably,
    write_whole,
)
from ditlab.storage.plain_files import UnusableFile
from support.damage import bit_flips


@pytest.mark.parametrize("write", [write_durably, write_whole])
def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path, write):
    path = tmp_path / "run.json"
    for content in (b"one", b"two, longer", b""):
        assert write(path, content) == path
        assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def test_content_and_name_are_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    synced = []
    fsync = os.fsync

    def noted(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write_durably(path, b"content")
    assert len(synced) == 2 and synced[0].startswith(".run.json.") and synced[1] == tmp_path.name
    synced.clear()
    append_json_line(tmp_path / "lines", {"a": 1})
    append_json_line(tmp_path / "lines", {"a": 2})
    assert synced == ["lines", tmp_path.name, "lines"]


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.replace"])
def test_a_disk_that_refuses_leaves_the_old_file_alone(tmp_path, monkeypatch, call):
    path = write_durably(tmp_path / "run.json", b"old")

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(call, refuse)
    with pytest.raises(OSError, match="No space left"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("write", [write_durably, write_whole])
def test_a_device_is_never_replaced(tmp_path, write):
    """A rename over it would leave the machine without it: root writes to /dev/null by habit."""
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")
    with pytest.raises(UnusableFile, match="a device, no plain file"):
        write(path, b"new")
    assert path.is_char_device() and list(tmp_path.iterdir()) == [path]


def test_an_error_of_the_writer_leaves_the_old_file_alone(tmp_path):
    path = write_durably(tmp_path / "table", b"old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "torn", [b'{"step": 2, "va', b"\x00\xff", b'{"step": 2}\n', b'{"step": 2, "crc": "0"}\n']
)
def test_lines_outlive_one_that_is_torn_or_another_tools(tmp_path, torn):
    path = tmp_path / "lines.jsonl"
    assert read_json_lines(path) == JsonLines()
    append_json_line(path, {"step": 1, "text": "zwölf"})
    with path.open("ab") as file:
        file.write(torn)
    append_json_line(path, {"step": 3})
    assert read_json_lines(path) == JsonLines([{"step": 1, "text": "zwölf"}, {"step": 3}], 1)


RECORDS = [
    {"step": 1, "values": {"a": [1.5, None, "x"]}},
    {"step": 2, "values": {}},
    {"step": 3, "text": 'say "},"'},
]


@pytest.fixture
def content(tmp_path):
    for record in RECORDS:
        append_json_line(tmp_path / "lines", record)
    return (tmp_path / "lines").read_bytes()


def test_a_line_ends_with_the_checksum_of_what_stands_before_it(content):
    first = content.splitlines()[0]
    body = b'{"step":1,"values":{"a":[1.5,null,"x"]}'
    assert first == body + b',"crc":"%08x"}' % zlib.crc32(body)


def test_no_flip_of_a_bit_changes_a_line_in_silence(content):
    for damaged in bit_flips(content, 8 * len(content)):
        found = parse_json_lines(damaged)
        assert all(record in RECORDS for record in found.records), damaged
        # a newline that is lost costs the lines on both sides
        assert len(found.records) >= len(RECORDS) - 2, damaged
        assert found.num_damaged or found.records == RECORDS, damaged


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/full")])
def test_nothing_is_appended_to_a_special_file(tmp_path, make):
    make(tmp_path / "lines")
    with pytest.raises(OSError, match=r"no plain file|Is a directory"):
        append_json_line(tmp_path / "lines", {"step": 1})

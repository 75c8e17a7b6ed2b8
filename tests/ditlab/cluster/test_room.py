"""Places in which Ray cannot start are named at once, before it is tried."""

import errno
import os
import re
import shutil
import tempfile
from collections import namedtuple

import pytest

from ditlab.cluster import session
from ditlab.cluster.session import check_room, check_shared_memory, start_with_patience
from ditlab.errors import UserError
from support.damage import refused

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize("name", ["TMPDIR", "RAY_TMPDIR"])
def test_a_folder_of_ray_without_room(name, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv(name, str(tmp_path / "not_there_yet"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**30, 2**30, 4096))
    with refused(rf"^{name}={tmp_path}.* has 4.0 KiB free.*; make room"):
        check_room()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room there"),
        (errno.EDQUOT, "delete files of yours there, or have your quota raised"),
        (errno.EROFS, "mount that file system writable"),
        (errno.EACCES, "correct its permissions"),
    ],
)
def test_a_folder_of_ray_that_refuses(number, remedy, tmp_path, monkeypatch):
    def refuse(dir):
        raise OSError(number, os.strerror(number))

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with refused(re.escape(f"({os.strerror(number)}); {remedy}, or set RAY_TMPDIR")):
        check_room()


def test_a_folder_that_fills_up_between_two_attempts_ends_them():
    def full():
        raise UserError("TMPDIR=/tmp has 0 bytes free; make room there.")

    cleaned, said = [], []
    with refused("0 bytes free"):
        start_with_patience(full, lambda: cleaned.append(1), said.append)
    assert cleaned == [1] and not said


@pytest.mark.parametrize(("free", "warns"), [(8 << 20, True), (1 << 30, False)])
def test_small_shared_memory_is_told(free, warns, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/here")
    monkeypatch.setattr(session, "SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**30, 0, free))
    said = []
    check_shared_memory(said.append)
    assert bool(said) == warns
    if warns:
        assert "8.0 MiB free" in said[0] and "RAY_TMPDIR=/tmp/here" in said[0]
        assert "--shm-size=1g" in said[0]


def test_no_shared_memory_as_on_macos(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "SHARED_MEMORY", str(tmp_path / "none"))
    check_shared_memory(pytest.fail)

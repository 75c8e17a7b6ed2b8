"""A disk that deletes nothing is named with the remedy of its own error."""

import errno
import os
import re
from pathlib import Path

import pytest

from ditlab.errors import RunFailed
from ditlab.home import Home
from ditlab_addons.housekeeping.removal import RemovalPlan
from support.damage import refused


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EROFS, "mount that file system writable"),
        (errno.EIO, "check that disk or its connection"),
        (errno.ENOTEMPTY, "change its permissions, and try again"),
    ],
)
def test_a_disk_that_deletes_nothing(number, remedy, tmp_path, monkeypatch):
    home = Home(tmp_path).ensure()
    home.runs.mkdir()

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with refused(re.escape(f"({os.strerror(number)}); {remedy}"), RunFailed):
        RemovalPlan(home, []).remove()

"""Reading files that a crash, a disk or another person may have changed: regular ones only, and
bounded in size.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any

MIB = 1 << 20

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link",
}


class UnusableFile(OSError):
    """A file that is not read: a link, a pipe, a device, a folder, or larger than its bound.
    `strerror` says which.
    """

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(errno.EINVAL, reason, str(path))


def open_regular_file(
    path: Path, limit: int | None = None, *, follow: bool = False
) -> BufferedReader:
    """Open a regular file for reading, in binary. Never waits, as opening a named pipe would.

    `limit` bounds its size in bytes; None: a file that is read in parts. `follow` allows a link in
    the last part of the path, for files that a person names; folders of the path may be links
    always. Raises UnusableFile for anything but a regular file and for a larger one, and OSError as
    `open` does.
    """
    flags = os.O_RDONLY if follow else os.O_RDONLY | os.O_NOFOLLOW
    descriptor = _open(path, flags, follow)
    try:
        size = os.fstat(descriptor).st_size
        if limit is not None and size > limit:
            raise UnusableFile(f"{size:,} bytes, more than {limit:,}", path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_for_append(path: Path) -> int:
    """Open a regular file, or a new one, for reading and appending; returns its descriptor. Raises
    as for reading.
    """
    return _open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)


def _open(path: Path, flags: int, follow: bool = False) -> int:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    except OSError as error:
        reasons = {
            errno.ELOOP: "a link in a circle" if follow else "a link, no plain file",
            errno.EISDIR: "a folder, no plain file",
            errno.ENXIO: "no plain file",
            errno.ENODEV: "no plain file",
        }
        reason = reasons.get(error.errno or 0)
        if reason:
            raise UnusableFile(reason, path) from None
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise UnusableFile(f"{_KINDS.get(kind, 'something')}, no plain file", path)
    return descriptor


def read_plain(path: Path, limit: int, *, follow: bool = False) -> bytes:
    """Read a regular file of at most `limit` bytes. Raises UnusableFile for a larger one, or if it
    grows meanwhile.
    """
    with open_regular_file(path, limit, follow=follow) as file:
        content: bytes | None = file.read()
    if content is None:  # some of /proc's files have nothing at first, and would be waited for
        raise UnusableFile("nothing to read yet, no plain file", path)
    if len(content) > limit:
        raise UnusableFile(f"more than {limit:,} bytes", path)
    return content


def check_plain(path: Path, limit: int | None = None) -> Path:
    """Return `path`, for libraries that open it themselves. Raises as `open_regular_file` does."""
    open_regular_file(path, limit).close()
    return path


def parse_json(content: bytes | str) -> Any:
    """Parse JSON. Raises ValueError for all that is none: also for nesting too deep, other
    encodings, NaN, Infinity.
    """

    def refuse_constant(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(content, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path, limit: int = MIB) -> Any:
    """Read a regular file of at most `limit` bytes as JSON. Raises OSError and ValueError."""
    return parse_json(read_plain(path, limit))


def stays_below(folder: Path, path: Path) -> bool:
    """Return True if a file or folder, and everything in it, lies in `folder` when its links are
    followed.
    """
    root = folder.resolve()
    try:
        return all(each.resolve().is_relative_to(root) for each in (path, *path.rglob("*")))
    except (OSError, RuntimeError, ValueError):  # a loop of links; a name that no file can have
        return False


def is_relative(place: str) -> bool:
    """Return True if a name leads from a folder into it."""
    path = PurePosixPath(place)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in place

"""Links, pipes, sockets and devices in the place of a file."""

import os
import socket
from contextlib import suppress
from pathlib import Path

KINDS = (
    ("pipe", "a named pipe"),
    ("device", "a link|a device"),
    ("circle", "a link"),
    ("dangling", "a link|No such file|missing"),
    ("socket", "a socket|no plain file"),
    ("folder", "a folder|Is a directory"),
)
"""Kind, and a pattern of the words that a message has for it."""


def put(kind: str, path: Path) -> Path:
    """Put a special file in the place of one, which is removed: a `device` is a link to an endless
    one.
    """
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "circle":
            path.symlink_to(path.name)
        case "dangling":
            path.symlink_to(path.with_name("nowhere"))
        case "folder":
            path.mkdir()
        case "socket":
            here = os.open(path.parent, os.O_RDONLY)
            # a socket's path may have 107 bytes, so it is bound by way of the folder's descriptor
            try:
                with socket.socket(socket.AF_UNIX) as bound:
                    bound.bind(f"/proc/self/fd/{here}/{path.name}"[:107])
            finally:
                os.close(here)
    return path


def remove(path: Path) -> None:
    """Remove a file or an empty folder, if it exists."""
    with suppress(FileNotFoundError):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

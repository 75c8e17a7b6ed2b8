"""Checks of paths that a journal names: in a home that people share, it may be another user's."""

import stat
from pathlib import Path, PurePosixPath


def stays_below(folder: Path, path: Path) -> bool:
    """Return True if a file or folder, and everything in it, lies in `folder` when its links are followed."""
    root = folder.resolve()
    try:
        contents = [path, *(path.rglob("*") if path.is_dir() else ())]
        return all(each.resolve().is_relative_to(root) for each in contents)
    except (OSError, RuntimeError, ValueError):  # a loop of links; a name that no file can have
        return False


def holds_plain_files(path: Path) -> bool:
    """Return True if a file, or everything in a folder, can be read without waiting: no pipes, devices and sockets."""
    try:
        modes = [each.stat().st_mode for each in [path, *(path.rglob("*") if path.is_dir() else ())]]
    except (OSError, RuntimeError, ValueError):
        return False
    return all(stat.S_ISREG(mode) or stat.S_ISDIR(mode) for mode in modes)


def is_relative(place: str) -> bool:
    """Return True if a name leads from a folder into it."""
    path = PurePosixPath(place)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in place

"""Checks that a path stays in its folder: in a home that people share, the journal may be another user's."""

from pathlib import Path, PurePosixPath


def stays_below(folder: Path, path: Path) -> bool:
    """Return True if a file or folder, and everything in it, lies in `folder` when its links are followed."""
    root = folder.resolve()
    try:
        contents = [path, *(path.rglob("*") if path.is_dir() else ())]
        return all(each.resolve().is_relative_to(root) for each in contents)
    except (OSError, RuntimeError, ValueError):  # a loop of links; a name that no file can have
        return False


def is_relative(place: str) -> bool:
    """Return True if a name leads from a folder into it."""
    path = PurePosixPath(place)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in place

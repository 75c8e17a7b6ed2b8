"""Whether a path stays where it belongs: in a home that people share, another one may have written the journal."""

from pathlib import Path, PurePosixPath


def stays_below(folder: Path, path: Path) -> bool:
    """Whether a file or folder, and all that it holds, lies in a folder when its links are followed."""
    root = folder.resolve()
    try:
        inside = [path, *(path.rglob("*") if path.is_dir() else ())]
        return all(each.resolve().is_relative_to(root) for each in inside)
    except (OSError, RuntimeError, ValueError):  # a loop of links; a name that no file can have
        return False


def is_relative(place: str) -> bool:
    """Whether a name leads from a folder into it."""
    path = PurePosixPath(place)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in place

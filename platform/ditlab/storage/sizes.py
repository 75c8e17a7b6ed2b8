"""Sizes of folders on the disk."""

import os
from pathlib import Path


def folder_size(path: Path) -> int:
    """Bytes of the files below a folder, or of a file. Links count as themselves, what goes meanwhile not at all."""
    try:
        if not path.is_dir() or path.is_symlink():
            return path.lstat().st_size
        with os.scandir(path) as entries:
            return sum(
                folder_size(Path(entry.path))
                if entry.is_dir(follow_symlinks=False)
                else entry.stat(follow_symlinks=False).st_size
                for entry in entries
            )
    except OSError:
        return 0

"""The files below a folder of this machine, written durably."""

import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ditlab.errors import Unreachable
from ditlab.home import refuse_ray_copy, writable_folder
from ditlab.storage.files import flush_to_disk, sync_folder
from ditlab.storage.plain_files import MIB, UnusableFile, open_regular_file, read_plain

MAX_SMALL_FILE = 256 * MIB
"""Bound of a file that is read whole: the manifest of a checkpoint with a million pieces."""
EARLY_FLUSH = 8 * MIB
"""Bytes of a file after which the disk begins to write them, so that little is left for the fsync at the end. What it
has written leaves the page cache to the data."""


@dataclass(frozen=True)
class LocalFiles:
    """Files two levels deep: `folder/name` below `path`; the folder `""` is `path` itself.

    `path` may be a link; links below it are listed, and not followed. Every method raises OSError, but for
    `check_writable` and `translating_errors`.
    """

    path: Path
    knob: str
    """Its setting, for messages: `checkpoint.storage`."""

    @property
    def location(self) -> str:
        """The folder's path."""
        return str(self.path)

    def location_of(self, folder: str) -> str:
        """The path of a folder below this one."""
        return str(self.path / folder)

    def child(self, name: str) -> "LocalFiles":
        """The files below a folder of this one."""
        return LocalFiles(self.path / name, self.knob)

    def check_writable(self) -> None:
        """Write a file and delete it. Raises UserError where that fails."""
        name, remedy = f"{self.knob}={self.path}", "name a folder that every worker can write into"
        refuse_ray_copy(self.path, name, remedy)
        writable_folder(self.path, name, remedy)

    def listing(self) -> dict[str, dict[str, int]]:
        """Size in bytes of every file, by folder and name; files beside the folders are not ours, and left out.

        Links and special files are listed as well, links to folders with what those hold: opening one says what it is.
        """
        return {
            folder: {name: state.st_size for name, state in _states(self.path / folder).items()}
            for folder in _states(self.path)
            if (self.path / folder).is_dir()
        }

    def sizes(self, folder: str) -> dict[str, int]:
        """Size in bytes of every plain file in one folder, by name."""
        states = _states(self._at(folder))
        return {name: state.st_size for name, state in states.items() if stat.S_ISREG(state.st_mode)}

    def read(self, folder: str, name: str) -> bytes:
        """Read a small file, of at most `MAX_SMALL_FILE` bytes."""
        return read_plain(self.file(folder, name), MAX_SMALL_FILE)

    def chunks(self, folder: str, name: str, size: int = 8 << 20) -> Iterator[bytes]:
        """Read a file, `size` bytes at a time."""
        with open_regular_file(self.file(folder, name)) as file:
            while chunk := file.read(size):
                yield chunk

    def file(self, folder: str, name: str) -> Path:
        """Path of a file. Raises UnusableFile where its folder is a link, which may lead to another run's files."""
        return self._at(folder) / name

    def _at(self, folder: str) -> Path:
        path = self.path / folder
        if folder and path.is_symlink():
            raise UnusableFile("its folder is a link", path)
        return path

    def write(self, folder: str, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a new file, on disk when this returns; nothing of it is left where that fails."""
        self._write(self.file(folder, name), chunks)

    def replace(self, folder: str, name: str, content: bytes) -> None:
        """Write a small file, whole or not at all, in place of an older one of that name."""
        target = self.file(folder, name)
        self._write(target.with_name(f"{name}.{secrets.token_hex(4)}.partial"), [content], target)

    def _write(self, path: Path, chunks: Iterable[bytes | memoryview], target: Path | None = None) -> None:
        """Write a new file, which then takes the name `target`; nothing of it is left where that fails."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb") as file:
                waiting = 0
                for chunk in chunks:
                    file.write(chunk)
                    waiting += len(chunk)
                    if waiting >= EARLY_FLUSH and hasattr(os, "posix_fadvise"):  # not on macOS
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                        waiting = 0
                flush_to_disk(file)
            if target:
                path.rename(target)
            # The file's entry in its folder, the folder's in the run's, the run's in the one above.
            for made in (path.parent, self.path, self.path.parent):
                sync_folder(made)
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise

    def delete(self, folder: str, name: str) -> None:
        """Delete a file, if it exists."""
        self.file(folder, name).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and its files."""
        shutil.rmtree(self.path / folder)

    def delete_folder_if_empty(self, folder: str) -> None:
        """Delete a folder without files."""
        with suppress(OSError):
            (self.path / folder).rmdir()

    @contextmanager
    def translating_errors(self, problem: str, remedy: str) -> Iterator[None]:
        """Turn OSErrors of the body into Unreachable, whose message names the knob."""
        try:
            yield
        except OSError as error:
            raise Unreachable(f"{self.knob}={self.path} {problem} ({error.strerror or error}); {remedy}.") from error


def _states(folder: Path) -> dict[str, os.stat_result]:
    """State of each entry of a folder by name, of links their own; {} where there is no such folder."""
    states = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            with suppress(FileNotFoundError):  # another process has deleted it
                states[entry.name] = entry.stat(follow_symlinks=False)
    return states

"""The files below a folder of this machine, written durably."""

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ditlab.errors import Unreachable, UserError, cannot_write, disk_remedy
from ditlab.storage.files import flush_to_disk, sync_folder, write_durably
from ditlab.storage.plain_files import MIB

CHUNK = 8 * MIB
"""Bytes that are read at a time."""
EARLY_FLUSH = 8 * MIB
"""Bytes of a file after which the disk begins to write them, so that little is left for the fsync
at the end. What it has written leaves the page cache to the data."""
# the folder in which Ray keeps jobs' working directories
_RAY_COPIES = ("runtime_resources", "working_dir_files")


def writable_folder(path: Path, name: str, remedy: str) -> Path:
    """Make a folder and test that it can be written. Raises UserError that names it by `name` where
    it cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_write(name, error, remedy) from error
    return path


def refuse_ray_copy(path: Path, name: str, remedy: str) -> None:
    """Raise UserError for a path in Ray's copy of a job's working directory: what is written there
    is lost.
    """
    if _RAY_COPIES in pairwise(path.parts):
        raise UserError(
            f"{name} lies in Ray's copy of the job's working directory, which Ray deletes; "
            f"{remedy}."
        )


@dataclass(frozen=True)
class LocalFiles:
    """Files two levels deep: `folder/name` below `path`; the folder `""` is `path` itself.

    `path` may be a link; links below it are not listed. Every method raises OSError, but for
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
        name = f"{self.knob}={self.path}"
        remedy = "name a folder that every worker can write into"
        refuse_ray_copy(self.path, name, remedy)
        writable_folder(self.path, name, remedy)

    def listing(self) -> dict[str, dict[str, int]]:
        """Size in bytes of every file, by folder and name; files beside the folders are not ours,
        and skipped.
        """
        folders = [
            entry.name for entry in _entries(self.path) if entry.is_dir(follow_symlinks=False)
        ]
        return {folder: self.sizes(folder) for folder in folders}

    def sizes(self, folder: str) -> dict[str, int]:
        """Size in bytes of every plain file in one folder, by name."""
        found = {}
        for entry in _entries(self.path / folder):
            if entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # another process has deleted it
                    found[entry.name] = entry.stat(follow_symlinks=False).st_size
        return found

    def read(self, folder: str, name: str) -> bytes:
        """Read a small file."""
        return self.file(folder, name).read_bytes()

    def chunks(self, folder: str, name: str) -> Iterator[bytes]:
        """Read a file, `CHUNK` bytes at a time."""
        with self.file(folder, name).open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk

    def file(self, folder: str, name: str) -> Path:
        """Path of a file."""
        return self.path / folder / name

    def write(self, folder: str, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a new file, on disk when this returns; nothing of it is left where that fails."""
        path = self.file(folder, name)
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
            # The file's entry in its folder, the folder's in the run's, the run's in the one above.
            for made in (path.parent, self.path, self.path.parent):
                sync_folder(made)
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise

    def replace(self, folder: str, name: str, content: bytes) -> None:
        """Write a small file, whole or not at all, in place of an older one of that name."""
        path = self.file(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, content)

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
            raise Unreachable(
                f"{self.knob}={self.path} {problem} ({error.strerror or error}); "
                f"{disk_remedy(error, remedy)}."
            ) from error


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Entries of a folder, sorted by name; [] where there is no such folder."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)
    return []

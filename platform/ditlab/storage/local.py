"""A run's checkpoint folder on a file system of this machine: what is written stays written."""

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ditlab.errors import Unreachable
from ditlab.home import writable_folder
from ditlab.storage.files import flush_to_disk, sync_folder


@dataclass(frozen=True)
class LocalFiles:
    """Files two levels deep: `folder/name` below `path`. OSErrors go through to the caller."""

    path: Path

    @property
    def location(self) -> str:
        return str(self.path)

    def location_of(self, folder: str) -> str:
        return str(self.path / folder)

    def child(self, name: str) -> "LocalFiles":
        return LocalFiles(self.path / name)

    def probe(self) -> None:
        """Raises UserError where nothing can be written."""
        writable_folder(self.path, f"checkpoint.storage={self.path}", "name a folder that every worker can write into")

    def listing(self) -> dict[str, dict[str, int]]:
        """Folder -> file -> bytes. Of folders only: a file beside them is somebody else's."""
        found = {}
        for folder in _entries(self.path):
            if folder.is_dir():
                found[folder.name] = self.sizes(folder.name)
        return found

    def sizes(self, folder: str) -> dict[str, int]:
        """File -> bytes in one folder; what is no plain file is left out."""
        found = {}
        for entry in _entries(self.path / folder):
            with suppress(FileNotFoundError):  # another process prunes
                if entry.is_file():
                    found[entry.name] = entry.stat().st_size
        return found

    def read(self, folder: str, name: str) -> bytes:
        """A small file's bytes."""
        return plain_file(self.path / folder / name).read_bytes()

    def chunks(self, folder: str, name: str, size: int = 8 << 20) -> Iterator[bytes]:
        """A file's bytes, `size` at a time."""
        with plain_file(self.path / folder / name).open("rb") as file:
            while chunk := file.read(size):
                yield chunk

    def write(self, folder: str, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """A new file, on disk when this returns; nothing of it is left where that fails."""
        target = self.path / folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                flush_to_disk(file)
            # The file's entry in its folder, the folder's in the run's, the run's in the one above.
            for made in (target.parent, self.path, self.path.parent):
                sync_folder(made)
        except BaseException:
            with suppress(OSError):
                target.unlink()
            raise

    def place(self, folder: str, name: str, content: bytes) -> None:
        """A small file, whole or not at all, in the place of an older one of that name."""
        partial = f"{name}.{secrets.token_hex(4)}.partial"
        self.write(folder, partial, [content])
        parent = self.path / folder
        try:
            (parent / partial).rename(parent / name)
        except OSError:
            with suppress(OSError):
                (parent / partial).unlink()
            raise
        sync_folder(parent)

    def delete(self, folder: str, name: str) -> None:
        (self.path / folder / name).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        shutil.rmtree(self.path / folder)

    def delete_folder_if_empty(self, folder: str) -> None:
        with suppress(OSError):
            (self.path / folder).rmdir()

    @contextmanager
    def named(self, what: str, remedy: str) -> Iterator[None]:
        """Turns OSErrors into Unreachable, which names the knob."""
        try:
            yield
        except OSError as error:
            raise Unreachable(
                f"checkpoint.storage={self.path} {what} ({error.strerror or error}); {remedy}."
            ) from error


def plain_file(path: Path) -> Path:
    """The path itself. Raises OSError where it is a folder, a pipe or anything else that is no file of bytes."""
    path.stat()
    if not path.is_file():
        raise OSError(f"{path.name} is no plain file")
    return path


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []

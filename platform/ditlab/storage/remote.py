"""The files below a URI: object stores and other file systems that pyarrow or fsspec can open.

An object appears whole or not at all when its upload ends, so a manifest that is there vouches for files that are
there.
"""

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ditlab.errors import Unreachable, UserError, first_line
from ditlab.storage.opening import open_uri

WHOLE_OBJECTS = ("s3", "gcs", "abfs")
"""pyarrow's file systems without folders: an object replaces another in one go."""


@dataclass(frozen=True)
class RemoteFiles:
    """Files two levels deep: `folder/name` below `path` of `filesystem`; the folder `""` is `path` itself.

    The libraries' errors go through, but for `probe` and inside `named`.
    """

    filesystem: Any
    path: str
    location: str
    """The URI."""
    knob: str
    """What it was given by, for messages: `checkpoint.storage`, `data.path`."""

    @classmethod
    def open(cls, knob: str, uri: str) -> "RemoteFiles":
        """Raises UserError for a URI that no library here understands."""
        filesystem, path = open_uri(knob, uri)
        if not path.strip("/"):
            raise UserError(f"{knob}={uri} names no bucket or folder; write scheme://bucket/prefix.")
        return cls(filesystem, path.rstrip("/"), uri, knob)

    def location_of(self, folder: str) -> str:
        parts = urlsplit(self.location)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{folder}"))

    def child(self, name: str) -> "RemoteFiles":
        return RemoteFiles(self.filesystem, self._at(name), self.location_of(name), self.knob)

    def _at(self, *names: str) -> str:
        return "/".join((self.path, *filter(None, names)))

    def probe(self) -> None:
        """Raises UserError where nothing can be written."""
        name = f"probe-{secrets.token_hex(4)}"
        with self.named(
            "cannot be written", "check the bucket, its permissions and the credentials in the environment"
        ):
            self.write("", name, [b"ditlab"])
            self.filesystem.delete_file(self._at(name))

    def listing(self) -> dict[str, dict[str, int]]:
        """Folder -> file -> bytes."""
        found: dict[str, dict[str, int]] = {}
        for folder, name, size in self._files(self.path):
            if folder:
                found.setdefault(folder, {})[name] = size
        return found

    def sizes(self, folder: str) -> dict[str, int]:
        """File -> bytes in one folder."""
        return {name: size for below, name, size in self._files(self._at(folder)) if not below}

    def _files(self, base: str) -> Iterator[tuple[str, str, int]]:
        from pyarrow.fs import FileSelector, FileType

        handler = getattr(self.filesystem, "handler", None)
        if handler is not None:
            handler.fs.invalidate_cache()  # fsspec remembers listings, and other workers write
        selector = FileSelector(base, allow_not_found=True, recursive=True)
        for info in self.filesystem.get_file_info(selector):
            if info.type == FileType.File:
                below = info.path.strip("/").removeprefix(base.strip("/")).strip("/")
                folder, _, name = below.rpartition("/")
                yield folder, name, info.size

    def read(self, folder: str, name: str) -> bytes:
        """A small file's bytes."""
        with self.filesystem.open_input_stream(self._at(folder, name), compression=None) as stream:
            content: bytes = stream.read()
            return content

    def chunks(self, folder: str, name: str, size: int = 8 << 20) -> Iterator[bytes]:
        """A file's bytes, `size` at a time."""
        with self.filesystem.open_input_stream(self._at(folder, name), compression=None) as stream:
            while chunk := stream.read(size):
                yield chunk

    def write(self, folder: str, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """A new file, in the store when this returns; nothing of it is left where that fails."""
        parent = self._at(folder)
        if self.filesystem.type_name not in WHOLE_OBJECTS:
            self.filesystem.create_dir(parent, recursive=True)
        try:
            with self.filesystem.open_output_stream(f"{parent}/{name}", compression=None) as stream:
                for chunk in chunks:
                    stream.write(chunk)
        except BaseException:
            with suppress(Exception):
                self.delete(folder, name)
            raise

    def place(self, folder: str, name: str, content: bytes) -> None:
        """A small file, whole or not at all, in the place of an older one of that name."""
        if self.filesystem.type_name in WHOLE_OBJECTS:
            with self.filesystem.open_output_stream(self._at(folder, name), compression=None) as stream:
                stream.write(content)
            return
        partial = f"{name}.{secrets.token_hex(4)}.partial"
        self.write(folder, partial, [content])
        self.delete(folder, name)  # HDFS renames onto nothing that is there
        self.filesystem.move(self._at(folder, partial), self._at(folder, name))

    def delete(self, folder: str, name: str) -> None:
        with suppress(FileNotFoundError):
            self.filesystem.delete_file(self._at(folder, name))

    def delete_folder(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            self.filesystem.delete_dir(self._at(folder))

    def delete_folder_if_empty(self, folder: str) -> None:
        if not self.sizes(folder):
            with suppress(OSError):
                self.delete_folder(folder)

    @contextmanager
    def named(self, what: str, remedy: str) -> Iterator[None]:
        """Turns whatever the store's library raises into Unreachable, which names the knob."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # each of fsspec's libraries has exceptions of its own
            raise Unreachable(f"{self.knob}={self.location} {what} ({first_line(error)}); {remedy}.") from error

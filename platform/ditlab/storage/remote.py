"""The files below a URI: object stores and other file systems that pyarrow or fsspec can open;
repositories of the hub.

The one place that uses the client of the Hugging Face hub. hf:// as a source of data goes through
fsspec.
"""

from __future__ import annotations

import errno
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ditlab.errors import Unreachable, UserError, first_line
from ditlab.storage.local import CHUNK

MAX_SMALL_FILE = 1 << 28
"""Bytes of a file that is read whole."""
HUB = "hf://"
"""Scheme of the Hugging Face hub."""
WHOLE_OBJECTS = ("s3", "gcs", "abfs")
"""pyarrow's file systems without folders, where an object replaces another in a single
operation.
"""

# What pyarrow parses in no URI, or takes for the beginning of another part of one.
_UNENCODED = re.compile(r"%(?![0-9A-Fa-f]{2})|[^!-~]|[\[\]\"#<>\\^`{|}]")


def split_uri(uri: str) -> tuple[str, str, str]:
    """Split a URI into `scheme://host`, the path and `?query`. A `#` belongs to the path, and so
    does a file's `?`.
    """
    scheme, _, rest = uri.partition("://")
    mark = ""
    query = ""
    if scheme.lower() != "file":
        rest, mark, query = rest.partition("?")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", slash + path, mark + query


def encode_uri(uri: str) -> str:
    """Percent-encode what pyarrow would not read as it is written: spaces, umlauts, `#`. `%25`
    stays an encoded `%`.
    """
    head, path, query = split_uri(uri)
    path, query = (
        _UNENCODED.sub(lambda found: quote(found[0], safe=""), part) for part in (path, query)
    )
    return head + path.replace("?", "%3F") + query


@dataclass(frozen=True)
class RemoteFiles:
    """Files two levels deep: `folder/name` below `path` of `filesystem`; the folder `""` is `path`
    itself.

    Every method raises its library's errors, but for `check_writable` and `translating_errors`.
    """

    filesystem: Any
    path: str
    location: str
    """The URI."""
    knob: str
    """Its setting, for messages: `checkpoint.storage`, `data.path`."""

    @classmethod
    def open(cls, knob: str, uri: str) -> RemoteFiles:
        """Open a URI. Raises UserError for one that no library here understands or that names no
        bucket or folder.

        Unreachable where the library connects at once and gets no answer.
        """
        # newer versions of pyarrow hand the hub's on to fsspec themselves
        opened = None if uri.startswith(HUB) else _open_in_arrow(knob, uri)
        location = encode_uri(uri)
        if opened is None:
            opened = _open_in_fsspec(knob, uri)
            location = uri  # fsspec decodes nothing
        filesystem, path = opened
        if not path.strip("/"):
            raise UserError(
                f"{knob}={uri} names no bucket or folder; write scheme://bucket/prefix."
            )
        return cls(filesystem, path.rstrip("/"), location, knob)

    def location_of(self, folder: str) -> str:
        """The URI of a folder below this one."""
        head, path, query = split_uri(self.location)
        return f"{head}{path.rstrip('/')}/{folder}{query}"

    def child(self, name: str) -> RemoteFiles:
        """The files below a folder of this one."""
        return RemoteFiles(self.filesystem, self._at(name), self.location_of(name), self.knob)

    def _at(self, *names: str) -> str:
        return "/".join((self.path, *filter(None, names)))

    def check_writable(self) -> None:
        """Write a file and delete it. Raises UserError where that fails."""
        name = f"probe-{secrets.token_hex(4)}"
        with self.translating_errors(
            "cannot be written",
            "check the bucket, its permissions and the credentials in the environment",
        ):
            self.write("", name, [b"ditlab"])
            self.filesystem.delete_file(self._at(name))

    def listing(self) -> dict[str, dict[str, int]]:
        """Size in bytes of every file, by folder and name."""
        found: dict[str, dict[str, int]] = {}
        for folder, name, size in self._files(self.path):
            if folder:
                found.setdefault(folder, {})[name] = size
        return found

    def sizes(self, folder: str) -> dict[str, int]:
        """Size in bytes of every file in one folder, by name."""
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
        """Read a small file, which may be another's. Raises OSError for more than `MAX_SMALL_FILE`
        bytes.
        """
        with self.filesystem.open_input_stream(self._at(folder, name), compression=None) as stream:
            content: bytes = stream.read(MAX_SMALL_FILE + 1)
        if len(content) > MAX_SMALL_FILE:
            raise OSError(
                errno.EFBIG, f"more than {MAX_SMALL_FILE:,} bytes", self._at(folder, name)
            )
        return content

    def chunks(self, folder: str, name: str) -> Iterator[bytes]:
        """Read a file, `CHUNK` bytes at a time."""
        with self.filesystem.open_input_stream(self._at(folder, name), compression=None) as stream:
            while chunk := stream.read(CHUNK):
                yield chunk

    def write(self, folder: str, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a new file, in the store when this returns; nothing of it is left where that
        fails.
        """
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

    def replace(self, folder: str, name: str, content: bytes) -> None:
        """Write a small file, whole or not at all, in place of an older one of that name."""
        if self.filesystem.type_name in WHOLE_OBJECTS:
            with self.filesystem.open_output_stream(
                self._at(folder, name), compression=None
            ) as stream:
                stream.write(content)
            return
        partial = f"{name}.{secrets.token_hex(4)}.partial"
        self.write(folder, partial, [content])
        self.delete(folder, name)  # HDFS renames onto nothing that is there
        self.filesystem.move(self._at(folder, partial), self._at(folder, name))

    def delete(self, folder: str, name: str) -> None:
        """Delete a file, if it exists."""
        with suppress(FileNotFoundError):
            self.filesystem.delete_file(self._at(folder, name))

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and its files, if it exists."""
        with suppress(FileNotFoundError):
            self.filesystem.delete_dir(self._at(folder))

    def delete_folder_if_empty(self, folder: str) -> None:
        """Delete a folder without files."""
        if not self.sizes(folder):
            with suppress(OSError):
                self.delete_folder(folder)

    @contextmanager
    def translating_errors(self, problem: str, remedy: str) -> Iterator[None]:
        """Turn errors of the store's library in the body into Unreachable, whose message names the
        knob.
        """
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # each of fsspec's libraries has exceptions of its own
            raise Unreachable(
                f"{self.knob}={self.location} {problem} ({first_line(error)}); {remedy}."
            ) from error


def _open_in_arrow(knob: str, uri: str) -> tuple[Any, str] | None:
    """Return pyarrow's file system of a URI and the path there; None for a scheme that it lacks.
    Raises UserError for a URI of another form, Unreachable for one without an answer.
    """
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(encode_uri(uri))
    except ArrowInvalid as error:
        if "Unrecognized filesystem type" in str(error):
            return None
        raise UserError(
            f"{knob}={uri} cannot be opened ({first_line(error)}); correct it."
        ) from None
    except (OSError, NotImplementedError) as error:
        kind = UserError if isinstance(error, NotImplementedError) else Unreachable
        raise kind(
            f"{knob}={uri} cannot be reached ({first_line(error)}); check the address and "
            "the environment."
        ) from None
    return filesystem, path


def _open_in_fsspec(knob: str, uri: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URI, as pyarrow's, and the path there. Raises UserError."""
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    try:
        from fsspec.core import url_to_fs

        filesystem, path = url_to_fs(uri)
    except ImportError as error:
        how = "install it on every node"
        if uri.startswith(HUB):
            how = "`pip install 'ditlab[hub]'` brings it"
        raise UserError(
            f"{knob}={uri} needs a library that is not installed "
            f"({first_line(error)}); {how}, or name another place."
        ) from None
    except Exception as error:  # each of fsspec's libraries has exceptions of its own
        raise UserError(
            f"{knob}={uri} cannot be opened ({first_line(error)}); known are a "
            "folder's path, s3://, gs://, abfs://, hdfs:// and what fsspec has a "
            "library for (hf://)."
        ) from None
    return PyFileSystem(FSSpecHandler(filesystem)), path


class NotFetched(Exception):
    """The hub does not give a repository; the message is the reason, in a line without a full
    stop.
    """


def fetch_repository(
    name: str,
    patterns: Sequence[str],
    cache: Path | None,
    revision: str | None = None,
    is_local: bool = False,
) -> Path:
    """Return the folder of a repository's files that match `patterns`, fetched unless `cache` holds
    them (None: the hub's own).

    Its name is the commit. `is_local` asks nobody and takes what the cache holds. Raises
    NotFetched, and UserError where the hub's client is not installed.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError as error:
        raise UserError(
            f"{name} of the Hugging Face hub needs the library huggingface_hub, which is not "
            "installed; `pip install 'ditlab[hub]'` brings it."
        ) from error
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(patterns),
                cache_dir=cache,
                local_files_only=is_local,
            )
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise NotFetched(first_line(error)) from error

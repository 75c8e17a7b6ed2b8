"""Files of an import's source: a file, a zip, a folder, a glob pattern, or a URI of one; listed,
checked and opened.
"""

from __future__ import annotations

import csv
import io
import os
import re
import stat
import tarfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pyarrow as pa

from ditlab.data.stores.receipt import REPLACED
from ditlab.errors import Unreachable, UserError, first_line, nearest_file, shortened
from ditlab.spec.uris import is_uri
from ditlab.spec.values import escaped
from ditlab.storage.plain_files import MIB
from ditlab.storage.remote import HUB, RemoteFiles, split_uri

ZIP = ".zip"
"""Ending of archives whose members are listed as the files of a folder."""
SHOWN_ENDINGS = 6
"""Endings of files that a sentence lists."""
ZIP_UTF8 = 1 << 11
"""Flag of a zip's member whose name is UTF-8."""
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
"""Endings of compressed files, and Arrow's names of their compression."""
SYSTEM_NAMES = (
    "__MACOSX",
    "$RECYCLE.BIN",
    "System Volume Information",
    "@eaDir",
    "Thumbs.db",
    "desktop.ini",
)
"""Names of folders and files that systems leave in folders of others; so are all that begin with a
dot.
"""
SYSTEM = "hidden or of the system"
"""Reason for which these are skipped."""
ESCAPED = "names that are not UTF-8 written with escapes"
"""Name of the count of these."""
CONVERT = "convert it, for one with `iconv -f latin1 -t utf-8`"
"""Remedy for text that is not UTF-8."""
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    MemoryError,
    OverflowError,
    RuntimeError,
    csv.Error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    pa.ArrowException,
)
"""Errors of the libraries that read files of a source."""
_PATTERN = re.compile(r"[*?\[]")
_MISSING = ": there is no such file or folder; correct it."
_NOT_ON_HUB = (
    ": the Hugging Face hub shows no such data set or path; correct it, or set HF_TOKEN if it "
    "is private."
)
_ACCESS = (
    "check address, network and the credentials in the environment (AWS_ACCESS_KEY_ID, "
    "HF_TOKEN and the like)"
)
_PAUSES = (0.5, 2.0, 8.0)
"""Seconds between attempts to read from a URI: the library has tried again by itself before."""
READ_BYTES = 4 * MIB
"""Bytes of a request to an object store, where a file is read in its order."""


class BadRecord(Exception):
    """A record of a source that cannot be read: a line, a row, a file, or the rest of one. The
    others still can.
    """

    def __init__(self, finding: str, remedy: str = "copy it again") -> None:
        super().__init__(finding)
        self.remedy = remedy


def not_utf8(start: int, error: UnicodeDecodeError) -> BadRecord:
    """Return the finding on bytes that are not UTF-8, in text that begins at offset `start` of its
    file or place.
    """
    place = f"{error.object[error.start]:#04x} at offset {start + error.start} (from 0)"
    return BadRecord(f"is not UTF-8: byte {place}", CONVERT)


@dataclass(frozen=True, order=True)
class SourceFile:
    """File of a source, as its listing has it."""

    root: str
    """Folder, or URI of one, that the name begins below."""
    name: str
    """Path below the root, with slashes."""
    size: int
    """Size in bytes; 0 for a link that leads nowhere."""
    stamp: str
    """Time of its last change, which another content does not share."""
    in_zip: bool = False
    """True for a member of the zip that `root` names."""
    is_replaced: bool = False
    """True for a member of a zip behind which another one of its name follows."""

    @property
    def is_remote(self) -> bool:
        """True below a URI."""
        return is_uri(self.root)

    @property
    def has_path(self) -> bool:
        """True for a file of this machine that lies in no zip."""
        return not self.is_remote and not self.in_zip

    @property
    def set_aside(self) -> str:
        """Reason why it is skipped whatever it holds: replaced, hidden, or left there by a
        system.
        """
        if self.is_replaced:
            return REPLACED
        for part in self.name.split("/"):
            if part.startswith(".") or part in SYSTEM_NAMES:
                return SYSTEM
        return ""

    @property
    def suffix(self) -> str:
        """Ending of its name in small letters: `.parquet`; of a compressed one that before it."""
        stem, suffix = os.path.splitext(self.name)  # noqa: PTH122  of many files, which pathlib takes long for
        if suffix.lower() in COMPRESSED:
            suffix = os.path.splitext(stem)[1]  # noqa: PTH122
        return suffix.lower()

    @property
    def kind(self) -> str:
        """Ending without its dot."""
        return self.suffix.removeprefix(".")

    @property
    def ending(self) -> str:
        """Ending in small letters, for people: `.tif`, `.csv.gz`; `without ending` for none."""
        suffix = os.path.splitext(self.name)[1].lower()  # noqa: PTH122
        if suffix in COMPRESSED:
            suffix = self.suffix + suffix
        return suffix or "without ending"

    @property
    def compression(self) -> str | None:
        """Arrow's name of its compression, by its ending; None for a plain file."""
        return COMPRESSED.get(os.path.splitext(self.name)[1].lower())  # noqa: PTH122

    @property
    def stem(self) -> str:
        """Name without its ending, with the folders: `photos/a` of `photos/a.png`."""
        return os.path.splitext(self.name)[0]  # noqa: PTH122

    @property
    def place(self) -> str:
        """Path or URI of the file, for people."""
        return escaped(f"{self.root.rstrip('/')}/{self.name}")

    @property
    def path(self) -> Path:
        """Path of a file of this machine that lies in no zip."""
        assert self.has_path, self.root
        return Path(os.path.join(self.root, self.name))  # noqa: PTH118  pathlib takes three times as long


def with_suffix(files: Sequence[SourceFile], *suffixes: str) -> list[SourceFile]:
    """Return the files whose names end so, whatever the case of letters."""
    return [file for file in files if file.name.lower().endswith(suffixes)]


def endings(listing: Sequence[SourceFile]) -> str:
    """Return the endings of a listing's files for people: `5 .md, 1 .pdf`; the most frequent
    first.
    """
    counts = Counter(file.ending for file in listing)
    shown = [f"{number:,} {ending}" for ending, number in counts.most_common(SHOWN_ENDINGS)]
    if len(counts) > SHOWN_ENDINGS:
        shown.append("...")
    return ", ".join(shown) or "no file"


def list_source(source: str) -> list[SourceFile]:
    """List a file, a folder searched to its depth, or a pattern such as `shards/*/train-*.tar`, in
    the order of names.

    A zip is listed as the folder that it would unpack to. Links are followed, a folder that was
    seen before never. Raises UserError where there is nothing of that name or nothing that may be
    listed, and Unreachable where a URI does not answer.
    """
    if is_uri(source):
        head, inside, query = split_uri(source)
        base, pattern = _parts(inside)
        files = _list_uri(source, f"{head}{base or '/'}{query}")
    else:
        base, pattern = _local_parts(source)
        files = _list_local(source, base, bool(pattern))
    if len(files) == 1 and not pattern and files[0].suffix == ZIP:
        files = _zip_members(files[0])
    files.sort(key=lambda file: file.name.split("/"))
    if pattern:
        files = [file for file in files if _matches(file.name.split("/"), pattern.split("/"))]
        if not files:
            raise UserError(
                f"--source={source} matches no file; correct the pattern, and quote it for the "
                "shell."
            )
    return files


def _list_local(source: str, base: str, is_pattern: bool) -> list[SourceFile]:
    """List the files of a folder, or a single one. Raises UserError where there is none."""
    path = Path(base)
    if is_pattern or path.is_dir():
        return list(_walk(os.path.abspath(base)))  # noqa: PTH100  for processes elsewhere; links stay
    if not path.exists():
        raise UserError(
            f"--source={source}: there is no such file or folder{nearest_file(path)}; correct it."
        )
    file = _listed(os.path.abspath(path.parent), path.name)  # noqa: PTH100
    return [file] if file else []


def num_escaped(paths: Iterable[str]) -> int:
    """Return how many names of files and folders in paths are not UTF-8."""
    odd = (path.split("/") for path in paths if not path.isascii())
    return len({name for path in odd for name in path if escaped(name) != name})


def source_name(source: str) -> str:
    """Return a source's name for people: that of its file or folder, of a pattern the folder that
    it begins below.
    """
    return escaped(_last_name(source))


def _last_name(source: str) -> str:
    if source.startswith("hf://datasets/") and source.count("/") > 3:
        return source.split("/")[4].partition("@")[0]  # that of the data set
    path = split_uri(source)[1] if is_uri(source) else source
    if not is_uri(source) and (Path(source).exists() or not _PATTERN.search(source)):
        return Path(os.path.realpath(source)).name  # without links, as far as they lead somewhere
    return PurePosixPath(_parts(path)[0]).name


def _walk(root: str) -> Iterator[SourceFile]:
    """Iterate over all files below a folder. Raises UserError for a folder that cannot be
    listed.
    """

    def refuse(error: OSError) -> None:
        raise UserError(
            f"--source={root}: {error.filename} cannot be listed ({error.strerror}); make it "
            "readable, or name another folder."
        )

    seen: set[str] = set()
    for folder, below, names in os.walk(root, onerror=refuse, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link in a circle
            below.clear()
            continue
        seen.add(real)
        above = folder[len(root) :].strip("/")
        for name in names:
            file = _listed(root, f"{above}/{name}".lstrip("/"))
            if file:
                yield file


def _listed(root: str, name: str) -> SourceFile | None:
    """Return a file as a listing has it; None for a pipe or a device, which are never opened."""
    try:
        status = os.stat(os.path.join(root, name))  # noqa: PTH116, PTH118  of many files
    except OSError:  # a link that leads nowhere is told where it is read
        return SourceFile(root, name, 0, "")
    if stat.S_ISREG(status.st_mode):
        return SourceFile(root, name, status.st_size, str(status.st_mtime_ns))
    return None


def _zip_members(file: SourceFile) -> list[SourceFile]:
    """List the files of a zip. Raises UserError for one behind a URI, and for one that cannot be
    read.
    """
    if file.is_remote:
        raise UserError(
            f"--source={file.place} is a zip behind a URI, which is not read; copy it here, or "
            "unpack it."
        )
    try:
        members = _opened_zip(str(file.path), file.stamp).infolist()
    except UNREADABLE as error:
        raise UserError(
            f"--source={file.place} is no zip that can be read ({first_line(error)}); copy it "
            "again."
        ) from error
    # as unpacking does it, the last member of a name replaces the others
    last = {member.filename: member for member in members}
    return [
        SourceFile(
            str(file.path),
            member.filename,
            member.file_size,
            file.stamp,
            in_zip=True,
            is_replaced=member is not last[member.filename],
        )
        for member in members
        if not member.is_dir()
    ]


@lru_cache(maxsize=4)
def _opened_zip(path: str, stamp: str) -> zipfile.ZipFile:
    """Open a zip, once as long as its time of change is this one.

    Names of members that do not say their encoding are UTF-8 if all of them can be.
    """
    try:
        return zipfile.ZipFile(path, metadata_encoding="utf-8")
    except UnicodeDecodeError:
        return zipfile.ZipFile(path)


def zip_names_note(listing: Sequence[SourceFile]) -> str:
    """Return a sentence on names of a zip whose encoding is not known; empty for none."""
    zips = {(file.root, file.stamp) for file in listing if file.in_zip}
    for root, stamp in zips:
        opened = _opened_zip(root, stamp)
        unknown = [
            member.filename
            for member in opened.infolist()
            if not member.filename.isascii() and not member.flag_bits & ZIP_UTF8
        ]
        if unknown and opened.metadata_encoding is None:  # type: ignore[attr-defined]
            return (
                f"{escaped(root)} does not say the encoding of {len(unknown):,} names, which are "
                f"read as code page 437: {shortened(unknown, 2)}; where that is wrong, unpack it "
                "and name the folder."
            )
    return ""


def _list_uri(source: str, root: str) -> list[SourceFile]:
    """List the files at the URI `root`, a file or a folder."""
    from pyarrow.fs import FileSelector, FileType

    files = RemoteFiles.open("--source", root)
    with files.translating_errors("cannot be listed", _ACCESS):
        above = files.path
        infos = files.filesystem.get_file_info([above])
        kind = infos[0].type
        if kind == FileType.NotFound:
            problem = _NOT_ON_HUB if root.startswith(HUB) else _MISSING
            raise UserError(f"--source={source}{problem}")
        if kind != FileType.File:
            infos = files.filesystem.get_file_info(FileSelector(above, recursive=True))
        else:
            head, path, query = split_uri(root)
            root = f"{head}{path.rstrip('/').rpartition('/')[0] or '/'}{query}"
            above = above.rpartition("/")[0]
    found: list[SourceFile] = []
    for each in infos:
        name = each.path.strip("/").removeprefix(above.strip("/")).strip("/")
        if each.type == FileType.File:
            found.append(SourceFile(root, name, each.size or 0, str(each.mtime_ns or "")))
    return found


def _local_parts(source: str) -> tuple[str, str]:
    """Split as `_parts` does, unless there is a file or folder of the whole name."""
    if Path(source).exists():
        return source, ""
    return _parts(source)


def _parts(source: str) -> tuple[str, str]:
    """Split a path at its first folder with a pattern: `a/b/*.tar` is `a/b` and `*.tar`."""
    parts = source.split("/")
    first = next((number for number, part in enumerate(parts) if _PATTERN.search(part)), len(parts))
    base = "/".join(parts[:first])
    if not base and source.startswith("/"):
        base = "/"
    return base, "/".join(parts[first:])


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return True where the parts of a path match those of a pattern, of which `**` is folders of
    any depth.
    """
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[skipped:], pattern[1:] or ["*"]) for skipped in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def open_source(file: SourceFile, buffer: int = READ_BYTES) -> IO[bytes]:
    """Open a file, which can be read from any place of it. `buffer`: bytes of a request behind a
    URI.

    Raises Unreachable for a file behind a URI that cannot be read, and errors of `UNREADABLE`.
    """
    if file.in_zip:
        return _opened_zip(file.root, file.stamp).open(file.name)
    if not file.is_remote:
        return file.path.open("rb")
    return io.BufferedReader(RemoteStream(file), buffer)


def open_unpacked(file: SourceFile) -> IO[bytes]:
    """Open a file to be read in its order, unpacked where its ending says that it is compressed.
    Raises as above.
    """
    if file.compression is None:
        return open_source(file)
    return io.BufferedReader(
        pa.CompressedInputStream(open_source(file), file.compression), READ_BYTES
    )


def read_source(file: SourceFile) -> bytes:
    """Read a file. Raises as `open_source` does."""
    return read_part(file, 0, file.size)


def read_part(file: SourceFile, start: int, length: int) -> bytes:
    """Read up to `length` bytes from offset `start`, in one request behind a URI. Raises as
    `open_source` does.
    """
    with open_source(file, max(1, min(length, READ_BYTES))) as stream:
        if start:
            stream.seek(start)
        return stream.read(length)  # of `read()` without a length Python asks 8 KiB at a time


@lru_cache(maxsize=64)
def _files(root: str) -> Any:
    return RemoteFiles.open("--source", root)


def _unread(file: SourceFile, error: Exception) -> Unreachable:
    return Unreachable(
        f"--source={file.root}: {file.name} cannot be read ({first_line(error)}); check the "
        "store and the credentials in the environment, and give the same command again."
    )


class RemoteStream(io.RawIOBase):
    """File behind a URI; what its library cannot read is Unreachable, and no damage of the file."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._place = 0
        files = _files(file.root)
        try:
            self._opened = files.filesystem.open_input_file(f"{files.path}/{file.name}")
        except Exception as error:  # each of fsspec's libraries has exceptions of its own
            raise _unread(file, error) from error

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place of the file."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer. Raises Unreachable after some attempts."""
        wanted = max(0, min(len(buffer), self._file.size - self._place))
        for pause in (*_PAUSES, None):
            try:
                # ValueError where it has another length
                buffer[:wanted] = self._opened.read_at(wanted, self._place)
                break
            except Exception as error:  # as above
                if pause is None:
                    raise _unread(self._file, error) from error
                time.sleep(pause)
        self._place += wanted
        return wanted

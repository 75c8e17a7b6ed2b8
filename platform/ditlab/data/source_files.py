"""Files of an import's source: a file, a zip, a folder, a glob pattern, or a URI of one; listed, checked and opened."""

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ditlab.errors import Unreachable, UserError, first_line, nearest_file
from ditlab.spec.uris import is_uri
from ditlab.storage.plain_files import MIB, parse_json
from ditlab.storage.remote import HUB, RemoteFiles, split_uri

ZIP = ".zip"
"""Ending of archives whose members are listed as files."""
SHOWN_ENDINGS = 6
"""Endings of files that a sentence lists."""
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
"""Endings of compressed files, and Arrow's names of their compression."""
SYSTEM_NAMES = frozenset(
    {"__MACOSX", "$RECYCLE.BIN", "System Volume Information", "@eaDir", "Thumbs.db", "desktop.ini"}
)
"""Names of folders and files that systems leave in folders of others; so are all that begin with a dot."""
_SYSTEM_PART = re.compile(rf"(?:^|/)(?:(?!\.\.?(?:/|$))\.|(?:{'|'.join(map(re.escape, sorted(SYSTEM_NAMES)))})(?:/|$))")
SYSTEM = "hidden or of the system"
"""Reason for which these are left out."""
LINE_BYTES = 256 * MIB
"""Most bytes of a line."""
CONVERT = "convert it, for one with `iconv -f latin1 -t utf-8`"
"""Remedy for text that is not UTF-8."""
CIRCLE, TWICE, SPECIAL = "link in a circle", "name there twice", "no plain file"
"""Stamps of a link to a folder around it, of a zip's member that a later one of its name replaces, and of a pipe, a
device or a link that leads nowhere, which are never opened."""
UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, MemoryError, OverflowError, RuntimeError, csv.Error, tarfile.TarError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Errors of the libraries that read files of a source; RuntimeError: one that is encrypted, or an unknown method."""
_PATTERN = re.compile(r"[*?\[]")
_NO_FOLDER = " is a file; name a folder."
_MISSING = ": there is no such file or folder; correct it."
_NOT_ON_HUB = ": the Hugging Face hub shows no such data set or path; correct it, or set HF_TOKEN if it is private."
_ACCESS = "check address, network and the credentials in the environment (AWS_ACCESS_KEY_ID, HF_TOKEN and the like)"
READ_BYTES = 4 << 20
"""Bytes of a request to an object store, where a file is read in its order."""
_PAUSES = (0.5, 2.0, 8.0)
"""Seconds between attempts to read from a URI: the library has tried again by itself before."""


class BadRecord(Exception):
    """A record of a source that cannot be read: a line, a row, a file, or the rest of one. The others still can."""

    def __init__(self, finding: str, remedy: str = "copy it again") -> None:
        super().__init__(finding)
        self.remedy = remedy


def not_utf8(start: int, error: UnicodeDecodeError) -> BadRecord:
    """Return the finding on bytes that are not UTF-8, in text that begins at offset `start` of its file or place."""
    place = f"{error.object[error.start]:#04x} at offset {start + error.start} (from 0)"
    return BadRecord(f"is not UTF-8: byte {place}", CONVERT)


def visible_name(name: str) -> str:
    r"""Return a file's name as text that UTF-8 can hold: bytes that are none become `\udcff` and the like."""
    return name.encode(errors="backslashreplace").decode()


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

    @property
    def is_remote(self) -> bool:
        """True below a URI."""
        return is_uri(self.root)

    @property
    def has_path(self) -> bool:
        """True for a file of this machine that lies in no archive."""
        return not self.in_zip and not self.is_remote

    @property
    def set_aside(self) -> str:
        """Reason why it is left out whatever it holds: hidden or left there by a system, or no file of its own."""
        if self.stamp in (CIRCLE, TWICE):
            return self.stamp
        return SYSTEM if _SYSTEM_PART.search(self.name) else ""

    @property
    def shown(self) -> str:
        """Name for people, which UTF-8 can hold."""
        return visible_name(self.name)

    @property
    def suffix(self) -> str:
        """Ending of its name in small letters: `.parquet`; of a compressed one that before it."""
        stem, suffix = os.path.splitext(self.name)  # noqa: PTH122  of many files, which pathlib takes long for
        return (os.path.splitext(stem)[1] if suffix.lower() in COMPRESSED else suffix).lower()  # noqa: PTH122

    @property
    def ending(self) -> str:
        """Ending in small letters, for people: `.tif`, `.csv.gz`; `without ending` for none."""
        suffix = os.path.splitext(self.name)[1]  # noqa: PTH122
        suffix = self.suffix + suffix if suffix.lower() in COMPRESSED else suffix
        return visible_name(suffix.lower()) or "without ending"

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
        return f"{visible_name(self.root).rstrip('/')}/{self.shown}"

    def was_changed(self) -> bool:
        """Return True for a file of this machine that has another time of change than its listing, or is gone."""
        if self.is_remote or not self.stamp.isdigit():
            return False
        try:
            status = os.stat(self.root if self.in_zip else self.path)  # noqa: PTH116  of many files
        except OSError:
            return True
        return str(status.st_mtime_ns) != self.stamp

    @property
    def path(self) -> Path:
        """Path of a file that is neither behind a URI nor in an archive. Raises OSError for a pipe and the like."""
        assert self.has_path, self.root
        if self.stamp == SPECIAL:
            raise OSError(SPECIAL)
        return Path(os.path.join(self.root, self.name))  # noqa: PTH118  pathlib takes three times as long


def with_suffix(files: Sequence[SourceFile], *suffixes: str) -> list[SourceFile]:
    """Return the files whose names end so, whatever the case of letters."""
    return [file for file in files if file.name.lower().endswith(suffixes)]


def endings(listing: Sequence[SourceFile]) -> str:
    """Return the endings of a listing's files for people: `5 .md, 1 .pdf`; the most frequent first."""
    counts = Counter(file.ending for file in listing)
    shown = [f"{number:,} {ending}" for ending, number in counts.most_common(SHOWN_ENDINGS)]
    return ", ".join([*shown, *["..."] * (len(counts) > SHOWN_ENDINGS)]) or "no file"


def list_source(source: str, beside: Sequence[str] = (), whole: bool = False) -> list[SourceFile]:
    """List a file, a folder searched to its depth, or a pattern such as `shards/*/train-*.tar`, in the order of names.

    Links are followed, a folder inside itself never. A zip gives its members. In a pattern, `**` stands for folders of
    any depth. With a single file come those of its stem with an ending in `beside`. `whole`: the source is a folder.
    Raises UserError where there is nothing of that name or nothing that may be listed, and Unreachable where a URI does
    not answer.
    """
    if is_uri(source):
        head, inside, query = split_uri(source)
        base, pattern = (inside, "") if whole else _parts(inside)
        files = _list_uri(source, f"{head}{base or '/'}{query}", beside, whole)
    else:
        base, pattern = (source, "") if whole or Path(source).exists() else _parts(source)
        if pattern or Path(base).is_dir():
            files = list(_walk(os.path.abspath(base)))  # noqa: PTH100  for processes elsewhere; links stay
        else:
            files = _list_file(source, beside, whole)
    if len(files) == 1 and not pattern:
        files = _only_file(source, files[0])
    files.sort(key=lambda file: file.name.split("/"))
    if not pattern:
        return files
    matches = _expression(pattern).match
    files = [file for file in files if matches(file.name)]
    if not files:
        raise UserError(f"--source={source} matches no file; correct the pattern, and quote it for the shell.")
    return files


def _only_file(source: str, file: SourceFile) -> list[SourceFile]:
    """Return a source's only file, or the members of a zip. Raises UserError for a pipe and the like."""
    if file.stamp == SPECIAL:
        raise UserError(f"--source={source}: {file.place} is {SPECIAL}; name another.")
    return _zip_members(file) if file.suffix == ZIP else [file]


def _list_file(source: str, beside: Sequence[str], whole: bool) -> list[SourceFile]:
    """List a file of this machine, and those of its stem. Raises UserError where it is none, or should be a folder."""
    path = Path(source)
    if not os.path.lexists(path):
        raise UserError(f"--source={source}: there is no such file or folder{nearest_file(path)}; correct it.")
    if whole:
        raise UserError(f"--source={source}{_NO_FOLDER}")
    others = path.parent.iterdir() if beside and os.access(path.parent, os.R_OK) else ()
    companions = [each for each in others if each.stem == path.stem and each.suffix.lower() in beside]
    return [local_file(each) for each in {path, *companions}]


def source_name(source: str) -> str:
    """Return a source's name for people: that of its file or folder, of a pattern the folder that it begins below."""
    if source.startswith("hf://datasets/") and source.count("/") > 3:
        return source.split("/")[4].partition("@")[0]  # that of the data set
    path = split_uri(source)[1] if is_uri(source) else source
    if not is_uri(source) and (Path(source).exists() or not _PATTERN.search(source)):
        return Path(os.path.realpath(source)).name  # without links, as far as they lead somewhere
    return PurePosixPath(_parts(path)[0]).name


def local_file(path: Path) -> SourceFile:
    """Return a file of this machine as a listing has it."""
    return _listed(os.path.abspath(path.parent), path.name, path)  # noqa: PTH100  links stay


def _listed(root: str, name: str, file: os.DirEntry[str] | Path) -> SourceFile:
    try:
        status = file.stat()
        is_plain = stat.S_ISREG(status.st_mode)
    except OSError:  # a link that leads nowhere
        is_plain = False
    if not is_plain:
        return SourceFile(root, name, 0, SPECIAL)
    return SourceFile(root, name, status.st_size, str(status.st_mtime_ns))


def _walk(root: str, below: str = "", above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[SourceFile]:
    """Iterate over all files below a folder, special ones too; `above`: device and inode of the folders around it."""
    folder = os.path.join(root, below)  # noqa: PTH118  pathlib takes three times as long
    try:
        status = os.stat(folder)  # noqa: PTH116
        here = above | {(status.st_dev, status.st_ino)}
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    is_folder = entry.is_dir()
                except OSError:  # a link to itself
                    is_folder = False
                if not is_folder:
                    yield _listed(root, f"{below}{entry.name}", entry)
                elif entry.is_symlink() and ((into := entry.stat()).st_dev, into.st_ino) in here:
                    yield SourceFile(root, f"{below}{entry.name}", 0, CIRCLE)
                else:
                    yield from _walk(root, f"{below}{entry.name}/", here)
    except OSError as error:
        raise UserError(
            f"--source={root}: {visible_name(folder)} cannot be listed ({error.strerror}); make it readable, or name "
            "another folder."
        ) from error


def _zip_members(file: SourceFile) -> list[SourceFile]:
    """List the files of a zip. Raises UserError for one that cannot be read."""
    root = f"{file.root.rstrip('/')}/{file.name}"
    try:
        infos = _opened_zip(root).infolist()
    except UNREADABLE as error:
        raise UserError(f"--source={root} is no zip that can be read ({first_line(error)}); copy it again.") from error
    infos = [each for each in infos if not each.is_dir()]
    last = {each.filename: each for each in infos}
    return [
        SourceFile(
            root, each.filename, each.file_size, file.stamp if last[each.filename] is each else TWICE, in_zip=True
        )
        for each in infos
    ]


@lru_cache(maxsize=4)
def _opened_zip(path: str) -> zipfile.ZipFile:
    root, _, name = path.rpartition("/")
    size = 0
    if is_uri(root):
        files = _files(root)
        size = files.filesystem.get_file_info(f"{files.path}/{name}").size
    return zipfile.ZipFile(open_source(SourceFile(root, name, size, "")))


def _list_uri(source: str, root: str, beside: Sequence[str], whole: bool) -> list[SourceFile]:
    """List the files at the URI `root`, a file or a folder."""
    from pyarrow.fs import FileSelector, FileType

    files = RemoteFiles.open("--source", root)
    with files.translating_errors("cannot be listed", _ACCESS):
        system = files.filesystem
        above = files.path
        (info,) = system.get_file_info([above])
        if info.type == FileType.NotFound:
            raise UserError(f"--source={source}{_NOT_ON_HUB if root.startswith(HUB) else _MISSING}")
        if info.type != FileType.File:
            infos = system.get_file_info(FileSelector(above, recursive=True))
        elif whole:
            raise UserError(f"--source={source}{_NO_FOLDER}")
        else:
            head, path, query = split_uri(root)
            root = f"{head}{path.rstrip('/').rpartition('/')[0] or '/'}{query}"
            above = info.path.rpartition("/")[0]
            stem = info.path.rpartition(".")[0]
            infos = system.get_file_info(
                [info.path, *(f"{stem}{suffix}" for suffix in {*beside} - {f".{info.extension}"})]
            )
    found: list[SourceFile] = []
    for each in infos:
        name = each.path.strip("/").removeprefix(above.strip("/")).strip("/")
        if each.type == FileType.File:
            found.append(SourceFile(root, name, each.size or 0, str(each.mtime_ns or "")))
    return found


def _parts(source: str) -> tuple[str, str]:
    """Split a path at its first folder with a pattern: `a/b/*.tar` is `a/b` and `*.tar`."""
    parts = source.split("/")
    first = next((number for number, part in enumerate(parts) if _PATTERN.search(part)), len(parts))
    base = "/".join(parts[:first])
    return base or ("/" if source.startswith("/") else ""), "/".join(parts[first:])


def _expression(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern, whose `*` does not match a slash."""
    parts = [*pattern.split("/"), *(["*"] if pattern.split("/")[-1] == "**" else [])]
    expression = ""
    for part in parts:
        one = translate(part)[len("(?s:") : -len(r")\Z")].replace(".*", "[^/]*")
        expression += "(?:[^/]+/)*" if part == "**" else f"{one}/"
    return re.compile(expression.removesuffix("/") + r"\Z")


def open_source(file: SourceFile, buffer: int = READ_BYTES) -> IO[bytes]:
    """Open a file, which can be read from any place of it. `buffer`: bytes of a request behind a URI.

    Raises Unreachable for a file behind a URI that some attempts cannot read, and errors of `UNREADABLE`.
    """
    if file.in_zip:
        return _opened_zip(file.root).open(file.name)
    if not file.is_remote:
        return file.path.open("rb")
    return io.BufferedReader(RemoteStream(file), buffer)


def open_unpacked(file: SourceFile) -> IO[bytes]:
    """Open a file to be read in its order, unpacked where its ending says that it is compressed. Raises as above."""
    if file.compression is None:
        return open_source(file)
    import pyarrow as pa

    return io.BufferedReader(pa.CompressedInputStream(open_source(file), file.compression), READ_BYTES)


def read_source(file: SourceFile) -> bytes:
    """Read a file. Raises as `open_source` does."""
    return read_part(file, 0, file.size)


def read_json(file: SourceFile) -> Any:
    """Read a small file of JSON. Raises UserError for what is none."""
    try:
        return parse_json(read_source(file))
    except UNREADABLE as error:
        raise UserError(f"{file.place} cannot be read ({first_line(error)}); copy it again.") from error


def read_part(file: SourceFile, start: int, length: int) -> bytes:
    """Read up to `length` bytes from offset `start`, in one request behind a URI. Raises as `open_source` does."""
    with open_source(file, max(1, min(length, READ_BYTES))) as stream:
        if start:
            stream.seek(start)
        return stream.read(length)  # of `read()` without a length Python asks 8 KiB at a time


@lru_cache(maxsize=64)
def _files(root: str) -> Any:
    return RemoteFiles.open("--source", root)


class RemoteStream(io.RawIOBase):
    """File behind a URI, read again from where it broke off."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._place = 0
        self._opened = None

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
        for pause in (*_PAUSES, None) if wanted else ():
            try:
                if self._opened is None:
                    files = _files(self._file.root)
                    self._opened = files.filesystem.open_input_file(f"{files.path}/{self._file.name}")
                content: bytes = self._opened.read_at(wanted, self._place)  # type: ignore[attr-defined]
                buffer[:wanted] = content  # ValueError where it has another length
                break
            except Exception as error:  # each of fsspec's libraries has exceptions of its own
                self._opened = None
                if pause is None:
                    raise Unreachable(
                        f"--source={self._file.root}: {self._file.shown} cannot be read ({first_line(error)}); check "
                        "the store and the credentials in the environment, and give the same command again."
                    ) from error
                time.sleep(pause)
        self._place += wanted
        return wanted

"""WebDataset's tars of images and captions, read as streams."""

import tarfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath
from typing import BinaryIO

from ditlab.data.block_imports.source_files import SourceFile, open_source, visible_name
from ditlab.data.images.annotations import Annotations
from ditlab.data.images.decoding import CAPTION_BYTES, IMAGE_SUFFIXES, CaptionedImage
from ditlab.errors import first_line
from ditlab.storage.plain_files import MIB

MEMBER_BYTES = 512 * MIB
"""Most bytes of a tar's member."""
KEY_BYTES = 2 * MEMBER_BYTES
"""Most bytes of members of one key, which are held together."""

NAME_BYTES = MIB
"""Most bytes of a member's name, or of its PAX fields."""
_OF_NAMES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
LONGEST_SEARCH = 64 * MIB
"""Bytes behind a damaged header in which the next one is looked for: a few images."""
_MARK = 257
"""Place of `ustar` in a header."""
LONGEST_PADDING = 4 * MIB
"""Bytes behind an end mark that are looked at: writers pad to 10 KiB, or to the record of a tape."""


@dataclass(frozen=True)
class SkippedMember:
    """Member of a tar that was not read."""

    reason: str


def tar_images(file: SourceFile, annotations: Annotations) -> Iterator[CaptionedImage]:
    """Iterate over the images of a tar, whose neighbouring members belong together up to their names' first dot.

    A damaged header costs its member: reading goes on at the next one that is whole, and what lies between is one item
    that cannot be read. Where none follows, that is the rest of the tar.
    """
    damage = ""
    try:
        for reading in _readings(file, stream=True):
            if isinstance(reading, SkippedMember):
                yield CaptionedImage(file.shown, None, None, problem=reading.reason, is_rest=True)
            else:
                yield from _images(reading, file.shown, annotations)
    except (tarfile.TarError, OSError, EOFError) as error:
        damage = f"no tar that can be read: {first_line(error)}"
    if damage:
        yield CaptionedImage(file.shown, None, None, problem=damage, is_rest=True)


def tar_labels(file: SourceFile, annotations: Annotations) -> set[str]:
    """Return the classes of a tar's images, by its headers. Raises UserError for an image outside all folders."""
    found: set[str] = set()
    try:
        for reading in _readings(file, stream=file.is_remote):
            for member in () if isinstance(reading, SkippedMember) else reading.members():
                inside = PurePosixPath(visible_name(member.name))
                if inside.suffix != ".txt":
                    found.add(annotations.label_of(inside, f"{file.shown}: {inside}") or "")
    except (tarfile.TarError, OSError, EOFError):
        pass  # counted where the images are read
    return found


def _readings(file: SourceFile, stream: bool) -> "Iterator[_Reading | SkippedMember]":
    """Iterate over the whole stretches of a tar, each to be read before the next, and the damages between them.

    As a stream, or so that what lies between its headers is passed over.
    """
    with open_source(file) as content:
        start: int | None = 0
        while start is not None:
            content.seek(start)
            with tarfile.open(fileobj=content, mode="r|" if stream else "r:", tarinfo=CheckedHeader) as tar:
                reading = _Reading(tar, start if stream else 0)
                yield reading
            if not reading.damage:
                return
            damaged, start = reading.damaged_at, _next_header(content, reading.damaged_at + tarfile.BLOCKSIZE)
            end = "the rest, from byte {:,} on" if start is None else "bytes {:,} to {:,}"
            yield SkippedMember(f"{end.format(damaged, start)}: {reading.damage}")


def _next_header(content: BinaryIO, place: int) -> int | None:
    """Return the offset of the next whole header with the mark of a tar, among some megabytes; None for none."""
    for start in range(place, place + LONGEST_SEARCH, MIB):
        content.seek(start)
        read = content.read(MIB)
        for offset in range(0, len(read) - tarfile.BLOCKSIZE + 1, tarfile.BLOCKSIZE):
            if read[offset + _MARK : offset + _MARK + 5] != b"ustar":
                continue
            with suppress(tarfile.HeaderError, tarfile.ReadError):
                CheckedHeader.frombuf(read[offset : offset + tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
                return start + offset
        if len(read) < MIB:
            return None
    return None


def _images(reading: "_Reading", name: str, annotations: Annotations) -> Iterator[CaptionedImage]:
    for _, group in groupby(reading.members(), _key):
        contents = reading.contents(group)
        beside = next((content for path, content in contents.items() if path.endswith(".txt")), None)
        if reading.damage and beside is None and annotations.caption == "txt":
            continue  # the caption lies behind the damage, as the rest does
        for path, content in contents.items():
            if path.endswith(".txt"):
                continue
            inside = PurePosixPath(visible_name(path))
            place = f"{name}: {inside}"
            label = annotations.label_of(inside, place)
            if isinstance(content, SkippedMember):
                yield CaptionedImage(place, None, None, label, content.reason)
            elif isinstance(beside, SkippedMember):
                yield CaptionedImage(place, None, None, label, f"its caption: {beside.reason}")
            else:
                yield CaptionedImage(place, content, annotations.caption_of(inside, beside), label)


class _Reading:
    """Members of a tar in turn, as a stream has them, up to its end or to the first damage."""

    def __init__(self, tar: tarfile.TarFile, start: int) -> None:
        """Read a tar whose offsets begin at byte `start` of its file."""
        self.damage = ""
        """Reason of the damage; empty for a whole tar."""
        self.damaged_at = 0
        """Byte of the file from which on it is damaged."""
        self._tar, self._start = tar, start

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Iterate over the images and captions."""
        while not self.damage:
            try:
                member = self._tar.next()
            except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
                self._note(error, self._tar.offset)
                return
            if member is None:
                stream = self._tar.fileobj
                assert stream is not None, "the tar is open"
                # data behind the end mark: a header of zeros leaves them, or a second tar behind the first
                if stream.read(LONGEST_PADDING).strip(b"\0"):
                    self.damage, self.damaged_at = "it lies behind an end mark", self._start + self._tar.offset
                return
            self._tar.members.clear()  # type: ignore[attr-defined]  # all so far, which a stream has no use for
            if member.isfile() and _extension(member) in (*IMAGE_SUFFIXES, ".txt"):
                yield member

    def contents(self, members: Iterable[tarfile.TarInfo]) -> dict[str, bytes | SkippedMember]:
        """Read the members of a key, without one that is cut off by the damage."""
        contents: dict[str, bytes | SkippedMember] = {}
        left = KEY_BYTES
        for member in members:
            most = min(left, CAPTION_BYTES if member.name.endswith(".txt") else MEMBER_BYTES)
            if member.issparse() or member.size > most:
                contents[member.name] = SkippedMember(
                    "stored with holes" if member.issparse() else f"{member.size:,} bytes"
                )
                continue
            file = self._tar.extractfile(member)
            assert file is not None, member.name  # it is a regular file
            try:
                contents[member.name] = file.read()
            except (tarfile.TarError, OSError, EOFError) as error:
                self._note(error, member.offset)
                break
            left -= member.size
        return contents

    def _note(self, error: Exception, offset: int) -> None:
        self.damage, self.damaged_at = first_line(error), self._start + offset


class CheckedHeader(tarfile.TarInfo):
    """Header of a member that is damaged where Python's own takes it for the end of the tar, and bounded in size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "CheckedHeader":
        """Parse a header. Raises ReadError for one whose long name or PAX fields would be read without a bound."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in _OF_NAMES and header.size > NAME_BYTES:
            raise tarfile.ReadError(f"a name of {header.size:,} bytes")
        return header

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "CheckedHeader":
        """Read the next header. Raises ReadError for one that is damaged, cut short, or missing before the end mark."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.EmptyHeaderError:  # type: ignore[attr-defined]
            raise tarfile.ReadError("it ends without its end mark") from None
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(first_line(error)) from error


def _key(member: tarfile.TarInfo) -> str:
    path = PurePosixPath(member.name)
    return str(path.parent / path.name.partition(".")[0])


def _extension(member: tarfile.TarInfo) -> str:
    """Return all behind the name's first dot: `a.seg.png` is no image of its own but something about `a`."""
    name = PurePosixPath(member.name).name
    return "." + name.partition(".")[2].lower() if not name.startswith(".") else ""

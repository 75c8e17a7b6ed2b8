"""WebDataset's tars of images and captions, read as streams."""

import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath

from ditlab.data.images.annotations import Annotations
from ditlab.data.images.decoding import CAPTION_BYTES, IMAGE_SUFFIXES, CaptionedImage
from ditlab.data.source_files import visible_name
from ditlab.errors import first_line
from ditlab.storage.plain_files import MIB, open_plain

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
LONGEST_PADDING = 4 * MIB
"""Bytes behind an end mark that are looked at: writers pad to 10 KiB, or to the record of a tape."""


@dataclass(frozen=True)
class Unread:
    """Member of a tar that was not read."""

    reason: str


@dataclass(frozen=True)
class TarFiles:
    """WebDataset's tars: neighbouring members whose paths are the same up to the name's first dot belong together.

    Of a damaged tar, the images before the damage count, and the rest is one that cannot be read.
    """

    root: Path
    files: Sequence[Path]
    annotations: Annotations

    num = None

    def __iter__(self) -> Iterator[CaptionedImage]:
        for file in self.files:
            name, damage = visible_name(file.relative_to(self.root).as_posix()), ""
            try:
                with (
                    open_plain(file, follow=True) as content,
                    tarfile.open(fileobj=content, mode="r|", tarinfo=CheckedHeader) as tar,
                ):
                    reading = _Reading(tar)
                    yield from self._of_tar(reading, name)
                    damage = reading.damage
            except (tarfile.TarError, OSError, EOFError) as error:
                damage = f"no tar that can be read: {first_line(error)}"
            if damage:
                yield CaptionedImage(name, None, None, problem=damage, is_rest=True)

    def _of_tar(self, reading: "_Reading", name: str) -> Iterator[CaptionedImage]:
        for _, group in groupby(reading.members(), _key):
            contents = reading.contents(group)
            beside = next((content for path, content in contents.items() if path.endswith(".txt")), None)
            if reading.damage and beside is None and self.annotations.caption == "txt":
                continue  # the caption lies behind the damage, as the rest does
            for path, content in contents.items():
                if path.endswith(".txt"):
                    continue
                inside = PurePosixPath(visible_name(path))
                place = f"{name}: {inside}"
                label = self.annotations.label_of(inside, place)
                if isinstance(content, Unread):
                    yield CaptionedImage(place, None, None, label, content.reason)
                elif isinstance(beside, Unread):
                    yield CaptionedImage(place, None, None, label, f"its caption: {beside.reason}")
                else:
                    yield CaptionedImage(place, content, self.annotations.caption_of(inside, beside), label)


class _Reading:
    """Members of a tar in turn, as a stream has them, up to its end or to the first damage."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self.damage = ""
        """Place of the damage and its reason; empty for a whole tar."""
        self._tar = tar

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Iterate over the images and captions."""
        while not self.damage:
            try:
                member = self._tar.next()
            except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
                self._note(error, self._tar.offset)
                return
            if member is None:
                self._check_end()
                return
            self._tar.members.clear()  # type: ignore[attr-defined]  # all so far, which a stream has no use for
            if member.isfile() and _extension(member) in (*IMAGE_SUFFIXES, ".txt"):
                yield member

    def contents(self, members: Iterable[tarfile.TarInfo]) -> dict[str, bytes | Unread]:
        """Read the members of a key, without one that is cut off by the damage."""
        contents: dict[str, bytes | Unread] = {}
        left = KEY_BYTES
        for member in members:
            most = min(left, CAPTION_BYTES if member.name.endswith(".txt") else MEMBER_BYTES)
            if member.issparse() or member.size > most:
                contents[member.name] = Unread("stored with holes" if member.issparse() else f"{member.size:,} bytes")
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

    def _check_end(self) -> None:
        """Note data behind the end mark, as a header of zeros leaves it, or a second tar behind the first."""
        stream = self._tar.fileobj
        assert stream is not None, "the tar is open"
        if stream.read(LONGEST_PADDING).strip(b"\0"):
            self.damage = f"the rest, from byte {self._tar.offset:,} on: it lies behind an end mark"

    def _note(self, error: Exception, offset: int) -> None:
        self.damage = f"the rest, from byte {offset:,} on: {first_line(error)}"


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

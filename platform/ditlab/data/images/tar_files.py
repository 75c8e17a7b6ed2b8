"""WebDataset's tars of images and captions, read as streams."""

import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath

from ditlab.data.block_imports.listing import SourceFile
from ditlab.data.block_imports.opening import open_source
from ditlab.data.images.annotations import Annotations
from ditlab.data.images.decoding import CAPTION_BYTES, IMAGE_SUFFIXES, CaptionedImage
from ditlab.data.source_files import visible_name
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
LONGEST_PADDING = 4 * MIB
"""Bytes behind an end mark that are looked at: writers pad to 10 KiB, or to the record of a tape."""


@dataclass(frozen=True)
class Unread:
    """Member of a tar that was not read."""

    reason: str


def tar_images(file: SourceFile, annotations: Annotations) -> Iterator[CaptionedImage]:
    """Iterate over the images of a tar, whose neighbouring members belong together up to their names' first dot.

    Of a damaged tar, the images before the damage count, and the rest is one that cannot be read.
    """
    damage = ""
    try:
        with _opened(file) as tar:
            reading = _Reading(tar)
            yield from _images(reading, file.shown, annotations)
            damage = reading.damage
    except (tarfile.TarError, OSError, EOFError) as error:
        damage = f"no tar that can be read: {first_line(error)}"
    if damage:
        yield CaptionedImage(file.shown, None, None, problem=damage, is_rest=True)


def tar_labels(file: SourceFile, annotations: Annotations) -> set[str]:
    """Return the classes of a tar's images, by its headers, up to the first damage.

    Raises UserError for an image outside all folders.
    """
    found: set[str] = set()
    try:
        with _opened(file, stream=file.is_remote) as tar:
            for member in _Reading(tar).members():
                inside = PurePosixPath(visible_name(member.name))
                if inside.suffix != ".txt":
                    found.add(annotations.label_of(inside, f"{file.shown}: {inside}") or "")
    except (tarfile.TarError, OSError, EOFError):
        pass  # counted where the images are read
    return found


@contextmanager
def _opened(file: SourceFile, stream: bool = True) -> Iterator[tarfile.TarFile]:
    """Open a tar, as a stream, or so that what lies between its headers is passed over."""
    with (
        open_source(file) as content,
        tarfile.open(fileobj=content, mode="r|" if stream else "r:", tarinfo=CheckedHeader) as tar,
    ):
        yield tar


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
            if isinstance(content, Unread):
                yield CaptionedImage(place, None, None, label, content.reason)
            elif isinstance(beside, Unread):
                yield CaptionedImage(place, None, None, label, f"its caption: {beside.reason}")
            else:
                yield CaptionedImage(place, content, annotations.caption_of(inside, beside), label)


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

"""WebDataset's tars of images and captions, read as streams."""

import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath

from ditlab.data.images.annotations import Annotations
from ditlab.data.images.decoding import CAPTION_BYTES, IMAGE_SUFFIXES, CaptionedImage
from ditlab.data.source_files import visible_name
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import MIB, open_plain

MEMBER_BYTES = 512 * MIB
"""Most bytes of a tar's member."""
KEY_BYTES = 2 * MEMBER_BYTES
"""Most bytes of members of one key, which are held together."""


@dataclass(frozen=True)
class Unread:
    """Member of a tar that was not read."""

    reason: str


@dataclass(frozen=True)
class TarFiles:
    """WebDataset's tars: neighbouring members whose paths are the same up to the name's first dot belong together."""

    root: Path
    files: Sequence[Path]
    annotations: Annotations

    num = None

    def __iter__(self) -> Iterator[CaptionedImage]:
        for file in self.files:
            try:
                with open_plain(file, follow=True) as content, tarfile.open(fileobj=content, mode="r|") as tar:
                    yield from self._of_tar(tar, visible_name(file.relative_to(self.root).as_posix()))
            except (tarfile.TarError, OSError, EOFError) as error:
                raise UserError(f"{file} is no tar that can be read ({first_line(error)}); copy it again.") from error

    def _of_tar(self, tar: tarfile.TarFile, name: str) -> Iterator[CaptionedImage]:
        members = (member for member in tar if member.isfile() and _extension(member) in (*IMAGE_SUFFIXES, ".txt"))
        for _, group in groupby(members, _key):
            contents = _contents(tar, group)
            beside = next((content for path, content in contents.items() if path.endswith(".txt")), None)
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


def _contents(tar: tarfile.TarFile, members: Iterable[tarfile.TarInfo]) -> dict[str, bytes | Unread]:
    """Read the members of a key in turn, as a stream has them."""
    contents: dict[str, bytes | Unread] = {}
    left = KEY_BYTES
    for member in members:
        most = min(left, CAPTION_BYTES if member.name.endswith(".txt") else MEMBER_BYTES)
        if member.issparse() or member.size > most:
            contents[member.name] = Unread("stored with holes" if member.issparse() else f"{member.size:,} bytes")
            continue
        file = tar.extractfile(member)
        assert file is not None, member.name  # it is a regular file
        contents[member.name] = file.read()
        left -= member.size
    return contents


def _key(member: tarfile.TarInfo) -> str:
    path = PurePosixPath(member.name)
    return str(path.parent / path.name.partition(".")[0])


def _extension(member: tarfile.TarInfo) -> str:
    """Return all behind the name's first dot: `a.seg.png` is no image of its own but something about `a`."""
    name = PurePosixPath(member.name).name
    return "." + name.partition(".")[2].lower() if not name.startswith(".") else ""

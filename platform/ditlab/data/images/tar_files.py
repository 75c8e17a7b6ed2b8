"""WebDataset's tars of images and captions, read as streams."""

import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import PurePosixPath
from typing import Literal

from ditlab.data.block_imports.source_files import SourceFile, open_source, visible_name
from ditlab.data.images.annotations import Annotations
from ditlab.data.images.decoding import IMAGE_SUFFIXES, CaptionedImage
from ditlab.errors import first_line
from ditlab.storage.plain_files import MIB

MEMBER_BYTES = 512 * MIB
"""Most bytes of a tar's member."""
PADDING_BYTES = 4 * MIB
"""Bytes behind an end mark that are looked at: writers pad to 10 KiB, or to the record of a tape."""
BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError)
"""Errors of Python's reader for what is no tar, or a damaged one."""


def tar_images(file: SourceFile, annotations: Annotations) -> Iterator[CaptionedImage]:
    """Iterate over the images of a tar, whose neighbouring members belong together up to their names' first dot.

    A damage costs the rest of the tar, which is one item that cannot be read.
    """
    damage: list[str] = []
    for _, group in groupby(_contents(file, damage), _key):
        members = dict(group)
        texts = [members.pop(name) for name in list(members) if name.endswith(".txt")]
        beside = texts[0] if texts else None
        if damage and beside is None and annotations.caption == "txt":
            continue  # its caption lies behind the damage
        text = beside if isinstance(beside, bytes) else None
        for name, content in members.items():
            inside = PurePosixPath(visible_name(name))
            problem = (
                content if isinstance(content, str) else f"its caption: {beside}" if isinstance(beside, str) else ""
            )
            image = None if isinstance(content, str) else content
            yield annotations.annotate(inside, f"{file.shown}: {inside}", image, text, problem)
    if damage:
        yield CaptionedImage(file.shown, None, None, problem=damage[0], is_rest=True)


def _key(member: tuple[str, object]) -> PurePosixPath:
    path = PurePosixPath(member[0])
    return path.parent / path.name.partition(".")[0]


def tar_labels(file: SourceFile, annotations: Annotations) -> set[str]:
    """Return the classes of a tar's images, by its headers. Raises UserError for an image outside all folders."""
    insides = (PurePosixPath(visible_name(name)) for name, _ in _contents(file, [], headers=True))
    return {annotations.label_of(each, f"{file.shown}: {each}") or "" for each in insides if each.suffix != ".txt"}


def _contents(file: SourceFile, damage: list[str], headers: bool = False) -> Iterator[tuple[str, bytes | str]]:
    """Iterate over images and captions: name, and content or the reason why it is not read.

    It ends at a damage, which is described in `damage`. `headers`: contents are passed over, and empty.
    """
    start: int | None = None
    mode: Literal["r:", "r|"] = "r:" if headers and not file.is_remote else "r|"
    try:
        with open_source(file) as source, tarfile.open(fileobj=source, mode=mode, tarinfo=StrictHeader) as tar:
            start = 0
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # all so far, which a stream has no use for
                name = PurePosixPath(member.name).name
                # all behind the first dot: `a.seg.png` is no image of its own but something about `a`
                extension = "" if name.startswith(".") else f".{name.partition('.')[2].lower()}"
                if member.isfile() and extension in (*IMAGE_SUFFIXES, ".txt"):
                    if headers:
                        yield member.name, b""
                    elif member.size > MEMBER_BYTES:
                        yield member.name, f"{member.size:,} bytes"
                    else:
                        content = tar.extractfile(member)
                        assert content is not None, member.name  # it is a regular file
                        yield member.name, content.read()
                start = tar.offset
            # a header of zeros leaves data behind the end mark, and so does a second tar behind the first
            if tar.fileobj is not None and tar.fileobj.read(PADDING_BYTES).strip(b"\0"):
                damage.append(f"the rest, from byte {tar.offset:,} on: it lies behind an end mark")
    except BROKEN as error:
        where = "no tar that can be read" if start is None else f"the rest, from byte {start:,} on"
        damage.append(f"{where}: {first_line(error)}")


class StrictHeader(tarfile.TarInfo):
    """Header of a member, for which a damaged one is an error: Python's own takes it for the end of the tar."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "StrictHeader":
        """Read the next header. Raises ReadError for one that is damaged, cut short, or missing before the end mark."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.EmptyHeaderError:  # type: ignore[attr-defined]
            raise tarfile.ReadError("it ends without its end mark") from None
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(first_line(error)) from error

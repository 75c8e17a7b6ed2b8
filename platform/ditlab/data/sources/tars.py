"""Members of tars, read as a stream by Python's own reader, up to a damage; links are followed to
members of the same tar.
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import PurePosixPath
from typing import Literal

from ditlab.data.source_files import UNREADABLE, SourceFile, open_source
from ditlab.errors import first_line
from ditlab.spec.values import escaped
from ditlab.storage.plain_files import MIB

MEMBER_BYTES = 512 * MIB
"""Most bytes of a member."""
PADDING_BYTES = 4 * MIB
"""Bytes behind an end mark that are looked at: writers pad to 10 KiB, or to the record of a
tape.
"""
MOST_LINKS = 16
"""Links that are followed from one to the next."""


def tar_members(
    file: SourceFile, damage: list[str], wanted: Sequence[str]
) -> Iterator[tuple[str, bytes | str | None]]:
    """Iterate over the files of a tar up to a damage, told in `damage`: name and content, or why it
    is not read.

    `wanted`: endings of the members whose contents are read; of the others it is None.
    """
    start: int | None = None
    mode: Literal["r:", "r|"] = "r|" if wanted or file.is_remote else "r:"
    try:
        with (
            LinkedMembers(file) as linked,
            open_source(file) as source,
            tarfile.open(fileobj=source, mode=mode, tarinfo=StrictHeader) as tar,
        ):
            start = 0
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # all so far, which a stream has no use for
                if not member.isdir():
                    yield member.name, _content(tar, member, wanted, linked)
                start = tar.offset
            # a header of zeros leaves data behind the end mark, and so does a second tar behind the
            # first
            if tar.fileobj is not None and tar.fileobj.read(PADDING_BYTES).strip(b"\0"):
                damage.append(f"the rest, from byte {tar.offset:,} on: it lies behind an end mark")
    except UNREADABLE as error:
        if start is None:
            where = "no tar that can be read"
        else:
            where = f"the rest, from byte {start:,} on"
        damage.append(f"{where}: {first_line(error)}")


def _content(
    tar: tarfile.TarFile, member: tarfile.TarInfo, wanted: Sequence[str], linked: LinkedMembers
) -> bytes | str | None:
    """Return a member's content, None for one that is not wanted, or the reason why it is not
    read.
    """
    if PurePosixPath(member.name).suffix.lower() not in wanted:
        return None
    if member.issym() or member.islnk():
        return linked.content(member)
    if not member.isfile():
        return "a device or a pipe"
    return _read(tar, member)


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | str:
    """Return the content of a regular file, or the reason why it is not read."""
    if member.size > MEMBER_BYTES:
        return f"{member.size:,} bytes"
    content = tar.extractfile(member)
    assert content is not None, member.name  # it is a regular file
    return content.read()


class LinkedMembers:
    """Members of a tar that links lead to, found in a list of all members that the first link
    makes. No link leads out of the tar.
    """

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._stack = ExitStack()
        self._tar: tarfile.TarFile | None = None
        self._members: dict[str, list[tarfile.TarInfo]] = {}

    def __enter__(self) -> LinkedMembers:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def content(self, link: tarfile.TarInfo) -> bytes | str:
        """Return the content that a link leads to, or the reason why it is not read."""
        tar = self._opened()
        member = link
        for _ in range(MOST_LINKS):
            target = self._target(member)
            if target is None:
                return f"a link to {escaped(member.linkname)}, which is no file of the tar"
            if target.isfile():
                return _read(tar, target)
            member = target
        return f"{MOST_LINKS} links, each to the next one"

    def _target(self, link: tarfile.TarInfo) -> tarfile.TarInfo | None:
        """Return the file or link that a link leads to; a hard link is to a member before it."""
        name = link.linkname
        if link.issym():
            name = posixpath.join(posixpath.dirname(link.name), name)
        found = self._members.get(posixpath.normpath(name), [])
        if link.islnk():
            found = [member for member in found if member.offset < link.offset]
        return found[-1] if found else None

    def _opened(self) -> tarfile.TarFile:
        """Return the tar, its files and links listed up to a damage."""
        if self._tar is None:
            source = self._stack.enter_context(open_source(self._file))
            opened = tarfile.open(fileobj=source, mode="r:", tarinfo=StrictHeader)  # noqa: SIM115
            self._tar = self._stack.enter_context(opened)
            with suppress(*UNREADABLE):  # told by the stream
                while (member := self._tar.next()) is not None:
                    if member.isfile() or member.issym() or member.islnk():
                        self._members.setdefault(posixpath.normpath(member.name), []).append(member)
        return self._tar


class StrictHeader(tarfile.TarInfo):
    """Header of a member, for which a damaged one is an error: Python's own takes it for the end of
    the tar.
    """

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> StrictHeader:
        """Read the next header. Raises ReadError for one that is damaged, cut short, or missing
        before the end mark.
        """
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.EmptyHeaderError:  # type: ignore[attr-defined]
            raise tarfile.ReadError("it ends without its end mark") from None
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(first_line(error)) from error

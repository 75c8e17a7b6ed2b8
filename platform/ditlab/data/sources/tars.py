"""Members of tars, read as a stream by Python's own reader, up to a damage."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Literal

from ditlab.data.source_files import UNREADABLE, SourceFile, open_source
from ditlab.errors import first_line
from ditlab.storage.plain_files import MIB

MEMBER_BYTES = 512 * MIB
"""Most bytes of a member."""
PADDING_BYTES = 4 * MIB
"""Bytes behind an end mark that are looked at: writers pad to 10 KiB, or to the record of a
tape.
"""


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
            open_source(file) as source,
            tarfile.open(fileobj=source, mode=mode, tarinfo=StrictHeader) as tar,
        ):
            start = 0
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # all so far, which a stream has no use for
                if not member.isdir():
                    yield member.name, _content(tar, member, wanted)
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
    tar: tarfile.TarFile, member: tarfile.TarInfo, wanted: Sequence[str]
) -> bytes | str | None:
    """Return a member's content, None for one that is not wanted, or the reason why it is not
    read.
    """
    if not member.isfile():
        return "a link or a device"
    if PurePosixPath(member.name).suffix.lower() not in wanted:
        return None
    if member.size > MEMBER_BYTES:
        return f"{member.size:,} bytes"
    content = tar.extractfile(member)
    assert content is not None, member.name  # it is a regular file
    return content.read()


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

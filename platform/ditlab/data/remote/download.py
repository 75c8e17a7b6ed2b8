"""Download from the first mirror that answers, continued where it stopped."""

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ditlab.errors import UserError
from ditlab.progress import Progress
from ditlab.storage.plain_files import MIB, open_plain

MIRROR_TIMEOUT = 20.0
"""Seconds without an answer or a byte before a mirror is given up."""
CHUNK_BYTES = 64 * 1024
MOST_BYTES = 64 * MIB
"""Most bytes of a file: MNIST's largest has 10 MB."""


def download(
    name: str, md5: str, mirrors: Sequence[str], folder: Path, progress: Progress, most: int = MOST_BYTES
) -> str | None:
    """Download `folder/name`, whose MD5 is known, from the first of the mirrors (URL prefixes ending in /) that has it.

    Returns the URL it came from, or None where it was there already. Bytes go to `name.part`, which the next mirror or
    the next attempt continues; the file takes its name once its MD5 is right. A mirror that sends more than `most`
    bytes is given up. Raises UserError when no mirror gives the file, with the reason for each.
    """
    target, part = folder / name, folder / f"{name}.part"
    if _md5(target) == md5:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    if part.is_symlink() or not part.is_file():
        with suppress(OSError):
            part.unlink()  # a pipe would be waited for
    reasons = []
    for mirror in mirrors:
        url = mirror + name
        try:
            _fetch(url, part, progress, most)
        except (OSError, http.client.HTTPException) as error:  # URLError and time-outs are OSErrors
            reasons.append(f"{url}: {getattr(error, 'reason', None) or error}")
            continue
        found = _md5(part)
        if found == md5:
            part.replace(target)
            return url
        part.unlink(missing_ok=True)  # not the published file: nothing to continue
        reasons.append(f"{url}: its MD5 is {found}, expected {md5}")
    raise UserError(f"{name} could not be downloaded ({'; '.join(reasons)}).")


def _fetch(url: str, part: Path, progress: Progress, most: int) -> None:
    """Append the missing rest of the file at `url` to `part`."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=MIRROR_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing beyond these bytes: the MD5 decides
        raise
    with answer, part.open("ab") as sink:
        if answer.status != http.client.PARTIAL_CONTENT:
            sink.truncate(0)
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        while chunk := answer.read(CHUNK_BYTES):
            sink.write(chunk)
            have += len(chunk)
            progress(part.stem, have, total)
            if have > most:
                part.unlink()
                raise http.client.HTTPException(f"it sends more than {most:,} bytes")
    if total is not None and have < total:
        raise http.client.HTTPException(f"the connection ended after {have} of {total} bytes")


def _md5(path: Path) -> str | None:
    """Return a plain file's MD5; None where there is none."""
    try:
        with open_plain(path) as content:
            return hashlib.file_digest(content, "md5").hexdigest()
    except OSError:
        return None

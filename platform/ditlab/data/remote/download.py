"""Downloads that go on where they stopped, from the first mirror that answers."""

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from ditlab.data.importing import Progress
from ditlab.errors import UserError

TIMEOUT = 20.0
"""Seconds without an answer or a byte before a mirror is given up."""
CHUNK = 64 * 1024


def download(name: str, md5: str, mirrors: Sequence[str], folder: Path, progress: Progress) -> str | None:
    """Bring `folder/name`, whose MD5 is known, from the first of the mirrors (URL prefixes ending in /) that has it.

    Returns the URL it came from, or None where it was there already. Bytes go to `name.part`, which the next mirror or
    the next attempt goes on from; the file takes its name once its MD5 is right. Raises UserError when no mirror gives
    the file, with each one's reason.
    """
    target, part = folder / name, folder / f"{name}.part"
    if target.exists() and _md5(target) == md5:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    reasons = []
    for mirror in mirrors:
        url = mirror + name
        try:
            _fetch(url, part, progress)
        except (OSError, http.client.HTTPException) as error:  # URLError and time-outs are OSErrors
            reasons.append(f"{url}: {getattr(error, 'reason', None) or error}")
            continue
        found = _md5(part)
        if found == md5:
            part.replace(target)
            return url
        part.unlink()  # not what was published: nothing to go on from
        reasons.append(f"{url}: its MD5 is {found}, expected {md5}")
    raise UserError(f"{name} could not be downloaded ({'; '.join(reasons)}).")


def _fetch(url: str, part: Path, progress: Progress) -> None:
    """Append to `part` what it lacks of the file at `url`."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing beyond what is here: the MD5 decides
        raise
    with answer, part.open("ab") as sink:
        if answer.status != http.client.PARTIAL_CONTENT:
            sink.truncate(0)
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        while chunk := answer.read(CHUNK):
            sink.write(chunk)
            have += len(chunk)
            progress(part.stem, have, total)
    if total is not None and have < total:
        raise http.client.HTTPException(f"the connection ended after {have} of {total} bytes")


def _md5(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "md5").hexdigest()

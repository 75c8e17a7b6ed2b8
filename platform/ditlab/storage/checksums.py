"""Checksums inside files. Of JSON objects: their last field, `"crc"`, is the CRC-32 of the text before it.

`{"a":1,"crc":"78f7c8f1"}`: the CRC-32 of `{"a":1`. It finds damage, not forgery; text without the field is of an
earlier version. Of YAML, which people edit: a comment.
"""

from hashlib import sha256
from zlib import crc32

_STAMP = "# SHA-256 of the lines above: "
_FIELD = b',"crc":"'
_LENGTH = len(_FIELD) + 8 + len(b'"}')


def add_checksum(text: bytes) -> bytes:
    """Return the text of a JSON object with its checksum; `text` ends with `}` and has at least one field."""
    body = text[:-1]
    return b'%b,"crc":"%08x"}' % (body, crc32(body))


def has_checksum(text: bytes) -> bool:
    """Return True if a JSON object's text ends with a checksum, right or wrong."""
    return text[-_LENGTH : 8 - _LENGTH] == _FIELD


def is_intact(text: bytes) -> bool:
    """Return True if a JSON object's text ends with a checksum that is right."""
    body = text[:-_LENGTH]
    return text[-_LENGTH:] == b',"crc":"%08x"}' % crc32(body)


def without_checksum(text: bytes) -> bytes:
    """Return a JSON object's text as it was before `add_checksum`."""
    return text[:-_LENGTH] + b"}"


def stamped(text: str) -> str:
    """Return the text of a file that a person may edit, with its SHA-256 as a comment in a last line of its own."""
    return f"{text}{_STAMP}{sha256(text.encode()).hexdigest()}\n"


def is_edited(content: bytes) -> bool:
    """Return True if a file was changed since `stamped`; False also for one without that last line, which is older."""
    return _STAMP.encode() in content and not is_as_stamped(content)


def is_as_stamped(content: bytes) -> bool:
    """Return True if a file is as `stamped` made it."""
    text, found, stamp = content.rpartition(_STAMP.encode())
    return bool(found) and stamp.rstrip(b"\n").decode(errors="replace") == sha256(text).hexdigest()

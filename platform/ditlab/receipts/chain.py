"""Chain of digests over the steps that a state comes from."""

import hashlib

from ditlab.receipts.attempt import RecordedAttempt
from ditlab.receipts.rows import CHECKED

ORIGIN = hashlib.sha256(b"ditlab receipts 1").hexdigest()
"""Head of a chain without steps, in hexadecimal."""


def next_head(head: str, row: bytes, begun: RecordedAttempt | None) -> str:
    """Return the head after one more row; `begun` is its attempt where the row is that attempt's first one."""
    link = hashlib.sha256(bytes.fromhex(head))
    if begun is not None:
        link.update(bytes.fromhex(begun.digest))
    link.update(row[:CHECKED])
    return link.hexdigest()

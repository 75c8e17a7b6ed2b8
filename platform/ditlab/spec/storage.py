"""What can be seen wrong with `checkpoint.storage` before anything is opened."""

import re
from urllib.parse import parse_qsl, urlsplit

# Names of query keys that carry a secret with S3, GCS, Azure and fsspec's other file systems.
_SECRET = re.compile(r"secret|passw|token|credential|signature|^sig$|access_?key|account_?key|api_?key|^key$", re.I)


def is_uri(storage: str) -> bool:
    """Whether a place is named by a URI rather than by a folder's path."""
    return "://" in storage


def refuse_storage(storage: str) -> None:
    """Raises ValueError for a URI that cannot be parsed or holds a secret, which would be written into every record."""
    if not is_uri(storage):
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", storage):
            raise ValueError(
                f"checkpoint.storage={storage} is neither a path nor a URI; write scheme://bucket/prefix with two "
                "slashes, or ./ before a folder's name."
            )
        return
    try:
        parts = urlsplit(storage)
        holds_secret = parts.password is not None or any(
            _SECRET.search(key) for key, _ in parse_qsl(parts.query, keep_blank_values=True)
        )
    except ValueError as error:
        raise ValueError(f"checkpoint.storage={storage} is no URI ({error}); write scheme://bucket/prefix.") from None
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", parts.scheme) or re.search(r"\s", storage):
        raise ValueError(f"checkpoint.storage={storage!r} is no URI; write scheme://bucket/prefix.")
    if holds_secret:
        # The value itself stays out of the message: it would end up in logs.
        raise ValueError(
            f"checkpoint.storage={parts.scheme}://... holds a password or key, which would be written into the run's "
            "records; take it out and give it through the environment (AWS_ACCESS_KEY_ID and the like)."
        )

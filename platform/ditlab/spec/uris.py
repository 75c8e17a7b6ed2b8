"""Checks of places named by a path or a URI, before anything is opened."""

import re
from urllib.parse import unquote, urlsplit

# Names of query keys that carry a secret with S3, GCS, Azure and fsspec's other file systems.
_SECRET = re.compile(r"secret|passw|token|credential|signature|^sig$|access_?key|account_?key|api_?key|^key$", re.I)
# A name, a colon and what is no port, up to an @. Secret keys hold slashes, which urlsplit takes for the path's.
_PASSWORD = re.compile(r"://[^/?#@:]*:(?!\d+(?:[/?#]|$))[^?#]*@")
_QUERY_KEY = re.compile(r"[?&;#]([^=&;?#\s]+)=")


def is_uri(storage: str) -> bool:
    """Return True if a place is named by a URI rather than by a folder's path."""
    return "://" in storage


def refuse_secret(knob: str, value: str) -> None:
    """Raise ValueError for a URI that holds a password or a secret query key, without repeating any of it.

    What is no URI passes, and so does one that cannot be parsed.
    """
    if not is_uri(value):
        return
    keys = map(unquote, _QUERY_KEY.findall(value))
    if _PASSWORD.search(value) or any(map(_SECRET.search, keys)):
        scheme = re.search(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)", value)
        raise ValueError(
            f"{knob}={scheme[0] if scheme else ''}://... holds a password or key, which would be written into the "
            "run's records; take it out and give it through the environment (AWS_ACCESS_KEY_ID and the like)."
        )


def refuse_storage(knob: str, place: str) -> None:
    """Raise ValueError for a URI that cannot be parsed or holds a secret, which would be written into every record."""
    if "\0" in place:
        raise ValueError(f"{knob}={place!r} holds a NUL character; take it out.")
    if not is_uri(place):
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", place):
            raise ValueError(
                f"{knob}={place} is neither a path nor a URI; write scheme://bucket/prefix with two slashes, or ./ "
                "before a folder's name."
            )
        return
    refuse_secret(knob, place)
    try:
        scheme = urlsplit(place).scheme
    except ValueError as error:
        raise ValueError(f"{knob}={place} is no URI ({error}); write scheme://bucket/prefix.") from None
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme) or re.search(r"\s", place):
        raise ValueError(f"{knob}={place!r} is no URI; write scheme://bucket/prefix.")

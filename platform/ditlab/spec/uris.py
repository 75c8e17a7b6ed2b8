"""Checks of places named by a path or a URI, before anything is opened, and that a spec holds no secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from ditlab.secrets import hide_in_urls

# Names of query keys that carry a secret with S3, GCS, Azure and fsspec's other file systems.
_SECRET = re.compile(r"secret|passw|token|credential|signature|^sig$|access_?key|account_?key|api_?key|^key$", re.I)
# A name, a colon and what is no port, up to an @. Secret keys hold slashes, which urlsplit takes for the path's.
_PASSWORD = re.compile(r"://[^/?#@:]*:(?!\d+(?:[/?#]|$))[^?#]*@")
_QUERY_KEY = re.compile(r"[?&;#]([^=&;?#\s]+)=")


def is_uri(storage: str) -> bool:
    """Return True if a place is named by a URI rather than by a folder's path."""
    return "://" in storage


def refuse_secret(field: str, value: str) -> None:
    """Raise ValueError for a URI that holds a password or a secret query key, without repeating any of it."""
    keys = map(unquote, _QUERY_KEY.findall(value)) if is_uri(value) else ()
    if _PASSWORD.search(value) or any(map(_SECRET.search, keys)):
        scheme = re.search(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)", value)
        raise ValueError(
            f"{field}={scheme[0] if scheme else ''}://... holds a password or key, which would be written into the "
            "run's records; take it out and give it through the environment (AWS_ACCESS_KEY_ID and the like)."
        )


def refuse_storage(field: str, place: str) -> str:
    """Return a place; raise ValueError for a URI that cannot be parsed, or holds a secret."""
    refuse_secret(field, place)
    try:
        scheme = urlsplit(place).scheme
    except ValueError:
        scheme = ""
    has_scheme = is_uri(place) or re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", place)
    is_whole = is_uri(place) and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme) and not re.search(r"\s", place)
    if "\0" in place or (has_scheme and not is_whole):
        raise ValueError(
            f"{field}={place if place.isprintable() else ascii(place)} is neither a path nor a URI; write "
            "scheme://bucket/prefix, or ./ before a folder's name."
        )
    return place


def refuse_secrets(value: Any, path: str = "") -> Any:
    """Return a spec's mapping; raise ValueError, which does not repeat it, for a URL in it with a password or a key."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            refuse_secrets(below, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for below in value:
            refuse_secrets(below, path)
    elif isinstance(value, str):
        if path.endswith("tracking.uri") and (shown := hide_in_urls(value)) != value:
            raise ValueError(
                f"{path}={shown} holds a password, which would be written into every checkpoint; give it by "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead."
            )
        refuse_secret(path, value)
    return value

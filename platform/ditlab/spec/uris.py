"""Texts of a spec: which are paths, checks of paths and URIs before anything is opened, no secrets,
no variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from ditlab.secrets import hide_in_urls

# Names of query keys that carry a secret with S3, GCS, Azure and fsspec's other file systems.
_SECRET = re.compile(
    r"secret|passw|token|credential|signature|^sig$|access_?key|account_?key|api_?key|^key$", re.I
)
# A name, a colon and what is no port, up to an @. Secret keys hold slashes, which urlsplit takes
# for the path's. Or a token of the Hugging Face hub, wherever it stands.
_PASSWORD = re.compile(r"://[^/?#@:]*:(?!\d+(?:[/?#]|$))[^?#]*@|\bhf_[A-Za-z0-9]{30}")
_QUERY_KEY = re.compile(r"[?&;#]([^=&;?#\s]+)=")
_PATH_FIELD = re.compile(
    r"(data(\.parts\.[^.]+)?\.path|checkpoint\.storage|encoders\.(text|image|autoencoder)|sampling\.mask\.path|"
    r"model\.init\.from|evaluation\.(features\.(weights|reference)|scorer\.model))"
)
_NOTIFY_FIELD = re.compile(r"(?:^|\.)notify(?:\.\d+)?(\.[\w.]+)?$")
_URI = re.compile(r"(\w+::)*[A-Za-z][A-Za-z0-9+.-]*://(\[[^][/\s]+])?[^][/\s]*(/([^\t-\r]*\S)?)?")
_VARIABLE = re.compile(r"\$\{[^}]*\}|\$[A-Za-z_]\w*")


def is_uri(storage: str) -> bool:
    """Return True if a place is named by a URI rather than by a folder's path."""
    return "://" in storage


def refuse_secret(field: str, value: str) -> None:
    """Raise ValueError for a URI that holds a password or a secret query key, without repeating any
    of it.
    """
    keys = map(unquote, _QUERY_KEY.findall(value)) if is_uri(value) else ()
    if _PASSWORD.search(value) or any(map(_SECRET.search, keys)):
        scheme = re.search(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)", value)
        raise ValueError(
            f"{field}={scheme[0] if scheme else ''}://... holds a password or key, which would "
            "be written into the run's records; take it out and give it through the "
            "environment (AWS_ACCESS_KEY_ID, HF_TOKEN and the like)."
        )


def refuse_address(value: str) -> str:
    """Return the text `env:NAME`; raise ValueError for any other, which may be an address with a
    token, and repeat nothing of it."""
    if not re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError(
            "notify.to=... is no env:NAME; write the address into an environment variable and "
            "name that, as in to: env:DITLAB_NOTIFY, because a spec is copied into records and "
            "checkpoints."
        )
    return value


def has_one_slash(place: str) -> bool:
    """Return True for what begins like a URI: a path has lost a slash of one."""
    return bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", place))


def refuse_storage(field: str, place: str) -> str:
    """Return a place; raise ValueError for what is no URI though it looks like one, or holds a
    secret.
    """
    refuse_secret(field, place)
    has_scheme = is_uri(place) or has_one_slash(place)
    if "\0" in place or (has_scheme and not _URI.fullmatch(place)):
        raise ValueError(
            f"{field}={place if place.isprintable() else ascii(place)} is neither a path nor a "
            "URI; write scheme://bucket/prefix, or ./ before a folder's name."
        )
    return place


def path_field(path: str) -> str:
    """Return the experiment's field that holds a path, by its dotted path in an experiment or a
    sweep; else "".
    """
    field = re.sub(r"^(base|fixed|space(\..+\.when)?)\.", "", path).replace(".values", "")
    return field if _PATH_FIELD.fullmatch(field) else ""


def variable_in(text: str) -> str:
    """Return the first variable of a shell in a text, such as `${DATA}`; "" where there is none."""
    found = _VARIABLE.search(text)
    return found[0] if found else ""


def map_texts(value: Any, change: Callable[[str, str], str], path: str = "") -> Any:
    """A copy of a spec's mapping with `change(dotted path, text)` for each text; those of a list
    have its path.
    """
    if isinstance(value, Mapping):
        return {
            key: map_texts(below, change, f"{path}.{key}" if path else str(key))
            for key, below in value.items()
        }
    if isinstance(value, list | tuple):
        return [map_texts(below, change, path) for below in value]
    if isinstance(value, str):
        return change(path, value)
    return value


def check_texts(value: Any) -> Any:
    """Return a spec's mapping; raise ValueError for a URL in it with a password or a key, which the
    message does not repeat, and for a variable, which nothing would fill in."""
    map_texts(value, _checked)
    return value


def _checked(path: str, text: str) -> str:
    found = _NOTIFY_FIELD.search(path)
    if found and (found[1] != ".on" or is_uri(text)):
        refuse_address(text)
    if path.endswith("tracking.uri") and (shown := hide_in_urls(text)) != text:
        raise ValueError(
            f"{path}={shown} holds a password, which would be written into every checkpoint; "
            "give it by MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead."
        )
    refuse_secret(path, text)
    field = path_field(path)
    variable = variable_in(text)
    if variable.startswith("${") or (variable and (field or is_uri(text))):
        raise ValueError(
            f"{path}={text}: variables such as {variable} are not read in specs; write what it "
            "stands for."
        )
    return text

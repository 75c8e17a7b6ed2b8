"""Repositories of the Hugging Face hub: found in a cache, or fetched into one.

The one place that uses the hub's client. hf:// as a source of data goes through fsspec (`storage.remote`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ditlab.errors import UserError, first_line


class NotFetched(Exception):
    """The hub does not give a repository; the message is the reason, in a line without a full stop."""


def fetch_repository(
    name: str, patterns: Sequence[str], cache: Path | None, revision: str | None = None, is_local: bool = False
) -> Path:
    """Return the folder of a repository's files that match `patterns`, fetched unless `cache` holds them (None: the
    hub's own).

    Its name is the commit. `is_local` asks nobody and takes what the cache holds. Raises NotFetched, and UserError
    where the hub's client is not installed.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise UserError(
            f"{name} of the Hugging Face hub needs the library huggingface_hub, which is not installed; "
            "`pip install 'ditlab[hub]'` brings it."
        ) from error
    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=list(patterns), cache_dir=cache, local_files_only=is_local
            )
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise NotFetched(first_line(error)) from error

"""Parsing of manifests, with checks of version and fingerprint."""

import json
import re
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from ditlab.data.stores.bucket_manifest import BucketsManifest, buckets_fingerprint
from ditlab.data.stores.manifest import FORMAT_VERSION, ManifestRecord, StoreManifest, content_fingerprint
from ditlab.errors import UserError, first_line

RecordType = TypeVar("RecordType", bound=ManifestRecord)


def read_record(file: Path, record_type: type[RecordType]) -> RecordType:
    """Read the record in a file. Raises UserError where it is missing, unreadable or of another version."""
    return parse_record(read_manifest_bytes(file), record_type, str(file))


def read_manifest_bytes(file: Path) -> bytes:
    """Read a manifest's bytes. Raises UserError where there is none."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(
            f"{file.parent} holds no store ({file.name}: {error.strerror}); name the folder of one, or one below "
            "DITLAB_HOME/stores, or write one with `ditlab data import`."
        ) from None


IMPORT_AGAIN = "import the data again with `ditlab data import`"


def parse_record(content: bytes, record_type: type[RecordType], place: str, remedy: str = IMPORT_AGAIN) -> RecordType:
    """Parse the record in a file's bytes.

    Raises UserError, naming the place, where they hold no record or one of another version, or name a file outside the
    store.
    """
    try:
        version = json.loads(content)["version"]
        if version != FORMAT_VERSION:
            raise UserError(
                f"{place} is of format version {version}, and this ditlab reads version {FORMAT_VERSION}; {remedy}."
            )
        return record_type.model_validate_json(content)
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # pydantic's and json's are ValueErrors
        raise UserError(f"{place} is not a store's manifest ({_problem(error)}); {remedy}.") from error


def parse_manifest(content: bytes, place: str, remedy: str = IMPORT_AGAIN) -> StoreManifest:
    """Parse the manifest of a plain store. Raises UserError as `parse_record` does, and where it was altered."""
    manifest = parse_record(content, StoreManifest, place, remedy)
    if content_fingerprint(manifest.rows, manifest.columns, manifest.attachments) != manifest.fingerprint:
        raise _altered(place, "columns", remedy)
    return manifest


def parse_buckets_manifest(content: bytes, place: str, remedy: str = IMPORT_AGAIN) -> BucketsManifest:
    """Parse the manifest of a bucketed store. Raises UserError as `parse_record` does, and where it was altered."""
    manifest = parse_record(content, BucketsManifest, place, remedy)
    if not manifest.buckets or buckets_fingerprint(manifest.buckets) != manifest.fingerprint:
        raise _altered(place, "buckets", remedy)
    return manifest


def _altered(place: str, what: str, remedy: str) -> UserError:
    return UserError(f"{place} was altered: its {what} do not give its fingerprint; {remedy}.")


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = re.sub(r"[^ -~]", "?", ".".join(map(str, first["loc"])))[:100]  # keys of the file may hold anything
        return f"{where}: {first['msg'].removeprefix('Value error, ')}" if where else first["msg"]
    return first_line(error)

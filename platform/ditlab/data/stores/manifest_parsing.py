"""Manifests as text: written with a checksum; read with checks of version, types, checksum and fingerprint."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ditlab.data.stores.bucket_manifest import BucketsManifest, buckets_fingerprint
from ditlab.data.stores.manifest import FORMAT_VERSION, ManifestRecord, StoreManifest, content_fingerprint
from ditlab.data.stores.manifest_checks import check_buckets, check_store
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import MIB, read_plain

RecordType = TypeVar("RecordType", bound=ManifestRecord)

MANIFEST_BYTES = 64 * MIB
"""Most bytes of a manifest: a store of 60 TB has about as many."""
IMPORT_AGAIN = "import the data again with `ditlab data import`"


def format_manifest(manifest: StoreManifest | BucketsManifest) -> bytes:
    """Format a manifest as JSON, with a checksum: the SHA-256 (hex) of all other keys, sorted, without spaces."""
    content = manifest.model_dump(mode="json", exclude={"checksum"})
    return _laid_out({**content, "checksum": _checksum(content)})


def has_own_layout(content: bytes) -> bool:
    """Return True if a manifest's bytes are those that its values are written as; its checksum is of values alone."""
    return content == _laid_out(json.loads(content))


def read_record(file: Path, record_type: type[RecordType]) -> RecordType:
    """Read the record in a file. Raises UserError where it is missing, unreadable or of another version."""
    return parse_record(read_manifest_bytes(file), record_type, str(file))


def read_manifest_bytes(file: Path) -> bytes:
    """Read a manifest's bytes. Raises UserError where there is none."""
    try:
        return read_plain(file, MANIFEST_BYTES)
    except OSError as error:
        raise UserError(
            f"{file.parent} holds no store ({file.name}: {first_line(error)}); name the folder of one, or one below "
            "DITLAB_HOME/stores, or write one with `ditlab data import`."
        ) from None


def parse_record(content: bytes, record_type: type[RecordType], place: str, remedy: str = IMPORT_AGAIN) -> RecordType:
    """Parse the record in a file's bytes.

    Raises UserError, naming the place, where they hold no record or one of another version, differ from their checksum,
    or name a file outside the store.
    """
    try:
        keys = json.loads(content, object_pairs_hook=_unique_keys)
        version = keys["version"]
        if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
            raise UserError(
                f"{place} is of format version {str(version)[:20]}, and this ditlab reads versions 1 to "
                f"{FORMAT_VERSION}; {remedy}."
            )
        record = record_type.model_validate_json(content, strict=True)
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # pydantic's and json's are ValueErrors
        raise UserError(f"{place} is not a store's manifest ({_problem(error)}); {remedy}.") from error
    if (version > 1 or "checksum" in keys) and keys.pop("checksum", "") != _checksum(keys):
        raise _altered(place, "its content does not give its checksum", remedy)
    return record


def parse_manifest(content: bytes, place: str, remedy: str = IMPORT_AGAIN) -> StoreManifest:
    """Parse the manifest of a plain store. Raises UserError as `parse_record` does, and where it was altered."""
    manifest = parse_record(content, StoreManifest, place, remedy)
    try:
        check_store(manifest)
    except ValueError as error:
        raise _altered(place, f"it contradicts itself ({_problem(error)})", remedy) from error
    if content_fingerprint(manifest.rows, manifest.columns, manifest.attachments) != manifest.fingerprint:
        raise _altered(place, "its columns do not give its fingerprint", remedy)
    return manifest


def parse_buckets_manifest(content: bytes, place: str, remedy: str = IMPORT_AGAIN) -> BucketsManifest:
    """Parse the manifest of a bucketed store. Raises UserError as `parse_record` does, and where it was altered."""
    manifest = parse_record(content, BucketsManifest, place, remedy)
    try:
        check_buckets(manifest)
    except ValueError as error:
        raise _altered(place, f"it contradicts itself ({_problem(error)})", remedy) from error
    if buckets_fingerprint(manifest.buckets) != manifest.fingerprint:
        raise _altered(place, "its buckets do not give its fingerprint", remedy)
    return manifest


def _altered(place: str, problem: str, remedy: str) -> UserError:
    return UserError(f"{place} was altered: {problem}; {remedy}.")


def _laid_out(keys: dict[str, Any]) -> bytes:
    return json.dumps(keys, indent=1).encode()


def _checksum(keys: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(keys, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) < len(pairs):
        raise ValueError("it holds a key twice")
    return keys


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = _printable(".".join(map(str, first["loc"])))[:100]
        return f"{where}: {first['msg'].removeprefix('Value error, ')}" if where else first["msg"]
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return _printable(first_line(error))


def _printable(text: str) -> str:
    return re.sub(r"[^ -~]", "?", text)  # keys of the file may hold anything

"""Manifests of stores with other keys, and with the checksum that then belongs to them."""

import hashlib
import json
from pathlib import Path
from typing import Any


def write_manifest(file: Path, keys: dict[str, Any]) -> None:
    """Write a manifest of these keys, whose checksum is right."""
    keys = {name: value for name, value in keys.items() if name != "checksum"}
    text = json.dumps(keys, sort_keys=True, separators=(",", ":"))
    file.write_text(json.dumps(keys | {"checksum": hashlib.sha256(text.encode()).hexdigest()}))


def edit_manifest(file: Path, **changes: Any) -> None:
    """Change keys of a manifest, and its checksum with them."""
    write_manifest(file, json.loads(file.read_bytes()) | changes)

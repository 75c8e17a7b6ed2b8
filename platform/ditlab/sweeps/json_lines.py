"""Files of JSON lines that outlive a killed process, a full disk and a power cut."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ditlab.home import sync_folder


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """One more line; on the disk when this returns."""
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write(b"\n" * torn + json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if size == 0:
        sync_folder(path.parent)  # the file is new


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every whole line, in order; what was left of a line that was cut short is passed over. [] without the file."""
    if not path.exists():
        return []
    records = []
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        records.append(record)
    return records
